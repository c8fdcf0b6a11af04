/* test_bilevel.c - the bi-level planner: layers are found as by a slow reference, plans are valid
 * for every trace, and equal layers get plans equal to the search's. */
#include "scarce.h"

#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "tools/trace_layers.h"
#include "owned.h"
#include "slow_plan.h"

/* ---- layered traces -------------------------------------------------------------------------- */

typedef struct shape {
    int n_layers;
    int n_pieces;   /* local buffers of a phase: a full rectangle, cut */
    int n_kept;     /* from a layer's forward to its backward */
    int has_marks;  /* 2: a recomputation too, inside the backward, its end not marked */
    int odd_layer;  /* has other sizes; -1: none */
    int n_zero;     /* requests of no bytes in each phase */
    uint64_t style; /* of the layers */
} shape;

static void mark(memo_trace* trace, const shape* s, int layer, const char* what) {
    char text[64];
    if (!s->has_marks) return;
    snprintf(text, sizeof text, "layer %d %s", layer, what);
    CHECK_OK(memo_trace_mark(trace, text, &error));
}

static void request(memo_trace* trace, int64_t id, int64_t size_bytes) {
    CHECK_OK(memo_trace_malloc(trace, id, size_bytes, MEMO_CLASS_TRANSIENT, 0, &error));
}
static void release(memo_trace* trace, int64_t id) { CHECK_OK(memo_trace_free(trace, id, &error)); }

enum { KEPT = 1000000 }; /* first id of the buffers that a layer keeps */

/* One phase: its pieces, and in between what is kept begins (forward) or ends (backward). */
static void phase(memo_trace* trace, const shape* s, int layer, int is_backward) {
    memo_buffer pieces[64];
    int64_t base = trace->n_requests;
    const uint64_t state = memo_test.state;
    memset(pieces, 0, sizeof pieces);
    memo_test.state = s->style + (uint64_t)is_backward + (layer == s->odd_layer ? 77 : 0);
    cut_rectangle(pieces, s->n_pieces, 1000, 1); /* equal layers equally */
    memo_test.state = state;
    mark(trace, s, layer, is_backward ? "backward begin" : "forward begin");
    if (is_backward && s->has_marks == 2) mark(trace, s, layer, "recompute begin");
    for (int64_t time = 0; time <= 4 * s->n_pieces; time++) {
        for (int64_t k = 0; k < s->n_pieces; k++)
            if (pieces[k].end == time) release(trace, base + k);
        for (int64_t k = 0; k < s->n_pieces; k++)
            if (pieces[k].begin == time) request(trace, base + k, 512 * pieces[k].size_bytes);
        if (time < s->n_kept && !is_backward)
            request(trace, KEPT + 100 * layer + time, 512 * (100 + 10 * time + layer * 0));
        if (time < s->n_kept && is_backward) release(trace, KEPT + 100 * layer + time);
    }
    for (int64_t k = 0; k < s->n_zero; k++) {
        request(trace, base + 100 + k, 0);
        release(trace, base + 100 + k);
    }
    mark(trace, s, layer, is_backward ? "backward end" : "forward end");
}

static memo_trace* layered(shape s) {
    memo_trace* trace = new_trace();
    request(trace, -1, 512 * 300); /* the embedding */
    for (int layer = 0; layer < s.n_layers; layer++) phase(trace, &s, layer, 0);
    request(trace, -2, 512 * 700); /* the loss */
    release(trace, -2);
    for (int layer = s.n_layers - 1; layer >= 0; layer--) phase(trace, &s, layer, 1);
    release(trace, -1);
    return trace;
}

static shape random_shape(void) {
    shape s;
    s.n_layers = (int)memo_test_int(1, 12);
    s.n_pieces = (int)memo_test_int(1, 20);
    s.n_kept = (int)memo_test_int(0, 4);
    s.has_marks = (int)memo_test_int(0, 2);
    s.odd_layer = (int)memo_test_int(-s.n_layers, s.n_layers - 1);
    s.n_zero = (int)memo_test_int(0, 3);
    s.style = memo_test_random();
    return s;
}

/* ---- helpers --------------------------------------------------------------------------------- */

