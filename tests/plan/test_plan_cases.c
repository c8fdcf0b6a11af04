/* test_plan_cases.c - many small problems with every feature of a plan.  An independent validator
 * accepts the plan of every planner, or the planner fails with the documented error. */
#include "memo_plan.h"
#include "owned.h"
#include "slow_plan.h"

enum { MOST = 12 };
#define LIMIT ((int64_t)1 << 62)

/* ---- problems -------------------------------------------------------------------------------- */

static int64_t pick(const int64_t* values, int64_t n) { return values[memo_test_int(0, n - 1)]; }

static int64_t random_size(void) {
    static const int64_t huge[] = {LIMIT,     LIMIT - 1, LIMIT / 2,
                                   LIMIT / 4, LIMIT / 8, LIMIT / 16 + 3};
    static const int64_t bad[] = {-1, LIMIT + 1, INT64_MAX, INT64_MIN};
    switch (memo_test_int(0, 49)) {
    case 0: return pick(huge, 6);
    case 1: return pick(huge + 3, 3);
    case 2: return memo_test_int(0, 3) ? 1 : pick(bad, 4);
    case 3:
    case 4:
    case 5: return 0;
    case 6: return memo_test_int(1, (int64_t)1 << 40);
    default: return memo_test_int(1, 40);
    }
}

static int64_t random_alignment(int64_t least) {
    static const int64_t odd[] = {3, -8, (int64_t)1 << 41, 1};
    int64_t k = memo_test_int(0, 60);
    if (k == 0) return pick(odd, 4);
    if (k == 1) return (int64_t)1 << 40;
    if (k < 40) return 0;
    return least << memo_test_int(0, 4);
}

/* Few different times, so that they coincide; sometimes beyond the valid range. */
static memo_plan* random_problem(void) {
    static const int64_t alignments[] = {1, 1, 1, 2, 8, 512};
    memo_plan* plan;
    int64_t n = memo_test_int(0, MOST), n_gaps = memo_test_int(0, 1) * memo_test_int(0, n), i, k;
    int64_t stretch = memo_test_int(0, 30) ? 1 : LIMIT / 16, has_fixed = memo_test_int(0, 1);
    CHECK_OK(memo_plan_create(n, n_gaps, pick(alignments, 6), &plan, &error));
    for (i = 0; i < n; i++) {
        memo_buffer* b = &plan->buffers[i];
        b->id = memo_test_int(0, 20);
        b->size_bytes = random_size();
        b->begin = stretch * memo_test_int(0, 8);
        b->end = b->begin + stretch * memo_test_int(1, 8);
        if (memo_test_int(0, 400) == 0) b->end = b->begin - memo_test_int(0, 1);
        if (memo_test_int(0, 400) == 0) b->begin = -1;
        if (memo_test_int(0, 400) == 0) b->end = LIMIT + memo_test_int(0, 1);
        b->alignment_bytes = random_alignment(plan->alignment_bytes);
        b->stream = (int32_t)(memo_test_int(0, 400) ? memo_test_int(0, 63) : 64);
        b->memory_class = (memo_class)(memo_test_int(0, 400) ? memo_test_int(0, 2) : 3);
        if (has_fixed && memo_test_int(0, 3) == 0) {
            int64_t a = b->alignment_bytes > 0 ? b->alignment_bytes : plan->alignment_bytes;
            b->is_fixed = 1;
            b->offset_bytes = memo_test_int(0, 40) ? memo_test_int(0, 60) / a * a : LIMIT - 512;
            if (memo_test_int(0, 60) == 0) b->offset_bytes = -512;
            if (memo_test_int(0, 60) == 0) b->offset_bytes++;
        }
    }
    for (k = 0; k < n_gaps && n > 0; k++) {
        memo_gap* gap = &plan->gaps[k];
        gap->buffer = memo_test_int(0, 300) ? k : n;
        if (gap->buffer == n) continue;
        const memo_buffer* b = &plan->buffers[gap->buffer];
        gap->begin = b->begin + stretch * memo_test_int(0, 3);
        gap->end = gap->begin + stretch * memo_test_int(memo_test_int(0, 20) ? 1 : 0, 3);
        if (gap->end > b->end && memo_test_int(0, 20)) gap->end = b->end;
        if (gap->begin >= gap->end && memo_test_int(0, 20)) {
            gap->begin = b->begin;
            gap->end = b->end;
        }
    }
    return plan;
}

/* ---- an independent validator ---------------------------------------------------------------- */

static int is_power(int64_t a) {
    for (int64_t p = 1; p <= (int64_t)1 << 40; p *= 2)
        if (a == p) return 1;
    return 0;
}

