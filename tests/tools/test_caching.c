/* test_caching.c - the model of PyTorch's caching allocator: cases computed by hand from its rules,
 * and a slow twin. */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#include "memo.h"
#include "tools/caching_model.h"
#include "memo_test.h"

#define MIB ((int64_t)1 << 20)

static memo_error error;

/* A trace of these lines, which are requests in version 1 of the format, without the last line. */
static memo_trace* traced(const char* body) {
    char text[4096];
    memo_trace* trace = NULL;
    int n_lines = 0, n;
    const char* p;
    for (p = body; *p; p++) n_lines += *p == '\n';
    n = snprintf(text, sizeof text, "memo trace 1\n%s", body);
    snprintf(text + n, sizeof text - (size_t)n, "end %d %016llx\n", n_lines,
             (unsigned long long)memob_hash(text, n));
    CHECK_OK(memo_trace_parse(text, (int64_t)strlen(text), "case", &trace, &error));
    return trace;
}

static caching_stats replayed(const char* body, int64_t capacity, int64_t n_iterations,
                              caching_deferral deferral) {
    memo_trace* trace = traced(body);
    caching_stats stats = {0};
    caching_desc desc = {
        .capacity_bytes = capacity, .n_iterations = n_iterations, .deferral = deferral};
    CHECK_OK(caching_replay(trace, &desc, &stats, &error));
    memo_trace_destroy(trace);
    return stats;
}

TEST(sizes_round_as_published) {
    static const struct {
        int64_t bytes, allocated, reserved;
    } cases[] = {{1, 512, 2 * MIB},
                 {512, 512, 2 * MIB},
                 {513, 1024, 2 * MIB},
                 {MIB, MIB, 2 * MIB},
                 {MIB + 1, MIB + 512, 20 * MIB},
                 {10 * MIB - 512, 10 * MIB - 512, 20 * MIB},
                 {10 * MIB, 10 * MIB, 10 * MIB},
                 {10 * MIB + 1, 10 * MIB + 512, 12 * MIB},
                 {11 * MIB - 512, 11 * MIB - 512, 12 * MIB},
                 {11 * MIB, 12 * MIB, 12 * MIB}, /* 1 MiB is left over: not split */
                 {0, 0, 0}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char body[64];
        snprintf(body, sizeof body, "malloc 1 %lld\n", (long long)cases[k].bytes);
        caching_stats s = replayed(body, 0, 1, CACHING_ORDERED);
        CHECK_CASE(s.allocated_bytes == cases[k].allocated && s.reserved_bytes == cases[k].reserved,
                   "%lld bytes: allocated %lld, reserved %lld", (long long)cases[k].bytes,
                   (long long)s.allocated_bytes, (long long)s.reserved_bytes);
    }
}

TEST(best_fit_and_merging) {
    /* 40 and 20 MiB are free; 18 MiB takes the smaller; 40 MiB then fits without a segment. */
    caching_stats s =
        replayed("malloc 1 41943040\nmalloc 2 20971520\nfree 1 41943040\nfree 2 20971520\n"
                 "malloc 3 18874368\nmalloc 4 41943040\n",
                 0, 1, CACHING_ORDERED);
    CHECK(s.reserved_bytes == 60 * MIB && s.n_segments == 2);
    /* Three pieces of one segment, freed out of order, are whole again. */
    s = replayed("malloc 1 62914560\nfree 1 62914560\nmalloc 2 20971520\nmalloc 3 20971520\nmalloc "
                 "4 20971520\n"
                 "free 2 20971520\nfree 4 20971520\nfree 3 20971520\nmalloc 5 62914560\n",
                 0, 1, CACHING_ORDERED);
    CHECK(s.reserved_bytes == 60 * MIB && s.n_segments == 1);
    /* Streams do not share. */
    s = replayed("malloc 1 20971520 transient 0\nfree 1 20971520\nmalloc 2 20971520 transient 1\n",
                 0, 1, CACHING_ORDERED);
    CHECK_IS(s.reserved_bytes, ==, 40 * MIB);
}

TEST(retries_and_the_end) {
    static const char body[] =
        "malloc 1 31457280\nfree 1 31457280\nmalloc 2 41943040\nfree 2 41943040\n";
    caching_stats s = replayed(body, 0, 1, CACHING_ORDERED);
    CHECK(s.reserved_bytes == 70 * MIB && s.n_retries == 0);
    s = replayed(body, 60 * MIB, 1, CACHING_ORDERED); /* the 30 MiB must go back first */
    CHECK(s.reserved_bytes == 40 * MIB && s.n_retries == 1 && s.refused_request < 0);
    s = replayed(body, 60 * MIB, 3, CACHING_ORDERED); /* 30 of the 40 MiB from then on */
    CHECK(s.n_retries_first == 1 && s.n_retries == 1 && s.n_retries_last == 0);
    s = replayed(body, 39 * MIB, 1, CACHING_ORDERED);
    CHECK(s.n_retries == 1 && s.refused_request == 2);
    /* A segment with one live byte stays. */
    s = replayed("malloc 1 31457280\nfree 1 31457280\nmalloc 2 2097152\nmalloc 3 41943040\n",
                 60 * MIB, 1, CACHING_ORDERED);
    CHECK(s.n_retries == 1 && s.refused_request == 3);
}

