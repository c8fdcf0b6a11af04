/* test_degrees.c - the planner of degrees against all plans, and against a table of all bytes,
 * sizes and times; its cost against the simulated schedule; files. */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_LAYOUT_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "scarce.h"
#include "extras/memo_layout.h"
#include "extras/memo_look.h"
#include "tools/degrees_model.h"
#include "tools/degrees_profile.h"
#include "owned.h"

#ifdef MEMO_TEST_VALGRIND
#define CASES(n) ((n) / 50)
#else
#define CASES(n) (n)
#endif

static const int32_t powers[] = {1, 2, 4, 8, 16};

#define MAX_BLOCKS 40

static void drop_degrees(memo_degrees_problem** problem) { MEMO_FREE(*problem); }
#define own_degrees OWNED(drop_degrees) memo_degrees_problem

static int32_t planned[MEMO_DEGREES_BLOCKS_MAX]; /* degrees of the last plan */

static double larger(double a, double b) { return a > b ? a : b; }

/* ---- a plan's cost, from the reference page and nothing else ---- */

static double gather_of(const memo_degrees_problem* problem, int32_t a, int32_t b) {
    return a == b ? 0 : problem->gather_s[a < b ? a : b][a < b ? b : a];
}

static double node_of(const memo_degrees_problem* problem, int32_t i, int32_t p) {
    const memo_degree_cost* c = &problem->costs[i * problem->n_degrees + p];
    double sum = larger(c->forward_s, c->forward_collective_s) +
                 larger(c->backward_s, c->backward_collective_s);
    int32_t boundary = p;
    for (int32_t k = 0; k < problem->n_degrees; k++)
        if (problem->degrees[k] == problem->boundary_degree) boundary = k;
    if (problem->has_gradients) sum += c->gradient_s;
    if (i == 0) sum += c->forward_s + c->backward_collective_s + gather_of(problem, boundary, p);
    if (i == problem->n_blocks - 1)
        sum += c->forward_collective_s + c->backward_s + gather_of(problem, boundary, p);
    return sum;
}

static double edge_of(const memo_degrees_problem* problem, int32_t i, int32_t p, int32_t q) {
    const memo_degree_cost* c = &problem->costs[i * problem->n_degrees + p];
    const memo_degree_cost* t = &problem->costs[(i + 1) * problem->n_degrees + q];
    double gather_s = gather_of(problem, p, q), sum;
    if (q <= p)
        sum = larger(t->forward_s, c->forward_collective_s);
    else
        sum = c->forward_collective_s + gather_s + t->forward_s;
    if (q >= p) return sum + larger(c->backward_s, t->backward_collective_s);
    return sum + t->backward_collective_s + gather_s + c->backward_s;
}

static double cost_of(const memo_degrees_problem* problem, const int32_t* plan, int64_t* bytes) {
    int32_t n = problem->n_blocks;
    int64_t rho = 0;
    double sum = 0;
    *bytes = 0;
    for (int32_t i = 0; i < n; i++) {
        const memo_degree_cost* c = &problem->costs[i * problem->n_degrees + plan[i]];
        sum += node_of(problem, i, plan[i]);
        if (i + 1 < n) sum += edge_of(problem, i, plan[i], plan[i + 1]);
        *bytes += c->state_bytes + c->saved_bytes;
        if (c->runtime_bytes > rho) rho = c->runtime_bytes;
    }
    *bytes += rho;
    return sum;
}

/* The least cost of all plans that fit, INFINITY if none fits; and the least memory of all
 * plans. */
static double best_of_all(const memo_degrees_problem* problem, int64_t* least_bytes) {
    int32_t plan[8], i;
    double best = INFINITY;
    memset(plan, 0, sizeof plan);
    *least_bytes = INT64_MAX;
    for (;;) {
        int64_t bytes;
        double cost = cost_of(problem, plan, &bytes);
        if (bytes < *least_bytes) *least_bytes = bytes;
        if (cost < best && (!problem->memory_bytes || bytes <= problem->memory_bytes)) best = cost;
        for (i = 0; i < problem->n_blocks && ++plan[i] == problem->n_degrees; i++) plan[i] = 0;
        if (i == problem->n_blocks) return best;
    }
}

