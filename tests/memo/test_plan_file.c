/* test_plan_file.c - chapter 3 of memo.h: the problem of a trace, preparing, validating, files,
 * pictures. */
#include "scarce.h"
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "extras/memo_look.h"
#include "owned.h"
#include "random_trace.h"
#include "slow_plan.h"
#include <time.h>

static const char* temporary_path(void) {
    static char path[250];
    return memo_test_path(path, "plan");
}

static char* text_of(const memo_plan* plan) {
    CHECK_OK(memo_plan_write(plan, temporary_path(), &error));
    char* text = memo_test_file(temporary_path(), NULL);
    unlink(temporary_path());
    return text;
}

/* --- plans --- */

static void set_peak(memo_plan* plan) {
    plan->peak_bytes = slow_peak(plan);
    plan->proof = MEMO_PROOF_FEASIBLE;
    strcpy(plan->engine, "test");
}

/* The lowest offset at which buffer i overlaps no earlier buffer. */
static void first_fit(memo_plan* plan) {
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        const int64_t alignment = slow_alignment(plan, i);
        if (buffer->is_fixed) continue;
        buffer->offset_bytes = 0;
        for (int64_t k = 0; k < plan->n_buffers; k++) {
            if (k == i || (k > i && !plan->buffers[k].is_fixed) || !slow_collide(plan, i, k))
                continue;
            buffer->offset_bytes += alignment;
            k = -1; /* again from the start */
        }
    }
    set_peak(plan);
}

/* A valid plan: alignments, gaps or holds, empty buffers, sometimes a fixed one. */
static memo_plan* random_plan(int64_t n) {
    static const int64_t alignments[] = {1, 2, 8, 64};
    int64_t i, k, n_gaps = n && memo_test_int(0, 1) ? memo_test_int(0, n) : 0;
    memo_plan* plan = new_plan(n, n_gaps, alignments[memo_test_int(0, 3)]);
    for (i = 0; i < n; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        buffer->id = 100 - i;
        buffer->size_bytes = memo_test_int(0, 4) ? memo_test_int(0, 200) : 0;
        buffer->begin = memo_test_int(0, 30);
        buffer->end = buffer->begin + memo_test_int(1, 12);
        buffer->alignment_bytes =
            memo_test_int(0, 3) ? 0 : plan->alignment_bytes << memo_test_int(0, 2);
        buffer->stream = (int32_t)memo_test_int(0, 3);
        buffer->memory_class = (memo_class)memo_test_int(0, 2);
    }
    if (n && memo_test_int(0, 2) == 0) {
        plan->buffers[0].is_fixed = 1;
        plan->buffers[0].offset_bytes = 256 * memo_test_int(0, 4);
    }
    for (i = 0, k = 0; i < n && k < n_gaps; i++) { /* two gaps in some, none in others */
        const memo_buffer* buffer = &plan->buffers[i];
        int64_t middle = (buffer->begin + buffer->end) / 2;
        if (middle == buffer->begin) continue;
        plan->gaps[k].buffer = i;
        plan->gaps[k].begin = middle;
        plan->gaps[k++].end = buffer->end;
        if (k == n_gaps || memo_test_int(0, 1)) continue;
        plan->gaps[k].buffer = i;
        plan->gaps[k].begin = buffer->begin;
        plan->gaps[k++].end = middle - memo_test_int(0, middle - buffer->begin - 1);
    }
    plan->n_gaps = k;
    if (k == 0 && n > 0) { /* a few lanes, and holds against them, in any order */
        plan->holds = (memo_hold*)malloc((size_t)n * 2 * sizeof(memo_hold));
        for (i = n - 1; i >= 0; i--) {
            const memo_buffer* buffer = &plan->buffers[i];
            int64_t lane = memo_test_int(0, 3);
            plan->buffers[i].lane = (int32_t)memo_test_int(0, 3);
            for (; lane < 4 && plan->n_holds < 2 * n; lane += 2) {
                plan->holds[plan->n_holds].buffer = i;
                plan->holds[plan->n_holds].lane = (int32_t)lane;
                plan->holds[plan->n_holds++].until = buffer->end + memo_test_int(1, 9);
            }
        }
    }
    plan->waits = (memo_wait*)calloc((size_t)n + 1, sizeof(memo_wait));
    for (i = n - 1; i >= 0; i--) { /* waits, in any order */
        memo_wait wait = {memo_test_int(0, n - 1), i, (int32_t)memo_test_int(0, 1),
                          (int32_t)memo_test_int(2, 3), 0.5 * (double)memo_test_int(0, 3)};
        const memo_buffer* freed = &plan->buffers[wait.freed];
        if (freed->end <= plan->buffers[i].begin && freed->memory_class != MEMO_CLASS_PERSISTENT &&
            plan->buffers[i].memory_class != MEMO_CLASS_PERSISTENT)
            plan->waits[plan->n_waits++] = wait;
    }
    CHECK_OK(memo_plan_prepare(plan, &error));
    first_fit(plan);
    return plan;
}

