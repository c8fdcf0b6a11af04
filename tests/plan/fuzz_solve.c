/* fuzz_solve.c - gives any bytes to the planning tool as a trace or a CSV: they are refused with a
 * message, or planned, and every validator accepts the plan.
 *
 * make -f .ci/checks.mk fuzz runs it with clang's libFuzzer; tests/memo/test_corpus.c replays the inputs that were
 * found. */
#define main plan_trace_main /* the tool's readers parse the files of users */
#include "tools/plan_trace.c"
#undef main
#include "fuzz.h"

static void fuzz_engine(input* in, memo_plan_engine engine, int64_t capacity) {
    memo_plan_desc desc = {.engine = engine,
                           .capacity_bytes = capacity,
                           .memoi_node_limit = 200,
                           .time_limit_s = 1000};
    memo_status status = memo_plan_solve(in->plan, &desc, &fuzz_error);
    if (status == MEMO_STATUS_OK || status == MEMO_STATUS_INFEASIBLE) {
        FUZZ_CHECK(memo_plan_validate(in->plan, &fuzz_error) == MEMO_STATUS_OK);
        FUZZ_CHECK((status == MEMO_STATUS_INFEASIBLE) ==
                   (capacity > 0 && in->plan->peak_bytes > capacity));
    } else { /* prepared: only fixed places, and sums that a planner makes, can still be refused */
        FUZZ_CHECK(status == MEMO_STATUS_INVALID_ARGUMENT);
        FUZZ_CHECK(strstr(fuzz_error.message, "share bytes") || strstr(fuzz_error.message, "2^62"));
    }
}

static void fuzz_use(input* in) {
    caching_stats stats;
    memo_text text = {0};
    if (memo_plan_prepare(in->plan, &fuzz_error)) {
        FUZZ_CHECK(fuzz_error.status == MEMO_STATUS_INVALID_ARGUMENT);
        FUZZ_CHECK(memo_plan_solve(in->plan, NULL, &fuzz_error) == MEMO_STATUS_INVALID_ARGUMENT);
        return;
    }
    fuzz_n_accepted++;
    fuzz_engine(in, MEMO_PLAN_ENGINE_GREEDY, 0);
    fuzz_engine(in, MEMO_PLAN_ENGINE_AUTO, in->plan->lower_bound_bytes);
    FUZZ_CHECK(put_snapshot(in, &text, &fuzz_error) == MEMO_STATUS_OK && !text.failed);
    memo_text_free(&text);
    if (!in->trace) return;
    FUZZ_CHECK(memo_plan_check(in->plan, in->trace, &fuzz_error) == MEMO_STATUS_OK);
    caching_desc desc = {.n_iterations = 2};
    FUZZ_CHECK(caching_replay(in->trace, &desc, &stats, &fuzz_error) == MEMO_STATUS_OK);
    FUZZ_CHECK(stats.allocated_bytes <= stats.reserved_bytes);
    desc.capacity_bytes = stats.reserved_bytes - stats.reserved_bytes / 8;
    if (desc.capacity_bytes)
        FUZZ_CHECK(caching_replay(in->trace, &desc, &stats, &fuzz_error) == MEMO_STATUS_OK &&
                   stats.reserved_bytes <= desc.capacity_bytes);
}

static void fuzz_solve_text(const char* text, int64_t n_bytes) {
    input in = {.text = (char*)malloc((size_t)n_bytes + 1)};
    FUZZ_CHECK(in.text != NULL);
    if (n_bytes) memcpy(in.text, text, (size_t)n_bytes);
    in.text[n_bytes] = 0;
    in.n_bytes = n_bytes;
    memo_status status = parse_input("input", &in, 1, &fuzz_error);
    if (status)
        FUZZ_CHECK(fuzz_error.status == status &&
                   strlen(fuzz_error.message) < sizeof fuzz_error.message);
    else
        fuzz_use(&in);
    close_input(&in);
}

static void fuzz_solve(const uint8_t* data, size_t size) {
    fuzz_text("memo trace 1\n", 0, fuzz_solve_text, data, size);
}

FUZZ_TARGET(fuzz_solve)