static memo_degrees_problem* random_problem(void) {
    int32_t n = (int32_t)memo_test_int(1, 6), d = (int32_t)memo_test_int(1, 4), i, p, q;
    int is_like_a_model = memo_test_int(0, 1) == 0;
    int64_t least = 0, most = 0;
    memo_degrees_problem* problem = degrees_problem_create(n, powers + memo_test_int(0, 1), d);
    for (i = 0; i < n; i++)
        for (p = 0; p < d; p++) {
            memo_degree_cost* c = &problem->costs[i * d + p];
            double degree = problem->degrees[p], at = is_like_a_model ? degree : 1;
            c->forward_s = (1 + memo_test_real());
            c->forward_collective_s = at / 2 * memo_test_real();
            c->backward_s = 3 * (1 + memo_test_real());
            c->backward_collective_s = at / 2 * memo_test_real();
            c->gradient_s = memo_test_real() / degree;
            c->state_bytes = memo_test_int(0, 1000) / (int64_t)degree;
            c->saved_bytes = memo_test_int(0, 100) * (int64_t)at;
            c->runtime_bytes = memo_test_int(0, 500);
            if (memo_test_int(0, 9) == 0) c->forward_collective_s = 0;
        }
    for (p = 0; p < d; p++)
        for (q = p + 1; q < d; q++) problem->gather_s[p][q] = memo_test_real();
    for (i = 0; i < n; i++) {
        int64_t low = INT64_MAX, high = 0;
        for (p = 0; p < d; p++) {
            const memo_degree_cost* c = &problem->costs[i * d + p];
            int64_t kept = c->state_bytes + c->saved_bytes;
            if (kept < low) low = kept;
            if (kept > high) high = kept;
        }
        least += low;
        most += high;
    }
    if (memo_test_int(0, 3)) problem->memory_bytes = memo_test_int(least, most + 500) + 1;
    if (memo_test_int(0, 1)) problem->boundary_degree = problem->degrees[memo_test_int(0, d - 1)];
    problem->has_gradients = memo_test_int(0, 1) == 0;
    return problem;
}

/* A plan's time and memory follow the formulas and the limit, and its bound is at most the optimum,
 * best. */
static void check_plan(const memo_degrees_problem* problem, const memo_degrees_plan* plan,
                       double best, int n) {
    int32_t indices[MAX_BLOCKS], i, p;
    int64_t bytes, evaluated_bytes;
    double evaluated_s;
    for (i = 0; i < problem->n_blocks; i++)
        for (p = 0; p < problem->n_degrees; p++)
            if (problem->degrees[p] == planned[i]) indices[i] = p;
    double cost = cost_of(problem, indices, &bytes);
    IN_CASE("case %d", n);
    CHECK(fabs(plan->step_s - cost) < 1e-9 && plan->memory_bytes == bytes);
    CHECK(!problem->memory_bytes || bytes <= problem->memory_bytes);
    CHECK_IS(plan->lower_bound_s, <=, best + 1e-9);
    CHECK_IS(plan->step_s, >=, best - 1e-9);
    CHECK_IS((plan->proof == MEMO_PROOF_OPTIMAL), ==, (plan->lower_bound_s == plan->step_s));
    CHECK(plan->proof == MEMO_PROOF_OPTIMAL || plan->proof == MEMO_PROOF_FEASIBLE);
    CHECK_IS(plan->solve_s, >=, 0);
    if (plan->proof == MEMO_PROOF_OPTIMAL) CHECK_IS(plan->step_s, <=, best + 1e-9);
    CHECK_OK(memo_degrees_evaluate(problem, planned, &evaluated_s, &evaluated_bytes, &error));
    CHECK(evaluated_s == plan->step_s && evaluated_bytes == plan->memory_bytes);
}

TEST(equals_brute_force) {
    int n_infeasible = 0;
    for (int n = 0; n < CASES(3000); n++) {
        own_degrees* problem = random_problem();
        memo_degrees_plan plan;
        int64_t least;
        double best = best_of_all(problem, &least);
        n_infeasible += best == INFINITY;
        for (int is_late = 0; is_late < 2; is_late++) {
            memo_status status =
                memo_degrees_solve(problem, is_late ? 1e-9 : 600, planned, &plan, &error);
            CHECK_IS(status, ==, (best < INFINITY ? MEMO_STATUS_OK : MEMO_STATUS_INFEASIBLE));
            if (status) {
                CHECK_IS(atoll(strstr(error.message, "needs ") + 6), ==, least);
                continue;
            }
            check_plan(problem, &plan, best, n);
            if (!is_late) CHECK_IS(plan.proof, ==, MEMO_PROOF_OPTIMAL);
        }
    }
    CHECK_IS(n_infeasible, >, 0);
}

/* ---- the optimum from a table of all bytes ---- */

#define RUNTIMES 3

/* Few different bytes and runtimes, many blocks.  A block that keeps more bytes is faster, so most
 * partial plans may be part of the optimum. */