/* --- from a trace --- */

TEST(lifetimes_match_the_trace) {
    own_trace* trace = trace_of_text("malloc 10 100\nmalloc 11 8\nfree 11 8\nmark iteration begin\n"
                                     "malloc 12 512\nmalloc 13 513\nfree 12 512\nmalloc 14 0\n"
                                     "free 13 513\nmark iteration end\n");
    static const int64_t begins[] = {0, 1, 3, 4, 6}, ends[] = {8, 2, 5, 7, 8};
    own_plan* plan = plan_of_trace(trace, 0);
    CHECK(plan->n_buffers == 5 && plan->n_times == 8 && plan->body_begin == 3);
    CHECK(plan->alignment_bytes == 512 && plan->proof == MEMO_PROOF_NONE);
    CHECK_IS(plan->lower_bound_bytes, ==, 512 + 512 + 1024);
    for (int64_t i = 0; i < 5; i++) {
        CHECK_IS(plan->buffers[i].id, ==, 10 + i);
        CHECK(plan->buffers[i].begin == begins[i] && plan->buffers[i].end == ends[i]);
        CHECK_IS((plan->buffers[i].memory_class == MEMO_CLASS_PERSISTENT), ==, (i == 0));
    }
    memo_plan_destroy(plan);
    CHECK_OK(memo_plan_from_trace(trace, 1, &plan, &error));
    CHECK_IS(plan->lower_bound_bytes, ==, 100 + 512 + 513);
    memo_plan_destroy(plan);
    CHECK(memo_plan_from_trace(trace, 48, &plan, &error) == MEMO_STATUS_INVALID_ARGUMENT && !plan);
    trace->requests[0].memory_class = MEMO_CLASS_TRANSIENT;
    trace->requests[5].memory_class = MEMO_CLASS_PERSISTENT; /* in the body: live from the start */
    CHECK_OK(memo_plan_from_trace(trace, 0, &plan, &error));
    CHECK(plan->buffers[1].id == 13 && plan->buffers[1].begin == 0 && plan->buffers[1].end == 8);
}

/* Skeletal: 2, 3 and 5, which a forward requests, and which live when a recomputation or a backward
 * begins. */
TEST(classes_follow_from_marks) {
    own_trace* trace = trace_of_text(
        "malloc 0 8\nmark layer 0 forward begin\nmalloc 1 8\nmalloc 2 8\nmalloc 3 8\nmalloc 4 8\n"
        "free 1 8\nmark layer 0 forward end\nfree 4 8\nmark layer 1 forward begin\nmalloc 5 8\n"
        "malloc 6 8\nmalloc 7 8\nmark layer 1 forward end\nmark layer 1 backward begin\nfree 5 8\n"
        "malloc 8 8\nmark layer 1 backward end\nmark layer 0 recompute begin\nfree 3 8\n"
        "mark layer 0 recompute end\nfree 8 8\nfree 0 8\nfree 2 8\nfree 6 8\n");
    for (int64_t i = 0; i < trace->n_requests; i++)
        if (trace->requests[i].kind == MEMO_REQUEST_MALLOC && trace->requests[i].id == 6)
            trace->requests[i].memory_class = MEMO_CLASS_PERSISTENT;
    own_plan* plan = plan_of_trace(trace, 0);
    CHECK_IS(plan->n_buffers, ==, 9);
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const int64_t id = plan->buffers[i].id; /* 7 is never freed */
        const memo_class found = plan->buffers[i].memory_class;
        CHECK_IS(found == MEMO_CLASS_SKELETAL, ==, id == 2 || id == 3 || id == 5);
        CHECK_IS(found == MEMO_CLASS_PERSISTENT, ==, id == 6);
    }
}