/* Windows, groups and kinds alone. */
static void find_layers(memoi_bilevel* bilevel, memo_plan* plan, const memo_trace* trace) {
    CHECK(memoi_bilevel_create(bilevel, plan));
    memoi_bilevel_windows(bilevel, trace);
    memoi_bilevel_group(bilevel, INT64_MAX);
    memoi_bilevel_find_kinds(bilevel);
}

/* The peak of the two levels alone, without a flat plan; -1 if nothing repeats. */
static int64_t bilevel_peak(memo_plan* plan, const memo_trace* trace, int64_t nodes) {
    static const memo_log silent = {NULL, NULL};
    own_problem problem;
    memoi_solution best;
    int64_t peak = -1;
    CHECK_OK(memo_plan_prepare(plan, &error));
    CHECK_OK(memoi_items_create(plan, 0, &problem, &error));
    memoi_effort effort = {.clock = {.deadline = memob_now_s() + 1000},
                           .nodes_left = nodes,
                           .n_threads = 1,
                           .log = &silent};
    int32_t is_open;
    memoi_solution_begin(&best, &problem, (int64_t*)memob_calloc(problem.n_items, sizeof(int64_t)));
    CHECK_OK(memoi_bilevel_solve(plan, trace, &problem, problem.lower_bound, nodes, &effort,
                                 memo_plan_solve, &best, &is_open, &error));
    if (best.peak < INT64_MAX) {
        peak = best.peak * problem.unit_bytes;
        memoi_plan_store(plan, &problem, &best, "bilevel");
        CHECK_OK(memo_plan_validate(plan, &error));
        CHECK(plan->peak_bytes >= peak && plan->peak_bytes >= plan->lower_bound_bytes);
        for (int64_t i = 0; i < plan->n_buffers; i++)
            if (!plan->buffers[i].is_fixed) plan->buffers[i].offset_bytes = 0;
    }
    MEMO_FREE(best.offsets);
    return peak;
}

static void plan_with(memo_plan* plan, const memo_trace* trace, memo_plan_engine engine,
                      int64_t nodes) {
    memo_plan_desc desc = {
        .engine = engine, .trace = trace, .memoi_node_limit = nodes, .time_limit_s = 1000};
    CHECK_OK(memo_plan_solve(plan, &desc, &error));
    CHECK_CASE(memo_plan_validate(plan, &error) == MEMO_STATUS_OK, "%s: %s", plan->engine,
               error.message);
}

/* ---- finding layers -------------------------------------------------------------------------- */

static int meet(const memo_buffer* a, const memo_buffer* b) {
    return a->begin < b->end && b->begin < a->end;
}

/* Every pair of members meets in both groups or in neither, and sizes are the same. */
static int alike_by_pairs(const memoi_bilevel* bilevel, const memoi_group* a,
                          const memoi_group* b) {
    const memo_buffer* buffers = bilevel->plan->buffers;
    if (a->n != b->n) return 0;
    for (int64_t k = 0; k < a->n; k++) {
        const memo_buffer* x = &buffers[bilevel->members[a->first + k]];
        const memo_buffer* y = &buffers[bilevel->members[b->first + k]];
        if (x->size_bytes != y->size_bytes || x->alignment_bytes != y->alignment_bytes) return 0;
        for (int64_t l = 0; l < a->n; l++)
            if (meet(x, &buffers[bilevel->members[a->first + l]]) !=
                meet(y, &buffers[bilevel->members[b->first + l]]))
                return 0;
    }
    return 1;
}

static int64_t group_of(const memoi_bilevel* bilevel, int64_t buffer) {
    for (int64_t g = 0; g < bilevel->n_groups; g++)
        for (int64_t k = 0; k < bilevel->groups[g].n; k++)
            if (bilevel->members[bilevel->groups[g].first + k] == buffer) return g;
    return -1;
}