static memo_degrees_problem* problem_of_few_bytes(void) {
    int32_t n = (int32_t)memo_test_int(2, MAX_BLOCKS), d = (int32_t)memo_test_int(2, 4), i, p, q;
    int64_t bytes_max = memo_test_int(0, 1) ? 400 : 30, sum = 0;
    double spread = memo_test_int(0, 1) ? 0.01 : 1;
    memo_degrees_problem* problem = degrees_problem_create(n, powers, d);
    for (i = 0; i < n; i++)
        for (p = 0; p < d; p++) {
            memo_degree_cost* c = &problem->costs[i * d + p];
            c->saved_bytes = memo_test_int(0, bytes_max);
            sum += c->saved_bytes;
            c->runtime_bytes = memo_test_int(0, RUNTIMES - 1) * bytes_max;
            c->forward_s =
                2 - (double)c->saved_bytes / (double)bytes_max + spread * memo_test_real();
            c->backward_s = 1 + spread * memo_test_real();
            c->forward_collective_s = spread * memo_test_real();
        }
    for (p = 0; p < d; p++)
        for (q = p + 1; q < d; q++) problem->gather_s[p][q] = spread * memo_test_real();
    problem->memory_bytes = sum / d * memo_test_int(60, 110) / 100 + bytes_max;
    return problem;
}

/* The optimum, or INFINITY: the least time to each degree and each sum of bytes, for each
 * runtime. */
static double best_of_table(const memo_degrees_problem* problem) {
    int32_t n = problem->n_blocks, d = problem->n_degrees;
    int64_t n_bytes = problem->memory_bytes + 1, runtime_max = 0;
    double best = INFINITY, *from = (double*)malloc((size_t)(2 * d * n_bytes) * sizeof(double));
    for (int32_t i = 0; i < n * d; i++)
        if (problem->costs[i].runtime_bytes > runtime_max)
            runtime_max = problem->costs[i].runtime_bytes;
    for (int64_t runtime = 0; runtime <= runtime_max; runtime++) {
        int is_one = 0;
        for (int32_t i = 0; i < n * d; i++) is_one |= problem->costs[i].runtime_bytes == runtime;
        if (!is_one) continue;
        for (int32_t i = 0; i < n; i++) {
            double *before = from + (i + 1) % 2 * d * n_bytes, *now = from + i % 2 * d * n_bytes;
            for (int32_t q = 0; q < d; q++) {
                const memo_degree_cost* c = &problem->costs[i * d + q];
                for (int64_t b = 0; b < n_bytes; b++) {
                    double* least = &now[q * n_bytes + b];
                    *least = INFINITY;
                    if (c->runtime_bytes > runtime || b < c->saved_bytes) continue;
                    if (i == 0) *least = b == c->saved_bytes ? node_of(problem, i, q) : INFINITY;
                    for (int32_t p = 0; p < d && i > 0; p++) {
                        double way = before[p * n_bytes + b - c->saved_bytes];
                        if (way == INFINITY) continue;
                        way += edge_of(problem, i - 1, p, q) + node_of(problem, i, q);
                        if (way < *least) *least = way;
                    }
                }
            }
        }
        for (int32_t p = 0; p < d; p++)
            for (int64_t b = 0; b + runtime < n_bytes; b++) {
                double* last = from + (n - 1) % 2 * d * n_bytes;
                if (last[p * n_bytes + b] < best) best = last[p * n_bytes + b];
            }
    }
    free(from);
    return best;
}

TEST(equals_a_table_of_bytes) {
    static const double limits_s[] = {600, 1e-9, 1e-4, 1e-3};
    int n, n_feasible = 0, n_open = 0;
    for (n = 0; n < CASES(60); n++) {
        own_degrees* problem = problem_of_few_bytes();
        double best = best_of_table(problem);
        n_feasible += best < INFINITY;
        for (size_t k = 0; k < sizeof limits_s / sizeof *limits_s; k++) {
            memo_degrees_plan plan;
            memo_status status = memo_degrees_solve(problem, limits_s[k], planned, &plan, &error);
            CHECK_IS(status, ==, (best < INFINITY ? MEMO_STATUS_OK : MEMO_STATUS_INFEASIBLE));
            if (status) continue;
            check_plan(problem, &plan, best, n);
            if (k == 0) CHECK_IS(plan.proof, ==, MEMO_PROOF_OPTIMAL);
            n_open += plan.proof == MEMO_PROOF_FEASIBLE;
        }
    }
    printf("# %d problems that a plan fits, %d runs cut by time\n", n_feasible, n_open);
    CHECK_IS(n_feasible, >, n / 2);
}