TEST(sums_that_overflow_are_refused) {
    own_trace* trace = trace_of_text("malloc 1 4611686018427387904\nmalloc 2 1\n");
    own_plan* plan = NULL;
    CHECK(memo_plan_from_trace(trace, 1, &plan, &error) == MEMO_STATUS_INVALID_ARGUMENT && !plan);
    CHECK(strstr(error.message, "buffer 1 (id 2)") && strstr(error.message, "2^62"));
    memo_trace_destroy(trace);
    trace = trace_of_text("malloc 1 4611686018427387904\nfree 1 4611686018427387904\n");
    CHECK_OK(memo_plan_from_trace(trace, 0, &plan, &error));
    CHECK_IS(plan->lower_bound_bytes, ==, (int64_t)1 << 62);
}

/* --- several streams --- */

TEST(another_stream_keeps_a_buffer) {
    /* Freed at 1; stream 1 uses it until its record, for which stream 0 waits after the malloc of
     * 2. */
    static const char lines[] = "memo trace 1\nmalloc 1 8\nuse 1 1\nrecord 5 1\nfree 1 8\n"
                                "malloc 2 8\nwait 5 0\nmalloc 3 8\n";
    char text[256];
    snprintf(text, sizeof text, "%send 7 %016llx\n", lines,
             (unsigned long long)memob_hash(lines, (int64_t)strlen(lines)));
    own_trace* trace = trace_of_text(text);
    own_plan* plan = plan_of_trace(trace, 0);
    CHECK(plan->buffers[0].end == 1 && plan->n_holds == 1); /* against the malloc of 2, at time 2 */
    CHECK(plan->holds[0].buffer == 0 && plan->holds[0].lane == 0 && plan->holds[0].until == 3);
    CHECK_IS(plan->n_times, ==, 4);
}

/* --- preparing --- */

TEST(preparing_sorts_and_sums) {
    own_plan* plan = new_plan(3, 2, 0);
    CHECK_IS(plan->alignment_bytes, ==, 1);
    for (int i = 0; i < 3; i++) put_buffer(plan, i, i == 1 ? 2 : 5, 9, 10)->id = 7 + i;
    plan->gaps[0].buffer = 1;
    plan->gaps[0].begin = 7;
    plan->gaps[0].end = 9;
    plan->gaps[1].buffer = 1;
    plan->gaps[1].begin = 4;
    plan->gaps[1].end = 6;
    CHECK_OK(memo_plan_prepare(plan, &error));
    CHECK(plan->buffers[0].id == 8 && plan->buffers[1].id == 7 && plan->buffers[2].id == 9);
    CHECK(plan->gaps[0].buffer == 0 && plan->gaps[0].begin == 4 && plan->gaps[1].begin == 7);
    CHECK(plan->lower_bound_bytes == 30 && plan->n_times == 9);
    plan->gaps[0].end = 7; /* touches the next gap */
    CHECK_OK(memo_plan_prepare(plan, &error));
    CHECK_IS(plan->lower_bound_bytes, ==, 20);
    plan->buffers[2].is_fixed = 1;
    plan->buffers[2].offset_bytes = 100;
    CHECK_OK(memo_plan_prepare(plan, &error));
    CHECK_IS(plan->lower_bound_bytes, ==, 110);
    memo_plan_destroy(NULL);
}