/* Members lie in a window; locals that overlap belong to one group. */
static void check_groups(const memoi_bilevel* bilevel) {
    const memo_plan* plan = bilevel->plan;
    for (int64_t w = 1; w < bilevel->n_windows; w++)
        CHECK_IS(bilevel->windows[w - 1].end, <=, bilevel->windows[w].begin);
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const memo_buffer* a = &plan->buffers[i];
        int64_t group = group_of(bilevel, i), local = -1, meets = 0;
        for (int64_t w = 0; w < bilevel->n_windows && a->size_bytes && !a->is_fixed; w++)
            if (bilevel->windows[w].begin <= a->begin && a->end <= bilevel->windows[w].end)
                local = w;
        for (int64_t j = 0; j < plan->n_buffers && local >= 0; j++) {
            const memo_buffer* b = &plan->buffers[j];
            if (i == j || !b->size_bytes || b->is_fixed || !meet(a, b) ||
                b->begin < bilevel->windows[local].begin || b->end > bilevel->windows[local].end)
                continue;
            meets = 1;
            CHECK(group >= 0 && group_of(bilevel, j) == group);
        }
        CHECK_IS(meets, ==, (group >= 0));
    }
    for (int64_t g = 0; g < bilevel->n_groups; g++)
        CHECK(alike_by_pairs(bilevel, &bilevel->groups[g],
                             &bilevel->groups[bilevel->groups[g].kind]));
}

TEST(groups_are_what_a_slow_search_finds) {
    for (int round = 0; round < 60; round++) {
        own_trace* trace = layered(random_shape());
        own_plan* plan = plan_of_trace(trace, 1);
        memoi_bilevel bilevel;
        find_layers(&bilevel, plan, trace);
        check_groups(&bilevel);
        memob_arrays_free(&bilevel.arrays);
    }
}

TEST(kinds_do_not_grow_with_layers) {
    for (int marks = 1; marks <= 2; marks++) {
        int64_t n_kinds = 0, n_groups = 0;
        for (int n_layers = 8; n_layers <= 256; n_layers *= 2) {
            shape s = {0, 12, 3, 0, -1, 1, 5};
            memoi_bilevel bilevel;
            s.n_layers = n_layers;
            s.has_marks = marks;
            own_trace* trace = layered(s);
            own_plan* plan = plan_of_trace(trace, 1);
            find_layers(&bilevel, plan, trace);
            if (n_kinds == 0) n_kinds = bilevel.n_kinds;
            IN_CASE("%d layers, marks %d", n_layers, marks);
            CHECK_IS(bilevel.n_kinds, ==, n_kinds);
            CHECK_IS(n_kinds, >, 1);
            CHECK(n_groups == 0 || bilevel.n_groups > 2 * n_groups - 8);
            n_groups = bilevel.n_groups;
            memob_arrays_free(&bilevel.arrays);
        }
    }
}

/* The first and the last layer may differ too: their neighbors do not matter. */
TEST(a_differing_layer_is_a_kind_of_its_own) {
    int64_t n_kinds = 0;
    for (int odd = -1; odd < 6; odd++) {
        shape s = {6, 14, 2, 1, 0, 0, 11};
        memoi_bilevel bilevel;
        int64_t n_firsts = 0;
        s.odd_layer = odd;
        own_trace* trace = layered(s);
        own_plan* plan = plan_of_trace(trace, 1);
        find_layers(&bilevel, plan, trace);
        if (odd < 0) n_kinds = bilevel.n_kinds;
        for (int64_t g = 0; g < bilevel.n_groups; g++) n_firsts += bilevel.groups[g].kind == g;
        CHECK(n_firsts == bilevel.n_kinds && bilevel.n_windows == 12);
        CHECK_CASE(odd < 0 ? n_kinds == bilevel.n_groups / 6 : bilevel.n_kinds > n_kinds,
                   "odd layer %d: %lld groups of %lld kinds", odd, (long long)bilevel.n_groups,
                   (long long)bilevel.n_kinds);
        memob_arrays_free(&bilevel.arrays);
        CHECK_IS(bilevel_peak(plan, trace, 1 << 20), ==, plan->lower_bound_bytes);
    }
}