/* ---- models ---- */

static degrees_model model_of(int32_t n_layers, int32_t hidden, int32_t n_degrees) {
    degrees_model model = {.n_layers = n_layers,
                           .hidden = hidden,
                           .sequence = 1024,
                           .batch = 128,
                           .n_gpus = 32,
                           .n_degrees = n_degrees};
    for (int32_t k = 0; k < n_degrees; k++) {
        model.degrees[k] = 2 << k;
        model.bandwidth_bytes_per_s[k] = k == 0 ? 45e9 : k == 1 ? 6e9 : 3e9;
    }
    model.latency_s = 10e-6;
    model.flops_per_s = 25e12;
    model.boundary_degree = 4;
    return model;
}

/* Changes each cost and size by some per cent, so that no two blocks are equal. */
static void perturb(memo_degrees_problem* problem, double share) {
    int64_t k, n = (int64_t)problem->n_blocks * problem->n_degrees;
    for (k = 0; k < n; k++) {
        memo_degree_cost* c = &problem->costs[k];
        double* const times[] = {&c->forward_s, &c->forward_collective_s, &c->backward_s,
                                 &c->backward_collective_s, &c->gradient_s};
        int64_t* const bytes[] = {&c->state_bytes, &c->saved_bytes, &c->runtime_bytes};
        for (int j = 0; j < 5; j++) *times[j] *= 1 + share * (2 * memo_test_real() - 1);
        for (int j = 0; j < 3; j++)
            *bytes[j] = (int64_t)((double)*bytes[j] * (1 + share * (2 * memo_test_real() - 1)));
    }
}

/* With and without gradients, with the model's costs or perturbed ones.  Memory is unlimited, then
 * between the least and the fastest plan's.  Each plan is proven or within the gap. */
static void solve_sizes(int32_t n_layers, int32_t n_degrees, double share, double gap) {
    degrees_model model = model_of(n_layers, 2048, n_degrees);
    for (int has_gradients = 0; has_gradients < 2; has_gradients++) {
        own_degrees* problem = NULL;
        memo_degrees_plan plan;
        int64_t least, most = 0;
        model.data_bandwidth_bytes_per_s = has_gradients ? 3e9 : 0;
        CHECK_OK(degrees_problem_from_model(&model, &problem, &error));
        perturb(problem, share);
        problem->memory_bytes = 1;
        CHECK_IS(memo_degrees_solve(problem, 0, planned, &plan, &error), ==,
                 MEMO_STATUS_INFEASIBLE);
        least = atoll(strstr(error.message, "needs ") + 6);
        for (int k = 0; k < 6; k += memo_test_all() ? 1 : 2) {
            problem->memory_bytes = k ? least + (most - least) * (5 - k) / 5 : 0;
            CHECK_OK(memo_degrees_solve(problem, 600, planned, &plan, &error));
            if (k == 0) most = plan.memory_bytes;
            CHECK_IS(plan.step_s, <=, plan.lower_bound_s * (1 + gap));
            CHECK(gap > 0 || plan.proof == MEMO_PROOF_OPTIMAL);
            CHECK(!problem->memory_bytes || plan.memory_bytes <= problem->memory_bytes);
        }
    }
}

TEST(blocks_48_degrees_3) {
    solve_sizes(24, 3, 0, 0);
    solve_sizes(24, 3, 0.01, 0);
    solve_sizes(24, 3, 0.03, 0);
}
TEST(blocks_128_degrees_4) {
    solve_sizes(64, 4, 0, 0);
    solve_sizes(64, 4, 0.03, 0);
}
TEST(blocks_512_and_more) {
#ifdef MEMO_TEST_VALGRIND
    SKIP("minutes under valgrind; make test runs it");
#else
    solve_sizes(256, 5, 0.03, 1e-4);
    solve_sizes(1024, 4, 0.03, 1e-4);
#endif
}

/* Many blocks of few kinds: whole ranges of blocks change their degree at the same price on
 * memory. */