/* What is wrong with the problem, or NULL. */
static const char* fault_of(const memo_plan* plan) {
    int64_t total = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const memo_buffer* b = &plan->buffers[i];
        if (b->size_bytes < 0 || b->size_bytes > LIMIT) return "size";
        if (b->begin < 0 || b->end > LIMIT || b->begin >= b->end) return "life";
        if (!is_power(slow_alignment(plan, i)) || slow_alignment(plan, i) < plan->alignment_bytes)
            return "alignment";
        if (b->stream < 0 || b->stream > 63) return "stream";
        if ((int)b->memory_class > 2) return "class";
        if (b->is_fixed && (b->offset_bytes < 0 || b->offset_bytes % slow_alignment(plan, i)))
            return "offset";
        int64_t size = slow_size(plan, i);
        if (size > LIMIT - total) return "sum";
        if (b->is_fixed && (b->offset_bytes > LIMIT || size > LIMIT - b->offset_bytes))
            return "top";
        total += size;
    }
    for (int64_t k = 0; k < plan->n_gaps; k++) {
        const memo_gap* gap = &plan->gaps[k];
        if (gap->buffer < 0 || gap->buffer >= plan->n_buffers) return "gap's buffer";
        if (gap->begin >= gap->end || gap->begin < plan->buffers[gap->buffer].begin ||
            gap->end > plan->buffers[gap->buffer].end)
            return "gap";
        for (int64_t i = 0; i < k; i++)
            if (plan->gaps[i].buffer == gap->buffer && plan->gaps[i].begin < gap->end &&
                gap->begin < plan->gaps[i].end)
                return "gaps overlap";
    }
    return NULL;
}

static int fixed_clash(const memo_plan* plan) {
    for (int64_t i = 0; i < plan->n_buffers; i++)
        for (int64_t j = 0; j < i; j++)
            if (plan->buffers[i].is_fixed && plan->buffers[j].is_fixed &&
                slow_share_bytes(plan, i, j) && slow_conflict(plan, i, j))
                return 1;
    return 0;
}

/* May sizes, alignments and fixed offsets together pass 2^62? */
static int may_pass(const memo_plan* plan) {
    double sum = 0, top = 0, widest = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        double size = (double)slow_size(plan, i);
        sum += size;
        if (plan->buffers[i].is_fixed && (double)plan->buffers[i].offset_bytes + size > top)
            top = (double)plan->buffers[i].offset_bytes + size;
        if ((double)slow_alignment(plan, i) > widest) widest = (double)slow_alignment(plan, i);
    }
    return sum + top + widest * (double)(plan->n_buffers + 1) >= 0.999999 * (double)LIMIT;
}

/* What is wrong with the plan, or NULL. */
static const char* plan_fault(const memo_plan* plan) {
    if (plan->proof == MEMO_PROOF_NONE) return "the proof";
    if (plan->proof == MEMO_PROOF_FEASIBLE && plan->peak_bytes == plan->lower_bound_bytes)
        return "the proof is too modest";
    return slow_fault(plan);
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(every_case_is_planned_or_refused) {
    static const memo_plan_engine engines[] = {MEMO_PLAN_ENGINE_AUTO, MEMO_PLAN_ENGINE_GREEDY};
    const int n = memo_test_cases(10000, 20000);
    int n_planned = 0, n_refused = 0, n_infeasible = 0;
    for (int round = 0; round < n; round++) {
        own_plan* plan = random_problem();
        uint64_t fixed_sum = 0;
        IN_CASE("round %d", round);
        const char* fault = fault_of(plan);
        int must_refuse = fault || fixed_clash(plan), may_refuse = !fault && may_pass(plan);
        memo_plan_desc desc = {
            .engine = engines[memo_test_int(0, 1)], .memoi_node_limit = 300, .time_limit_s = 1000};
        if (memo_test_int(0, 2) == 0) desc.capacity_bytes = memo_test_int(1, 200);
        for (int64_t i = 0; i < plan->n_buffers; i++)
            if (plan->buffers[i].is_fixed) fixed_sum += (uint64_t)plan->buffers[i].offset_bytes;
        memo_status status = memo_plan_solve(plan, &desc, &error);
        if (status == MEMO_STATUS_INVALID_ARGUMENT) {
            CHECK_CASE(must_refuse || (may_refuse && strstr(error.message, "2^62")), "refused: %s",
                       error.message);
            n_refused++;
        } else {
            int is_met = desc.capacity_bytes == 0 || plan->peak_bytes <= desc.capacity_bytes;
            const char* wrong = must_refuse ? "it had to be refused" : plan_fault(plan);
            CHECK_CASE(!wrong, "%s%s%s", wrong, fault ? ": " : "", fault ? fault : "");
            CHECK_IS(status, ==, (is_met ? MEMO_STATUS_OK : MEMO_STATUS_INFEASIBLE));
            CHECK_OK(memo_plan_validate(plan, &error));
            for (int64_t i = 0; i < plan->n_buffers; i++)
                if (plan->buffers[i].is_fixed) fixed_sum -= (uint64_t)plan->buffers[i].offset_bytes;
            CHECK_IS(fixed_sum, ==, 0); /* else a fixed buffer has moved */
            n_planned += is_met;
            n_infeasible += !is_met;
        }
    }
    CHECK_IS(n_planned, >, n / 2);
    CHECK_IS(n_refused, >, n / 5);
    CHECK_IS(n_infeasible, >, n / 33);
}