TEST(bad_problems_are_named) {
    memo_plan* plan = (memo_plan*)&plan;
    CHECK(memo_plan_create(-1, 0, 1, &plan, &error) == MEMO_STATUS_INVALID_ARGUMENT && !plan);
    CHECK(memo_plan_create(1, 0, 3, &plan, &error) == MEMO_STATUS_INVALID_ARGUMENT && !plan);
    CHECK_FAILS(memo_plan_create((int64_t)1 << 60, 0, 1, &plan, &error), OUT_OF_HOST_MEMORY);
    for (int i = 0; i < 16; i++) {
        CHECK_OK(memo_plan_create(2, 2, 64, &plan, &error));
        plan->buffers[0].end = plan->buffers[1].end = 10;
        memo_buffer* buffer = &plan->buffers[1];
        plan->gaps[0].buffer = plan->gaps[1].buffer = 1;
        plan->gaps[0].begin = 1;
        plan->gaps[0].end = plan->gaps[1].begin = 3;
        plan->gaps[1].end = 4;
        CHECK_OK(memo_plan_prepare(plan, &error));
        switch (i) {
        case 0: buffer->size_bytes = -1; break;
        case 1: buffer->size_bytes = INT64_MAX; break;
        case 2: buffer->begin = -1; break;
        case 3: buffer->end = 0; break;
        case 4: buffer->end = INT64_MAX; break;
        case 5: buffer->alignment_bytes = 32; break;
        case 6: buffer->alignment_bytes = 96; break;
        case 7: buffer->stream = 64; break;
        case 8: buffer->memory_class = (memo_class)3; break;
        case 9:
            buffer->is_fixed = 1;
            buffer->offset_bytes = 32;
            break;
        case 10:
            buffer->is_fixed = 1;
            buffer->offset_bytes = MEMOB_BYTES_MAX;
            buffer->size_bytes = 1;
            break;
        case 11: plan->gaps[1].begin = 2; break;
        case 12: plan->gaps[1].end = 11; break;
        case 13: plan->gaps[1].end = plan->gaps[1].begin; break;
        case 14: plan->gaps[0].buffer = 2; break;
        case 15: plan->body_begin = 11; break;
        }
        CHECK_CASE(memo_plan_prepare(plan, &error) == MEMO_STATUS_INVALID_ARGUMENT, "case %d", i);
        if (i < 14) CHECK_CASE(strstr(error.message, "buffer 1 (id 0)"), "%s", error.message);
        memo_plan_destroy(plan);
    }
}

/* --- validating --- */

TEST(validator_agrees_with_the_slow_one) {
    int n_valid = 0, n_invalid = 0;
    for (int round = 0; round < 400; round++) {
        own_plan* plan = random_plan(memo_test_int(0, 25));
        CHECK(!slow_fault(plan));
        CHECK_OK(memo_plan_validate(plan, &error));
        for (int k = 0; k < 6 && plan->n_buffers > 0; k++) {
            memo_buffer* buffer = &plan->buffers[memo_test_int(0, plan->n_buffers - 1)];
            memo_buffer saved = *buffer;
            if (buffer->is_fixed) continue;
            buffer->offset_bytes =
                plan->alignment_bytes * memo_test_int(0, plan->peak_bytes / plan->alignment_bytes);
            if (k == 0) buffer->offset_bytes += memo_test_int(-1, 1);
            if (k == 1) buffer->size_bytes += memo_test_int(0, 100);
            if (k != 2) set_peak(plan);
            if (k == 3) plan->lower_bound_bytes += memo_test_int(0, 1);
            int expected = !slow_fault(plan);
            int found = memo_plan_validate(plan, &error) == MEMO_STATUS_OK;
            CHECK_CASE(expected == found, "round %d: %s", round, error.message);
            n_valid += expected;
            n_invalid += !expected;
            *buffer = saved;
            CHECK_OK(memo_plan_prepare(plan, &error));
            set_peak(plan);
        }
    }
    CHECK(n_valid > 100 && n_invalid > 100);
}