TEST(blocks_of_few_kinds) {
    for (int n_kinds = memo_test_all() ? 1 : 2; n_kinds <= 3; n_kinds++) {
        memo_degrees_plan plan;
        int32_t n = 4096, d = 5;
        int64_t least = 0, most = 0;
        own_degrees* problem = degrees_problem_create(n, powers, d);
        for (int32_t p = 0; p < d; p++) {
            for (int32_t q = p + 1; q < d; q++) problem->gather_s[p][q] = memo_test_real();
            for (int32_t i = 0; i < n; i++) {
                memo_degree_cost* c = &problem->costs[i * d + p];
                double degree = powers[p];
                if (i >= n_kinds) {
                    *c = problem->costs[i % n_kinds * d + p];
                    continue;
                }
                c->forward_s = 1 + memo_test_real() / 10;
                c->forward_collective_s = c->backward_collective_s = p * (1 + memo_test_real()) / 4;
                c->backward_s = 2 * c->forward_s;
                c->state_bytes = (int64_t)(1e8 * (1 + memo_test_real() / 10) / degree);
                c->runtime_bytes = (int64_t)(1e8 * (1 + 4 / degree));
            }
        }
        for (int32_t i = 0; i < n; i++) {
            least += problem->costs[i * d + d - 1].state_bytes;
            most += problem->costs[i * d].state_bytes;
        }
        problem->memory_bytes = (least + most) / 2;
        CHECK_OK(memo_degrees_solve(problem, 600, planned, &plan, &error));
        CHECK_IS(plan.step_s, <=, plan.lower_bound_s * 1.0005);
        CHECK_IS(plan.memory_bytes, <=, problem->memory_bytes);
    }
}

/* Only the last degree fits, by one byte of 2^60. */
TEST(bytes_are_compared_exactly) {
    const int64_t most = (int64_t)1 << 60;
    memo_degrees_plan plan;
    own_degrees* problem = degrees_problem_create(1, powers, 3);
    problem->costs[0].runtime_bytes = most + 5;
    problem->costs[1].state_bytes = most + 1;
    problem->costs[2].state_bytes = most;
    problem->memory_bytes = most;
    CHECK_OK(memo_degrees_solve(problem, 0, planned, &plan, &error));
    CHECK(planned[0] == powers[2] && plan.memory_bytes == most);
}

TEST(boundary_is_pinned) {
    degrees_model model = model_of(6, 2048, 3);
    own_degrees* problem = NULL;
    memo_degrees_plan plan;
    double step_s;
    int64_t bytes;
    int32_t uniform[12], i;
    CHECK_OK(degrees_problem_from_model(&model, &problem, &error));
    for (i = 0; i < 12; i++) uniform[i] = 4;
    CHECK_OK(memo_degrees_evaluate(problem, uniform, &step_s, &bytes, &error));
    problem->memory_bytes = bytes;
    CHECK_OK(memo_degrees_solve(problem, 0, planned, &plan, &error));
    CHECK_IS(plan.step_s, <=, step_s * (1 + 1e-12));
    problem->boundary_degree = 3;
    CHECK_IS(memo_degrees_solve(problem, 0, planned, &plan, &error), ==,
             MEMO_STATUS_INVALID_ARGUMENT);
    problem->boundary_degree = 4;
    problem->memory_bytes = 1000;
    CHECK_ERROR(memo_degrees_solve(problem, 0, planned, &plan, &error), INFEASIBLE,
                "the smallest plan needs");
}

/* ---- the planner's cost against the simulated schedule ----
 *
 * A plan is runs of blocks of one degree.  Inside a run the schedule overlaps; between runs
 * everything waits, and the rows are gathered in one direction. */

static double simulated(const memo_degrees_problem* problem, const int32_t* plan) {
    double total = 0;
    int32_t end, d = problem->n_degrees;
    for (int32_t begin = 0; begin < problem->n_blocks; begin = end) {
        memo_block_times times[2 * 64];
        for (end = begin; end < problem->n_blocks && plan[end] == plan[begin]; end++) {
            const memo_degree_cost* c = &problem->costs[end * d + plan[end]];
            for (int s = 0; s < 2; s++) {
                memo_block_times* t = &times[2 * (end - begin) + s];
                memset(t, 0, sizeof *t);
                t->forward_s = c->forward_s;
                t->backward_s = c->backward_s;
                t->reduce_s = c->forward_collective_s;
            }
        }
        memo_blocks_schedule_desc desc = {
            .order = MEMO_BLOCKS_FINE, .n_blocks = end - begin, .blocks_per_layer = 1};
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            own_schedule* schedule = NULL;
            CHECK_OK(memo_blocks_generate(&desc, times, 1 << is_backward, &schedule, &error));
            own_times* simulation = times_of(schedule);
            total += simulation->makespan_s;
        }
        if (end < problem->n_blocks) total += 2 * gather_of(problem, plan[end - 1], plan[end]);
    }
    for (int32_t i = 0; i < d; i++)
        if (problem->degrees[i] == problem->boundary_degree)
            total += 2 * (gather_of(problem, i, plan[0]) +
                          gather_of(problem, i, plan[problem->n_blocks - 1]));
    return total;
}

