/* plan_problems.h - random problems of offsets, and brute force, for the tests of planners.
 *
 * Include after the implementation of memo_plan.h, owned.h and slow_plan.h. */
#ifndef PLAN_PROBLEMS_H
#define PLAN_PROBLEMS_H

typedef struct features {
    int has_fixed, has_gaps, has_alignment;
} features;

/* Each combination in turn. */
static MEMO_UNUSED features features_of(int k) {
    return (features){.has_fixed = k % 2, .has_gaps = k / 2 % 2, .has_alignment = k / 4 % 2};
}

/* n buffers in about 2n times; fixed ones get places that a greedy plan without them would use, or
 * high ones, so that they never overlap each other. */
static MEMO_UNUSED memo_plan* random_plan(int64_t n, int64_t largest, features with) {
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

static MEMO_UNUSED int64_t rounded(int64_t value, int64_t alignment) {
    if (alignment < 2) return value;
    return (value + alignment - 1) / alignment * alignment;
}

/* The plan of this desc, NULL: the default, is valid. */
static MEMO_UNUSED void solve_valid(memo_plan* plan, const memo_plan_desc* desc, int k) {
    IN_CASE("case %d", k);
    CHECK_OK(memo_plan_solve(plan, desc, &error));
    CHECK_OK(memo_plan_validate(plan, &error));
}

/* The same desc gives the same offsets again, whatever was there before. */
static MEMO_UNUSED void solve_again(memo_plan* plan, const memo_plan_desc* desc, int k) {
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

static MEMO_UNUSED void pose(memo_plan* plan, memoi_problem* problem) {
    CHECK_OK(memo_plan_prepare(plan, &error));
    CHECK_OK(memoi_items_create(plan, 0, problem, &error));
}

/* So many nodes, and no end of time. */
static MEMO_UNUSED memoi_effort effort_of(int64_t n_nodes, uint64_t seed) {
    static const memo_log silent = {NULL, NULL};
    return (memoi_effort){.clock = {.deadline = HUGE_VAL},
                          .nodes_left = n_nodes,
                          .seed = seed,
                          .n_threads = 1,
                          .log = &silent};
}

/* A solution with room for the offsets of the problem's items. */
static MEMO_UNUSED memoi_solution new_solution(const memoi_problem* problem) {
    memoi_solution made;
    memoi_solution_begin(&made, problem,
                         (int64_t*)calloc((size_t)problem->n_items, sizeof(int64_t)));
    CHECK(made.offsets != NULL);
    return made;
}
static MEMO_UNUSED void drop_solution(memoi_solution* solution) { free(solution->offsets); }
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

static MEMO_UNUSED void brute_place(brute* b, int64_t n_placed, int64_t peak) {
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

static MEMO_UNUSED int64_t brute_force(const memo_plan* plan) {
    brute b = {.plan = plan, .best = INT64_MAX};
    for (int64_t i = 0; i < plan->n_buffers; i++)
        for (int64_t j = 0; j < plan->n_buffers; j++)
            b.meets[i][j] = i == j ? 0 : slow_meet_bytes(plan, i, j);
    brute_place(&b, 0, 0);
    return b.best;
}

static MEMO_UNUSED void keep_nodes(void* user, const char* line) {
    long long peak, bound, nodes;
    if (sscanf(line, "search: peak %lld, bound %lld, %lld nodes", &peak, &bound, &nodes) == 3)
        *(long long*)user = nodes;
}

/* A full rectangle, and many small buffers that live later, beside what is left of it; some are
 * aligned. */
static MEMO_UNUSED memo_plan* rectangle_and_others(int k) {
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

#endif