TEST(other_streams_defer_frees) {
    static const char unordered[] =
        "malloc 1 20971520\nuse 1 1\nfree 1 20971520\nmalloc 2 20971520\n";
    static const char ordered[] =
        "malloc 1 20971520\nuse 1 1\nfree 1 20971520\nrecord 0 1\nwait 0 0\nmalloc 2 20971520\n";
    static const char early[] = /* the record comes before the free: it says nothing of the rest */
        "malloc 1 20971520\nuse 1 1\nrecord 0 1\nfree 1 20971520\nwait 0 0\nmalloc 2 20971520\n";
    CHECK_IS(replayed(unordered, 0, 1, CACHING_ORDERED).reserved_bytes, ==, 40 * MIB);
    CHECK_IS(replayed(ordered, 0, 1, CACHING_ORDERED).reserved_bytes, ==, 20 * MIB);
    CHECK_IS(replayed(ordered, 0, 1, CACHING_LATE).reserved_bytes, ==, 40 * MIB);
    CHECK_IS(replayed(early, 0, 1, CACHING_ORDERED).reserved_bytes, ==, 40 * MIB);
    /* A retry waits for all streams. */
    CHECK_IS(replayed(unordered, 30 * MIB, 1, CACHING_LATE).n_retries, ==, 1);
    CHECK_IS(replayed(unordered, 30 * MIB, 1, CACHING_LATE).refused_request, <, 0);
    /* Use on its own stream is no reason to wait. */
    CHECK_IS(replayed("malloc 1 20971520\nuse 1 0\nfree 1 20971520\nmalloc 2 20971520\n", 0, 1,
                      CACHING_LATE)
                 .reserved_bytes,
             ==, 20 * MIB);
}

TEST(iterations_repeat_what_is_marked) {
    static const char body[] =
        "malloc 1 20971520\nmark iteration begin\nmalloc 2 20971520\n"
        "malloc 3 20971520 persistent\nfree 2 20971520\nmark iteration end\nmalloc 4 20971520\n";
    caching_stats s = replayed(body, 0, 4, CACHING_ORDERED);
    CHECK(s.allocated_bytes == 60 * MIB && s.reserved_bytes == 60 * MIB);
}

/* ---- a slow twin: segments as lists of bytes' owners, in units of 512 ------------------------ */

enum { UNIT = 512, MAX_SEGMENTS = 64, SMALL_UNITS = 2048 };

typedef struct twin_segment {
    int n_units, is_small;
    int first[40960]; /* of each unit: the block that it belongs to, or -1 */
} twin_segment;

static twin_segment twin[MAX_SEGMENTS];
static int n_twin;

/* The smallest run of free units that holds n: its segment, or -1. */
static int twin_find(int n, int is_small, int* at, int* run) {
    int best = -1;
    for (int s = 0; s < n_twin; s++) {
        if (twin[s].is_small != is_small) continue;
        for (int i = 0; i < twin[s].n_units;) {
            int k = i;
            while (k < twin[s].n_units && twin[s].first[k] < 0) k++;
            if (k - i >= n && (best < 0 || k - i < *run)) {
                best = s;
                *at = i;
                *run = k - i;
            }
            i = k + 1;
        }
    }
    return best;
}

/* The twin has no blocks: adjacent free units are one.  The model's memory is the same after each
 * merge, except rests that are too small to be split off, which belong to the previous block. */
TEST(slow_twin_agrees) {
    for (int round = 0; round < 60; round++) {
        memo_trace* trace;
        int64_t live[100], n_live = 0, i, reserved = 0, allocated = 0, peak = 0, units_of[100];
        caching_desc desc = {0};
        caching_stats stats = {0};
        CHECK_OK(memo_trace_create(&trace, &error));
        n_twin = 0;
        for (i = 0; i < 60; i++) {
            if (n_live && memo_test_int(0, 2) == 0) {
                int64_t k = memo_test_int(0, n_live - 1);
                for (int s = 0; s < n_twin; s++)
                    for (int u = 0; u < twin[s].n_units; u++)
                        if (twin[s].first[u] == live[k]) twin[s].first[u] = -1;
                allocated -= units_of[live[k]] * UNIT;
                CHECK_OK(memo_trace_free(trace, live[k], &error));
                live[k] = live[--n_live];
            } else {
                int64_t bytes = memo_test_int(1, memo_test_int(0, 1) ? 3 * MIB / 2 : 16 * MIB);
                int n = (int)((bytes + UNIT - 1) / UNIT), is_small = n <= SMALL_UNITS;
                int at = 0, run = 0, s = twin_find(n, is_small, &at, &run), u;
                if (n_twin == MAX_SEGMENTS && s < 0) break;
                if (s < 0) {
                    s = n_twin++;
                    at = 0;
                    run = is_small
                              ? 2 * SMALL_UNITS
                              : (n < 10 * SMALL_UNITS ? 20 * SMALL_UNITS
                                                      : (n + 2 * SMALL_UNITS - 1) /
                                                            (2 * SMALL_UNITS) * (2 * SMALL_UNITS));
                    twin[s].n_units = run;
                    twin[s].is_small = is_small;
                    for (u = 0; u < run; u++) twin[s].first[u] = -1;
                    reserved += (int64_t)run * UNIT;
                }
                if (run - n <= (is_small ? 0 : SMALL_UNITS)) n = run;
                for (u = at; u < at + n; u++) twin[s].first[u] = (int)i;
                units_of[i] = n;
                allocated += (int64_t)n * UNIT;
                if (allocated > peak) peak = allocated;
                CHECK_OK(memo_trace_malloc(trace, i, bytes, MEMO_CLASS_TRANSIENT, 0, &error));
                live[n_live++] = i;
            }
        }
        CHECK_OK(caching_replay(trace, &desc, &stats, &error));
        CHECK_CASE(stats.reserved_bytes == reserved && stats.allocated_bytes == peak &&
                       stats.n_segments == n_twin,
                   "round %d: reserved %lld, twin %lld; allocated %lld, twin %lld", round,
                   (long long)stats.reserved_bytes, (long long)reserved,
                   (long long)stats.allocated_bytes, (long long)peak);
        memo_trace_destroy(trace);
    }
}