#define N_PLANS 40

static double rank_of(const double* values, int n, int at) {
    double rank = 0;
    for (int i = 0; i < n; i++)
        rank += values[i] < values[at] ? 1 : values[i] == values[at] ? 0.5 : 0;
    return rank;
}

TEST(ranks_like_the_simulation) {
    double least = 1;
    for (int run = 0; run < 6; run++) {
        degrees_model model = model_of(8 + 4 * (run % 3), run < 3 ? 2048 : 4096, 3);
        own_degrees* problem = NULL;
        double cost[N_PLANS], measured[N_PLANS], sum = 0, a = 0, b = 0, spearman;
        int32_t n = 2 * model.n_layers;
        model.batch = run < 3 ? 128 : 32;
        for (int32_t k = 0; k < 3; k++) /* run after run another balance of computation and links */
            model.bandwidth_bytes_per_s[k] *= run % 2 ? 1 : 3;
        CHECK_OK(degrees_problem_from_model(&model, &problem, &error));
        for (int i = 0; i < N_PLANS; i++) {
            int32_t plan[64];
            int64_t bytes;
            int n_runs = (int)memo_test_int(1, 4); /* of one degree */
            for (int32_t k = 0; k < n; k++)
                plan[k] = k > 0 && memo_test_int(0, n - 1) >= n_runs ? plan[k - 1]
                                                                     : (int32_t)memo_test_int(0, 2);
            cost[i] = cost_of(problem, plan, &bytes);
            measured[i] = simulated(problem, plan);
        }
        for (int i = 0; i < N_PLANS; i++) {
            double x = rank_of(cost, N_PLANS, i) - N_PLANS / 2.0,
                   y = rank_of(measured, N_PLANS, i) - N_PLANS / 2.0;
            sum += x * y;
            a += x * x;
            b += y * y;
        }
        spearman = sum / sqrt(a * b);
        printf("# %d blocks, hidden %d: Spearman %.3f over %d plans\n", (int)n, (int)model.hidden,
               spearman, (int)N_PLANS);
        if (spearman < least) least = spearman;
    }
    CHECK_CASE(least >= 0.85, "Spearman %.3f", least);
}

/* ---- files ---- */

static const char profile[] = "# two blocks\n"
                              "blocks 2\n"
                              "degrees 2 4\n"
                              "memory 5000\n"
                              "gather 2 4 100\n"
                              "block 0 2 1000 500 3000 500 0 100 200 300\n"
                              "block 0 4 1000 900 3000 900 0 50 400 300\n"
                              "block 1 2 2000 500 6000 500 0 100 200 300\n"
                              "block 1 4 2000 900 6000 900 0 50 400 300\n";

/* A file with these bytes; its name ends with "p". */
static const char* file_of(const char* bytes, int64_t n_bytes) {
    static char path[250];
    FILE* file = fopen(memo_test_path(path, "p"), "wb");
    CHECK(file && fwrite(bytes, 1, (size_t)n_bytes, file) == (size_t)n_bytes);
    if (file) fclose(file);
    return path;
}

static memo_status parse(const char* text, memo_degrees_problem** problem) {
    return profile_read(file_of(text, (int64_t)strlen(text)), problem, &error);
}