TEST(validator_demands_a_plan) {
    own_plan* plan = random_plan(5);
    WITH(plan->proof, MEMO_PROOF_NONE,
         CHECK_ERROR(memo_plan_validate(plan, &error), INVALID_ARGUMENT, "it has no offsets"));
    CHECK_OK(memo_plan_validate(plan, &error));
    plan->n_times = 1;
    CHECK_IS(memo_plan_validate(plan, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
}

/* 100000 buffers, thousands of them live at once, each in its own lane. */
TEST(large_plans_validate_quickly) {
    const int64_t n = 100000, n_lanes = 20000;
    own_plan* plan = new_plan(n, 0, 512);
    for (int64_t i = 0; i < n; i++)
        put_buffer(plan, i, i, i + n_lanes, 512)->offset_bytes = i * 7919 % n_lanes * 512;
    CHECK_OK(memo_plan_prepare(plan, &error));
    set_peak(plan);
    CHECK_IS(plan->peak_bytes, ==, plan->lower_bound_bytes);
    clock_t start = clock();
    CHECK_OK(memo_plan_validate(plan, &error));
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    CHECK_CASE(seconds < 2, "%g s", seconds); /* some 0.1 without a sanitizer */
    plan->buffers[n / 2].size_bytes++;
    CHECK_IS(memo_plan_validate(plan, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
}

/* --- files --- */

TEST(plans_make_the_round_trip) {
    for (int round = 0; round < 60; round++) {
        own_plan* plan = random_plan(memo_test_int(0, 30));
        own_plan* again = NULL;
        if (round % 3 == 0) plan->proof = MEMO_PROOF_NONE;
        if (round % 4 == 0) plan->engine[0] = 0;
        if (plan->n_waits == 0) plan->body_begin = plan->n_times / 2;
        CHECK_OK(memo_plan_write(plan, temporary_path(), &error));
        CHECK_OK(memo_plan_read(temporary_path(), &again, &error));
        own_memory char* first = text_of(plan);
        if (again) {
            CHECK(again->n_buffers == plan->n_buffers && again->n_gaps == plan->n_gaps);
            CHECK_IS(again->n_holds, ==, plan->n_holds);
            CHECK(again->body_begin == plan->body_begin && again->n_times == plan->n_times);
            CHECK(again->proof == plan->proof && strcmp(again->engine, plan->engine) == 0);
            CHECK_IS(memcmp(again->gaps, plan->gaps, (size_t)plan->n_gaps * sizeof(memo_gap)), ==,
                     0);
            CHECK_IS(again->n_waits, ==, plan->n_waits);
            own_memory char* second = text_of(again);
            CHECK_IS(strcmp(first, second), ==, 0);
        }
    }
}

static memo_status parse(const char* text, int64_t n_bytes, memo_plan** plan) {
    memob_reader reader;
    *plan = NULL;
    CHECK_OK(memob_reader_init(&reader, text, n_bytes, "p", &error));
    return memoi_plan_parse(&reader, plan, &error);
}

static void refuses(const char* lines, int64_t count, int64_t line, const char* reason) {
    char text[2048];
    memo_plan* plan = (memo_plan*)&plan;
    int length = snprintf(text, sizeof text, "memo plan 1\n%s", lines);
    snprintf(text + length, sizeof text - (size_t)length, "end %lld %016llx\n", (long long)count,
             (unsigned long long)memob_hash(text, length));
    CHECK_CASE(parse(text, (int64_t)strlen(text), &plan) == MEMO_STATUS_FORMAT && !plan, "%s",
               reason);
    CHECK_CASE(strstr(error.message, reason), "%s: \"%s\"", reason, error.message);
    CHECK_CASE(error.line == line, "%s: line %lld", reason, (long long)error.line);
}

/* As a word it would be written shorter than it was read. */
static void engine_with_a_0_byte_is_refused(void) {
    const char lines[] = "memo plan 1\nalignment 1\ntimes 4\nbody 0\npeak 0\nbound 0\nproof none\n"
                         "engine a\0b\nbuffers 0\ngaps 0\nholds 0\nwaits 0\n";
    char text[300];
    own_plan* plan = NULL;
    int length = (int)sizeof lines - 1;
    memcpy(text, lines, sizeof lines);
    length += snprintf(text + length, sizeof text - sizeof lines, "end 12 %016llx\n",
                       (unsigned long long)memob_hash(text, length));
    CHECK_IS(parse(text, length, &plan), ==, MEMO_STATUS_FORMAT);
    CHECK_CASE(strstr(error.message, "1 to 15 bytes") && error.line == 8, "%s", error.message);
}

static int64_t count(const char* text, const char* what) {
    int64_t n = 0;
    for (text = strstr(text, what); text; text = strstr(text + 1, what)) n++;
    return n;
}

#define HEAD "alignment 1\ntimes 4\nbody 0\npeak 20\nbound 20\nproof feasible\nengine x\n"

/* The lines about buffers, gaps, holds and waits, each kind announced by its number. */
static void refuses_lines(const char* lines, int64_t line, const char* reason) {
    char text[512];
    snprintf(text, sizeof text, HEAD "buffers %d\ngaps %d\nholds %d\nwaits %d\n%s",
             (int)count(lines, "buffer "), (int)count(lines, "gap "), (int)count(lines, "hold "),
             (int)count(lines, "wait "), lines);
    refuses(text, 12 + count(lines, "\n") - count(lines, "# "), line, reason);
}

TEST(bad_plans_are_named) {
#define ONE "buffer 1 0 3 20 0 0 0 0 0 transient\n"
#define TWO "buffer 1 0 2 20 0 0 0 0 0 transient\nbuffer 2 2 4 20 0 0 0 1 1 transient\n"
    static const struct {
        const char* lines;
        int64_t line;
        const char* reason;
    } cases[] = {
        {"buffer 1 0 4 20 0 0 2 0 0 transient\n", 13, "fixed: out of range (2)"},
        {"buffer 1 0 4 20 0 0 0 99 0 transient\n", 13, "stream: out of range (99)"},
        {"buffer 1 0 4 20 0 0 0 0 0\n", 13, "class is missing"},
        {"buffer 1 4 0 20 0 0 0 0 0 transient\n", 13,
         "not a valid plan: buffer 0 (id 1): its lifetime is empty"},
        {"buffer 1 0 4 10 10 0 0 0 0 transient\n", 13, "lower_bound_bytes: wrong (20)"},
        {"buffer 1 0 5 20 0 0 0 0 0 transient\n", 13, "after the last time"},
        {"buffer 1 0 4 20 0 0 0 0 -1 transient\n", 13, "lane: out of range (-1)"},
        {"# two\nbuffer 1 0 4 10 0 0 0 0 0 transient\nbuffer 2 1 4 10 9 0 0 0 0 transient\n", 15,
         "peak_bytes: wrong (20)"},
        {"# two\nbuffer 1 0 4 11 0 0 0 0 0 transient\nbuffer 2 1 4 10 10 0 0 0 0 transient\n", 15,
         "share bytes"},
        {"buffer 1 1 4 10 0 0 0 0 0 transient\nbuffer 2 0 4 10 10 0 0 0 0 transient\n", 14,
         "it begins before"},
        {ONE "gap 5 1 2\n", 14, "gaps[0].buffer: out of range (5)"},
        {ONE "hold 1 0 4\n", 14, "holds[0].buffer: out of range (1)"},
        {ONE "hold 0 0 3\n", 13, "a hold must end after the lifetime"},
        {ONE "hold 0 1 4\nhold 0 1 4\n", 13, "its holds are not in order"},
        {ONE "gap 0 1 2\nhold 0 0 4\n", 15, "the plan has gaps and 1 holds"},
        {"buffer 1 0 2 20 0 0 0 0 0 transient\nbuffer 2 3 4 10 10 0 0 0 1 transient\nhold 0 1 4\n",
         14, "lane 1 may not reuse the first before time 4"},
        {"buffer 1 0 2 20 0 0 0 0 0 persistent\nbuffer 2 2 4 20 0 0 0 1 1 transient\n"
         "wait 0 1 0 1 0\n",
         15, "a buffer is persistent"},
        {TWO "wait 2 1 0 1 0\n", 15, "a buffer is out of range"},
        {TWO "wait 0 -1 0 1 0\n", 15, "a buffer is out of range"},
        {TWO "wait 1 0 0 1 0\n", 15, "the request comes before the free"},
        {TWO "wait 0 1 1 1 0\n", 15, "streams are equal"},
        {TWO "wait 0 1 0 64 0\n", 15, "to: out of range (64)"},
        {TWO "wait 0 1 0 1 -1\n", 15, "cost"},
        {TWO "wait 0 1 0 1 0\nwait 0 1 0 1 0\n", 16, "waits[1]: not in order"}};
    memo_plan* plan;
    CHECK_IS(parse("memo plan 2\n", 12, &plan), ==, MEMO_STATUS_VERSION);
    CHECK_ERROR(parse("memo trace 1\n", 13, &plan), FORMAT, "`memo plan` was expected");
    CHECK_IS(parse("", 0, &plan), ==, MEMO_STATUS_FORMAT);
    CHECK_ERROR(parse("memo plan 1\n", 12, &plan), FORMAT, "truncated");
    refuses("alignment x\n", 0, 2, "the alignment `x` is not");
    refuses("times 1\n", 0, 2, "unexpected `times`; `alignment` is expected here");
    refuses("alignment 1 1\n", 0, 2, "unexpected `1`");
    refuses("alignment 1\n", 0, 2, "a line `times` is missing");
    refuses("alignment 3\ntimes 4\nbody 0\npeak 0\nbound 0\nproof none\nengine -\nbuffers 0\n"
            "gaps 0\nholds 0\nwaits 0\n",
            12, 12, "power of two");
    refuses("alignment 1\ntimes 4\nbody 0\npeak 0\nbound 0\nproof maybe\n", 0, 7,
            "none, feasible or optimal");
    refuses("alignment 1\ntimes 4\nbody 0\npeak 0\nbound 0\nproof none\nengine "
            "1234567890123456\n",
            0, 8, "1 to 15 bytes");
    engine_with_a_0_byte_is_refused();

    /* Numbers that are not those of the lines. */
    refuses(HEAD "buffers 1000000\ngaps 0\nholds 0\nwaits 0\n", 0, 12, "do not fit");
    refuses(HEAD "buffers -1\ngaps 0\nholds 0\nwaits 0\n", 0, 9, "buffers: out of range (-1)");
    refuses(HEAD "buffers 1\ngaps 0\nholds -1\nwaits 0\n" ONE, 0, 11, "holds: out of range (-1)");
    refuses(HEAD "buffers 1\ngaps 0\nholds 0\nwaits 0\n" ONE, 4, 14, "wrong count");
    refuses(HEAD "buffers 0\ngaps 0\nholds 0\nwaits 0\n" ONE, 12, 13, "more lines than");
    refuses(HEAD "buffers 2\ngaps 0\nholds 0\nwaits 0\n" ONE, 14, 13, "a line `buffer` is missing");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses_lines(cases[i].lines, cases[i].line, cases[i].reason);
}

static int accepts(const char* text, int64_t n_bytes) {
    own_plan* plan = NULL;
    return !parse(text, n_bytes, &plan);
}

TEST(damaged_plans_are_refused) {
    own_plan* plan = random_plan(12);
    own_memory char* text = text_of(plan);
    check_damage(text, accepts);
}

/* With the checksum made right again, damage reaches the parser itself. */
TEST(damage_with_a_right_checksum_is_no_crash) {
    own_plan* plan = random_plan(8);
    memo_plan* again;
    own_memory char *text = text_of(plan), *copy = NULL;
    int64_t n = (int64_t)(strstr(text, "end ") - text);
    copy = (char*)malloc((size_t)n + 80);
    for (int round = 0; round < 4000; round++) {
        memcpy(copy, text, (size_t)n);
        for (int k = (int)memo_test_int(1, 3); k > 0; k--)
            copy[memo_test_int(12, n - 1)] = " \n-0123456789abufxgap"[memo_test_int(0, 19)];
        snprintf(copy + n, 80, "end %d %016llx\n", 10 + 8 + (int)memo_test_int(0, 8),
                 (unsigned long long)memob_hash(copy, n));
        if (parse(copy, (int64_t)strlen(copy), &again) == MEMO_STATUS_OK) {
            if (again->proof != MEMO_PROOF_NONE) CHECK(!slow_fault(again));
            memo_plan_destroy(again);
        }
    }
}

TEST(invalid_plans_are_not_written) {
    memo_plan* plan = random_plan(6);
    plan->peak_bytes++;
    CHECK_IS(memo_plan_write(plan, temporary_path(), &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    CHECK_IS(access(temporary_path(), F_OK), !=, 0);
    memo_plan_destroy(plan);
    CHECK(memo_plan_read("/nowhere/x.plan", &plan, &error) == MEMO_STATUS_IO && !plan);
}

/* --- pictures --- */

static int n_classes(const memo_plan* plan) {
    int is_there[3] = {0, 0, 0};
    for (int64_t i = 0; i < plan->n_buffers; i++) is_there[plan->buffers[i].memory_class] = 1;
    return is_there[0] + is_there[1] + is_there[2];
}

TEST(pictures_are_well_formed) {
    for (int round = 0; round < 40; round++) {
        own_plan* plan = random_plan(memo_test_int(0, 40));
        own_trace* trace =
            trace_of_text("mark layer 0 forward begin\nmalloc 1 8\nmark layer 0 forward "
                          "end\nmark layer 0 backward begin\nmark layer 0 recompute begin\n"
                          "free 1 8\nmark layer 0 backward end\nmark layer 0 forward end\n");
        CHECK_OK(memo_plan_write_svg(plan, round % 2 ? trace : NULL,
                                     round % 3 ? "a < b & \"c\"" : NULL, temporary_path(), &error));
        own_memory char* text = memo_test_file(temporary_path(), NULL);
        CHECK(strncmp(text, "<svg", 4) == 0 && count(text, "</svg>") == 1);
        CHECK_IS(count(text, "<text"), ==, count(text, "</text>"));
        CHECK_IS(count(text, "<title>"), ==, count(text, "</title>"));
        CHECK_IS(count(text, "<g "), ==, count(text, "</g>"));
        /* Without a closing mark: the background, and in the legend each class that there is. */
        CHECK_IS(count(text, "<rect"), ==, count(text, "</rect>") + 1 + n_classes(plan));
        CHECK(count(text, "nan") == 0 && count(text, "inf") == 0 && count(text, "\"-") == 0);
        if (round % 3) CHECK_IS(count(text, "a &lt; b &amp; &quot;c&quot;"), ==, 1);
        CHECK(count(text, ">forward<") == 0 || round % 2);
        CHECK_IS(count(text, "peak"), >=, 2);
    }
    unlink(temporary_path());
}

TEST(pictures_of_large_plans_stay_small) {
    own_plan* plan = new_plan(50000, 0, 512);
    for (int64_t i = 0; i < plan->n_buffers; i++)
        put_buffer(plan, i, i, i + 3, 512)->offset_bytes = i % 3 * 512;
    CHECK_OK(memo_plan_prepare(plan, &error));
    CHECK_FAILS(memo_plan_write_svg(plan, NULL, "x", temporary_path(), &error), INVALID_STATE);
    set_peak(plan);
    CHECK_OK(memo_plan_write_svg(plan, NULL, "x", temporary_path(), &error));
    own_memory char* text = memo_test_file(temporary_path(), NULL);
    CHECK_CASE(strlen(text) < 3000000, "%d bytes", (int)strlen(text));
    unlink(temporary_path());
}

/* Persistent buffers have 99 % of the addresses, a transient one still a part of the picture. */
TEST(pictures_show_buffers_of_a_part_of_the_step) {
    for (int persistent = 0; persistent < 2; persistent++) {
        own_plan* plan = new_plan(2, 0, 1);
        double height = 0;
        for (int64_t i = 0; i < 2; i++)
            put_buffer(plan, i, i, 4 - i, i ? 1000 : 99000)->offset_bytes = i ? 99000 : 0;
        if (persistent) plan->buffers[0].memory_class = MEMO_CLASS_PERSISTENT;
        CHECK_OK(memo_plan_prepare(plan, &error));
        set_peak(plan);
        CHECK_OK(memo_plan_write_svg(plan, NULL, "x", temporary_path(), &error));
        own_memory char* text = memo_test_file(temporary_path(), NULL);
        const char* title = strstr(text, "(1000 bytes)");
        CHECK(title != NULL);
        while (title > text && strncmp(title, "height=", 7)) title--;
        height = strtod(title + 8, NULL);
        CHECK_CASE(persistent ? height > 300 : height < 10, "%g pixels", height);
        CHECK_IS(count(text, ">compressed<"), ==, persistent);
    }
    unlink(temporary_path());
}

/* --- no memory --- */

TEST(running_out_of_memory_is_reported) {
    own_trace* trace = random_trace(100, 3, 1, 0, 0);
    memo_status status = MEMO_STATUS_OK;
    refusal r = {.can_do_without = 1};
    while (next_refusal(&r, status)) {
        own_plan* plan = NULL;
        own_plan* again = NULL;
        status = memo_plan_from_trace(trace, 0, &plan, &error);
        if (!status) first_fit(plan);
        if (!status) status = memo_plan_write(plan, temporary_path(), &error);
        if (!status) status = memo_plan_read(temporary_path(), &again, &error);
        if (!status) status = memo_plan_write_svg(plan, trace, "x", temporary_path(), &error);
    }
    CHECK_IS(r.n_failed, >=, 20);
    unlink(temporary_path());
}