/* Marks in every arrangement cut disjoint windows, and the expected ones. */
TEST(marks_may_nest_and_lack_ends) {
    static const struct {
        const char* marks[8];
        int64_t windows[4][2]; /* a request after each mark */
    } cases[] = {
        {{"layer 0 forward begin", "layer 0 forward end"}, {{0, 1}}},
        {{"layer 0 forward begin", "layer 0 recompute begin", "layer 0 forward end"}, {{0, 2}}},
        {{"layer 3 backward begin", "layer 3 recompute begin", "layer 3 recompute end",
          "layer 3 backward end"},
         {{0, 3}}},
        {{"layer 3 recompute begin", "layer 3 recompute end", "layer 3 backward begin",
          "layer 3 backward end"},
         {{0, 1}, {2, 3}}},
        {{"layer 3 recompute begin", "layer 3 backward begin", "layer 3 backward end"}, {{0, 2}}},
        {{"layer 0 forward begin", "layer 1 forward begin", "layer 1 forward end",
          "layer 0 forward end"},
         {{1, 2}}},
        {{"layer 0 forward begin", "layer 0 forward begin", "layer 0 forward end",
          "layer 0 forward end"},
         {{0, 2}}},
        {{"layer 0 forward end", "layer 1 forward begin"}, {{0, 0}}},
        {{"iteration begin", "layer 0 forward begin", "odd words", "layer 0 forward end"},
         {{1, 3}}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        memoi_bilevel bilevel;
        own_trace* trace = new_trace();
        for (int64_t i = 0; i < 8 && cases[k].marks[i]; i++) {
            CHECK_OK(memo_trace_mark(trace, cases[k].marks[i], &error));
            request(trace, i, 8);
        }
        own_plan* plan = plan_of_trace(trace, 1);
        CHECK(memoi_bilevel_create(&bilevel, plan));
        memoi_bilevel_windows(&bilevel, trace);
        for (int64_t w = 0; w < 4; w++) {
            const int is_one = cases[k].windows[w][1] > 0;
            CHECK_CASE(is_one == (w < bilevel.n_windows) &&
                           (!is_one || (bilevel.windows[w].begin == cases[k].windows[w][0] &&
                                        bilevel.windows[w].end == cases[k].windows[w][1])),
                       "case %d: %lld windows", (int)k, (long long)bilevel.n_windows);
        }
        memob_arrays_free(&bilevel.arrays);
    }
}

/* ---- planning them -------------------------------------------------------------------------- */

/* Bounds that were found by other means. */
TEST(the_traces_meet_their_bound) {
    static const struct {
        const char* name;
        int64_t bound;
    } traces[] = {{"gpt-h4096-n8-s32k-store", 40560230540},
                  {"gpt-h4096-n8-s64k-recompute", 15588155416},
                  {"gpt2-124m-b8-s1k-store", 9357140168},
                  {"llama-1b-s8k-recompute", 13281361928},
                  {"llama-1b-s8k-store", 26989330696}};
    for (int k = 0; k < 2 * 5; k++) {
        const int64_t bound = traces[k / 2].bound;
        char path[128];
        snprintf(path, sizeof path, "tests/data/%s.trace", traces[k / 2].name);
        own_trace* trace = trace_of_file(path);
        own_plan* plan = plan_of_trace(trace, k % 2 ? 512 : 1);
        for (int marks = -1; marks < 2; marks++) {
            const memo_plan_engine engine =
                marks < 0 ? MEMO_PLAN_ENGINE_AUTO : MEMO_PLAN_ENGINE_BILEVEL;
            plan_with(plan, marks > 0 ? trace : NULL, engine, marks < 0 ? 0 : 1 << 20);
            CHECK_OK(memo_plan_check(plan, trace, &error));
            IN_CASE("%s, marks %d", traces[k / 2].name, marks);
            expect_optimal(plan, k % 2 ? plan->lower_bound_bytes : bound);
        }
        if (k % 2) CHECK_IS(bilevel_peak(plan, trace, 1 << 20), ==, plan->lower_bound_bytes);
    }
}

/* Layers full to the brim: the two levels meet the bound, which greedy misses. */
TEST(tight_layers_meet_the_bound) {
    int marks, n_missed = 0, n_better = 0;
    for (int n_layers = 2; n_layers <= 300; n_layers *= 5) {
        for (int round = 0; round < memo_test_cases(3, 12); round++) {
            shape s = {0, 40, 3, 0, -1, 0, 0};
            s.n_layers = n_layers;
            s.has_marks = marks = round % 3;
            s.style = memo_test_random();
            own_trace* trace = layered(s);
            own_plan* plan = plan_of_trace(trace, 1);
            plan_with(plan, trace, MEMO_PLAN_ENGINE_GREEDY, 0);
            n_missed += plan->peak_bytes > plan->lower_bound_bytes;
            plan_with(plan, NULL, MEMO_PLAN_ENGINE_AUTO, 1 << 22);
            CHECK_CASE(plan->proof == MEMO_PROOF_OPTIMAL, "%d layers: %s", n_layers, plan->engine);
            plan_with(plan, marks ? trace : NULL, MEMO_PLAN_ENGINE_BILEVEL, 1 << 22);
            CHECK_CASE(plan->proof == MEMO_PROOF_OPTIMAL, "%d layers, marks %d: %s", n_layers,
                       marks, plan->engine);
            n_better += !strcmp(plan->engine, "bilevel");
        }
    }
    CHECK_CASE(n_missed > 0 && n_better > 0, "missed %d, better %d", n_missed, n_better);
}

/* More layers are proven as well as few. */
TEST(more_layers_are_proven_too) {
    memo_trace *few, *trace;
    CHECK_OK(memo_trace_read("tests/data/llama-1b-s8k-recompute.trace", &few, &error));
    for (int64_t n = 8; n <= 512; n *= 4) {
        CHECK_OK(trace_apply_layers(few, n, &trace, &error));
        own_plan* plan = plan_of_trace(trace, 512);
        memo_plan_desc desc = {
            .engine = MEMO_PLAN_ENGINE_BILEVEL, .trace = trace, .time_limit_s = 100};
        CHECK_OK(memo_plan_solve(plan, &desc, &error));
        CHECK_CASE(plan->proof == MEMO_PROOF_OPTIMAL, "%lld layers", (long long)n);
        memo_trace_destroy(trace);
    }
    memo_trace_destroy(few);
}

/* Requests dropped, resized, put off or fixed at random: still valid, and AUTO no worse for it. */
TEST(mutated_layers_stay_valid) {
    for (int round = 0; round < 150; round++) {
        own_trace* trace = layered(random_shape());
        own_plan* plan = plan_of_trace(trace, round % 3 ? 1 : 64);
        int64_t n = memo_test_int(0, 6), peak;
        while (n-- > 0) {
            memo_buffer* buffer = &plan->buffers[memo_test_int(0, plan->n_buffers - 1)];
            switch (memo_test_int(0, 4)) {
            case 0: buffer->size_bytes = memo_test_int(0, 400000); break;
            case 1: buffer->end = memo_test_int(buffer->begin + 1, plan->n_times); break;
            case 2: buffer->alignment_bytes = (int64_t)64 << memo_test_int(0, 6); break;
            case 3:
                buffer->is_fixed = 1;
                buffer->offset_bytes = ((int64_t)1 << 30) + memo_test_int(0, 3) * 4096;
                buffer->offset_bytes += n << 20;
                break;
            default: buffer->size_bytes = 0; break;
            }
        }
        for (n = 0; n < 2; n++) {
            const memo_trace* marks = n ? trace : NULL;
            if (marks) bilevel_peak(plan, marks, 20000);
            plan_with(plan, marks, MEMO_PLAN_ENGINE_BILEVEL, 20000);
            CHECK_IS(plan->peak_bytes, >=, plan->lower_bound_bytes);
            plan_with(plan, marks, MEMO_PLAN_ENGINE_GREEDY, 0);
            peak = plan->peak_bytes;
            plan_with(plan, marks, MEMO_PLAN_ENGINE_AUTO, 20000);
            CHECK_IS(plan->peak_bytes, <=, peak);
        }
    }
}

/* Swapped out for a while, a buffer of the layer belongs to the outer plan. */
TEST(gaps_go_to_the_outer_plan) {
    for (int round = 0; round < 60; round++) {
        shape s = random_shape();
        own_trace* trace = layered(s);
        own_plan *flat = plan_of_trace(trace, 1), *plan = NULL;
        int64_t n_gaps = 0;
        CHECK_OK(memo_plan_create(flat->n_buffers, flat->n_buffers, 1, &plan, &error));
        plan->n_times = flat->n_times;
        for (int64_t i = 0; i < flat->n_buffers; i++) {
            const memo_buffer* buffer = &flat->buffers[i];
            plan->buffers[i] = *buffer;
            if (buffer->end - buffer->begin < 3 || memo_test_int(0, 3)) continue;
            plan->gaps[n_gaps].buffer = i;
            plan->gaps[n_gaps].begin = memo_test_int(buffer->begin, buffer->end - 2);
            plan->gaps[n_gaps].end = memo_test_int(plan->gaps[n_gaps].begin + 1, buffer->end - 1);
            n_gaps++;
        }
        plan->n_gaps = n_gaps;
        plan_with(plan, trace, MEMO_PLAN_ENGINE_BILEVEL, 5000);
        bilevel_peak(plan, trace, 5000);
    }
}

TEST(the_same_nodes_give_the_same_plan) {
    for (int round = 0; round < 20; round++) {
        shape s = random_shape();
        own_plan *a = NULL, *b = NULL;
        s.n_layers = 5;
        own_trace* trace = layered(s);
        a = plan_of_trace(trace, 1);
        b = plan_of_trace(trace, 1);
        plan_with(a, trace, MEMO_PLAN_ENGINE_BILEVEL, 3000);
        plan_with(b, trace, MEMO_PLAN_ENGINE_BILEVEL, 3000);
        for (int64_t i = 0; i < a->n_buffers; i++)
            CHECK_IS(a->buffers[i].offset_bytes, ==, b->buffers[i].offset_bytes);
    }
}

TEST(memory_that_runs_out_is_reported) {
    for (int marks = 0; marks < 2; marks++) {
        shape s = {4, 12, 2, 1, -1, 1, 9};
        own_trace* trace = layered(s);
        own_plan* plan = plan_of_trace(trace, 1);
        memo_status status = MEMO_STATUS_OK;
        refusal r = {.can_do_without = 1}; /* a sort can do without its memory */
        memo_plan_desc desc = {.engine = MEMO_PLAN_ENGINE_BILEVEL,
                               .trace = marks ? trace : NULL,
                               .memoi_node_limit = 2000,
                               .time_limit_s = 1000};
        while (next_refusal(&r, status)) {
            status = memo_plan_solve(plan, &desc, &error);
            if (!status) status = memo_plan_validate(plan, &error);
        }
        CHECK_IS(r.n_failed, >, 23);
    }
}

TEST(another_trace_is_refused) {
    shape s = {4, 5, 1, 1, -1, 0, 1};
    own_trace *trace = layered(s), *other = NULL;
    own_plan* plan = plan_of_trace(trace, 1);
    s.n_layers = 5;
    other = layered(s);
    memo_plan_desc desc = {.trace = other};
    CHECK_ERROR(memo_plan_solve(plan, &desc, &error), INVALID_ARGUMENT, "desc.trace");

    /* As many buffers, but a free less; as many mallocs and frees, but a buffer more. */
    desc.trace = trace;
    const int64_t n_requests = trace->n_requests;
    while (trace->requests[trace->n_requests - 1].kind != MEMO_REQUEST_FREE) trace->n_requests--;
    trace->n_requests--;
    CHECK_ERROR(memo_plan_solve(plan, &desc, &error), INVALID_ARGUMENT, "desc.trace");
    trace->n_requests = n_requests;
    trace->n_buffers++;
    CHECK_ERROR(memo_plan_solve(plan, &desc, &error), INVALID_ARGUMENT, "desc.trace");
    trace->n_buffers--;
    memo_plan_destroy(plan);
    CHECK_OK(memo_plan_create(0, 0, 1, &plan, &error));
    plan_with(plan, NULL, MEMO_PLAN_ENGINE_BILEVEL, 10);
    CHECK_IS(plan->peak_bytes, ==, 0);
}