TEST(profile_files) {
    static const struct {
        const char *from, *to, *message;
    } damage[] = {
        {"blocks 2", "blocks 0", "p:2: number of blocks: out of range (0)"},
        {"blocks 2", "block 2", "p:2: unexpected `block`; `blocks` is expected here"},
        {"blocks 2", "blocks 2 3", "p:2: unexpected `3`; the line ends before it"},
        {"blocks 2", "blocks two", "the number of blocks `two` is not a whole number"},
        {"degrees 2 4", "degrees 4 2",
         "p:3: degree 2: not a power of two, or not above the previous degree"},
        {"degrees 2 4", "degrees 2 3", "degree 3"},
        {"degrees 2 4", "degrees", "the degree is missing"},
        {"memory 5000", "memory -1", "p:4: memory: out of range (-1)"},
        {"memory 5000", "boundary 8", "not one of the degrees"},
        {"memory 5000", "gradients 2", "gradients: out of range (2)"},
        {"memory 5000", "blocks 2", "p:4: unexpected `blocks`; `gather` is expected here"},
        {"memory 5000", "memory 5000\nmemory 5000", "p:5: unexpected `memory`; `gather`"},
        {"memory 5000", "gradients 1\nmemory 5000", "p:5: unexpected `memory`; `gather`"},
        {"gather 2 4", "gather 4 2", "p:5: `gather 2 4` is expected here"},
        {"gather 2 4", "gather 2 8", "p:5: `gather 2 4` is expected here"},
        {"gather 2 4 100\n", "", "p:5: unexpected `block`; `gather` is expected here"},
        {"block 1 4 2000 900 6000 900 0 50 400 300\n", "", "a line `block` is missing"},
        {"block 1 4 2000", "block 1 2 2000", "p:9: `block 1 4` is expected here"},
        {"block 1 4 2000", "block 2 4 2000", "p:9: `block 1 4` is expected here"},
        {"block 1 4 2000", "block 1 4 1 1 1 1 1 1 1 1\nblock 2 4 2000",
         "p:10: unexpected `block` after the last block"},
        {"block 1 4 2000", "block 1 4 -2000", "F: out of range (-2000)"},
        {"400 300\nblock 1 2", "400\nblock 1 2", "p:7: the RUNTIME is missing"},
    };
    memo_degrees_problem *problem, *again;
    const char* path = file_of("", 0);
    CHECK_OK(parse(profile, &problem));
    CHECK(problem->n_blocks == 2 && problem->n_degrees == 2 && problem->memory_bytes == 5000);
    CHECK(problem->costs[3].forward_collective_s == 900 * 1e-9 &&
          problem->costs[3].saved_bytes == 400);
    CHECK_IS(problem->gather_s[0][1], ==, 100 * 1e-9);
    problem->boundary_degree = 4;
    problem->has_gradients = 1;
    CHECK_OK(profile_write(problem, path, &error));
    CHECK_OK(profile_read(path, &again, &error));
    CHECK(!memcmp(problem->costs, again->costs, 4 * sizeof(memo_degree_cost)));
    CHECK(again->memory_bytes == 5000 && again->gather_s[0][1] == problem->gather_s[0][1]);
    CHECK(again->boundary_degree == 4 && again->has_gradients == 1);
    MEMO_FREE(again);
    MEMO_FREE(problem);
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        char text[1024];
        const char* at = strstr(profile, damage[i].from);
        CHECK(at != NULL);
        if (!at) continue;
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - profile), profile, damage[i].to,
                 at + strlen(damage[i].from));
        memo_status status = parse(text, &problem);
        CHECK_CASE(status == MEMO_STATUS_FORMAT && strstr(error.message, damage[i].message) &&
                       !problem,
                   "%s -> %s: %s", damage[i].from, damage[i].to, error.message);
        MEMO_FREE(problem);
    }
    CHECK_IS(parse("", &problem), ==, MEMO_STATUS_FORMAT);
    CHECK_IS(parse("memo degrees-profile 2\n", &problem), ==, MEMO_STATUS_VERSION);
    CHECK_IS(parse("memo plan 1\n", &problem), ==, MEMO_STATUS_FORMAT);
    CHECK_IS(profile_read("/nonexistent/p", &problem, &error), ==, MEMO_STATUS_IO);
    remove(path);
}

/* Damage anywhere is an error or another profile, never a crash or a leak. */
TEST(damaged_profiles) {
    int n_read = 0;
    for (int n = 0; n < CASES(20000); n++) {
        static const char bytes[] = "0123456789 -\n#abcdegklmnoprsty";
        char text[sizeof profile];
        memo_degrees_problem* problem;
        int k, changes = (int)memo_test_int(1, 4);
        int64_t length = (int64_t)sizeof profile - 1;
        memcpy(text, profile, sizeof profile);
        for (k = 0; k < changes; k++)
            text[memo_test_int(0, length - 1)] = bytes[memo_test_int(0, (int64_t)sizeof bytes - 2)];
        if (memo_test_int(0, 9) == 0) length = memo_test_int(0, length);
        if (profile_read(file_of(text, length), &problem, &error)) {
            CHECK(error.status == MEMO_STATUS_FORMAT || error.status == MEMO_STATUS_VERSION);
        } else {
            n_read++;
            MEMO_FREE(problem);
        }
    }
    CHECK(n_read > 0 && mallocs_live == 0);
    remove(file_of("", 0));
}

/* Each request for host memory is refused in turn, also for labels. */
TEST(without_memory) {
    for (int n = 0; n < CASES(100) + 1; n++) {
        refusal r = {.can_do_without = 1}; /* a sort can do without its memory */
        memo_degrees_problem* problem = n > 0 ? random_problem() : NULL;
        memo_status status = MEMO_STATUS_OK, expected = MEMO_STATUS_OK; /* with all memory */
        memo_degrees_plan plan;
        if (n > 0) expected = memo_degrees_solve(problem, 600, planned, &plan, &error);
        while (next_refusal(&r, status)) {
            status = n > 0 ? MEMO_STATUS_OK : parse(profile, &problem);
            if (!status) status = memo_degrees_solve(problem, 600, planned, &plan, &error);
            CHECK(status == expected || status == MEMO_STATUS_OUT_OF_HOST_MEMORY);
            if (status == expected) status = MEMO_STATUS_OK;
            if (n == 0) MEMO_FREE(problem);
        }
        if (n > 0) MEMO_FREE(problem);
        CHECK_IS(r.n_failed, >, 0);
        CHECK_IS(mallocs_live, ==, 0);
    }
}

TEST(degree_files) {
    static const int32_t degrees[] = {2, 2, 4, 8};
    static const char* const bad[] = {"block 1 2\n",
                                      "block 0 2\nblock 0 2\n",
                                      "block 0 3\n",
                                      "block 0 2 2\n",
                                      "layer 0 2\n",
                                      "block 0\n",
                                      "",
                                      "memo degrees 1\nblock 0 2\n"};
    int32_t* read = NULL;
    int32_t n = 0, not_power = 6;
    const char* path = file_of("", 0);
    int64_t n_bytes = 0;
    CHECK_OK(memo_degrees_write(degrees, 4, path, &error));
    CHECK_OK(memo_degrees_read(path, &read, &n, &error));
    CHECK(n == 4 && !memcmp(read, degrees, sizeof degrees));
    memo_degrees_free(read);
    own_memory char* text = memo_test_file(path, &n_bytes);
    text[strlen("memo degrees 1\nblock 0 ")] = '4'; /* was 2: the checksum tells */
    CHECK_ERROR(memo_degrees_read(file_of(text, n_bytes), &read, &n, &error), FORMAT, "checksum");
    CHECK_OK(memo_degrees_read(file_of("block 0 1\nblock 1 16\n", 21), &read, &n, &error));
    CHECK(n == 2 && read[1] == 16);
    memo_degrees_free(read);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_CASE(memo_degrees_read(file_of(bad[i], (int64_t)strlen(bad[i])), &read, &n, &error) ==
                       MEMO_STATUS_FORMAT,
                   "%s", bad[i]);
        CHECK(!read && n == 0);
    }
    CHECK_IS(memo_degrees_write(&not_power, 1, path, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(memo_degrees_write(degrees, 0, path, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    remove(path);
}

TEST(refusals) {
    degrees_model model = model_of(2, 64, 3);
    memo_degrees_problem* problem;
    memo_degrees_plan plan;
    model.degrees[2] = 64; /* more than there are devices */
    CHECK_FAILS(degrees_problem_from_model(&model, &problem, &error), INVALID_ARGUMENT);
    model = model_of(2, 64, 3);
    model.flops_per_s = 0;
    CHECK_ERROR(degrees_problem_from_model(&model, &problem, &error), INVALID_ARGUMENT,
                "flops_per_s");
    model = model_of(2, 64, 3);
    CHECK_OK(degrees_problem_from_model(&model, &problem, &error));
    problem->costs[4].forward_s = -1;
    CHECK_ERROR(memo_degrees_solve(problem, 0, planned, &plan, &error), INVALID_ARGUMENT,
                "block 1 at degree 4");
    problem->costs[4].forward_s = 0;
    CHECK_IS(memo_degrees_solve(problem, -1, planned, &plan, &error), ==,
             MEMO_STATUS_INVALID_ARGUMENT);
    problem->degrees[1] = problem->degrees[0];
    CHECK_ERROR(memo_degrees_solve(problem, 0, planned, &plan, &error), INVALID_ARGUMENT,
                "not above the previous degree");
    problem->degrees[1] = 4;
    CHECK_ERROR(memo_degrees_solve(problem, 0, NULL, &plan, &error), INVALID_ARGUMENT,
                "block_degrees: NULL");
    CHECK_ERROR(memo_degrees_evaluate(problem, NULL, &plan.step_s, &plan.memory_bytes, &error),
                INVALID_ARGUMENT, "block_degrees: NULL");
    problem->costs = NULL;
    CHECK_ERROR(memo_degrees_solve(problem, 0, planned, &plan, &error), INVALID_ARGUMENT,
                "degrees.costs: NULL");
    problem->n_blocks = 0;
    CHECK_ERROR(memo_degrees_solve(problem, 0, planned, &plan, &error), INVALID_ARGUMENT,
                "n_blocks");
    MEMO_FREE(problem);
}
