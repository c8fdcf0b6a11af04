/* plan.c - measures the memory planner: every table prints its result beside a reference.
 *
 *   plan [traces] [engines] [minimalloc] [minimize] [tight] [growth] [dense] [features] [layers]
 *        [caching] [streams] [waits] [peers] [small] [tilings] [limits]  default: all
 *        [--seeds N] [--limit S] [--threads N]     --threads: of the search
 *        [--cpu 1]                                 limits and times in seconds of processor time,
 *                                                  for a busy machine
 *        [--without STAGE]                         leaves a stage of the planner out
 *   plan ablation [--seeds N] [--limit S]          leaves out one stage after the other, in
 *                                                  processor time
 *
 * Run it at the root of the repository.  The traces in tests/data have one training iteration each.
 * For your own trace, run examples/pytorch/snapshot_to_trace.py and then build/examples/plan_trace.
 * Environment:
 *
 *   INSTANCES    folder of the public hard instances A to K: benchmarks/challenging of google/minimalloc
 *   MORE_INSTANCES  optional: a folder of other problems, as .csv, .csv.gz, .trace, or .json with clocks;
 *                the tables that name such files take them from here
 *   MINIMALLOC   optional: the program of this public solver (github.com/google/minimalloc), which
 *                is then timed too
 *   ORTOOLS      optional: a Python with ortools, whose CP-SAT is then timed too
 *   OMNIMALLOC   optional: a Python with omnimalloc, whose SuperMalloc and Omni are then timed too
 *
 * Exit status 1 if a table finds no data. */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo.h"

/* The planner's clock and switches. */
static int is_cpu;
static const char* left_out = "";
static double cpu_s(void) { return (double)clock() / CLOCKS_PER_SEC; } /* of all threads */
static double now_s(void) { return is_cpu ? cpu_s() : memob_now_s(); }
#define memob_now_s          now_s
#define MEMOI_WITHOUT(stage) (!strcmp(left_out, #stage))
#include "extras/memo_pack.h"
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "median.h"
#include "tools/caching_model.h"
#include "tools/trace_layers.h"
#include "../tests/plan/stream_patterns.h"

#include <glob.h>
#include <time.h>

static void fail(const char* what, const memo_error* error) {
    fprintf(stderr, "%s: %s\n", what, error->message);
    exit(1);
}

/* ---- problems -------------------------------------------------------------------------------- */

static int is_missing; /* a table found no data */
static void check_found(int n, const char* what) {
    if (n > 0) return;
    printf("(no %s found; the head of bench/plan.c lists the folders)\n", what);
    is_missing = 1;
}

/* Lines "id,lower,upper,size", and with those columns ",alignment,gaps" (gaps: "3-5 8-9"); other
 * columns are for the tools.  NULL if the file is missing. */
static memo_plan* read_csv(const char* path) {
    FILE* file = fopen(path, "r");
    char line[1024];
    int64_t n = 0, n_gaps = 0;
    int alignment_column = -1, gaps_column = -1;
    memo_plan* plan;
    memo_error error;
    if (!file) return NULL;
    for (; fgets(line, sizeof line, file); n++) { /* each gap has a '-' */
        const char* dash = line;
        while ((dash = strchr(dash, '-')) != NULL) n_gaps++, dash++;
    }
    rewind(file);
    if (memo_plan_create(n, n_gaps, 1, &plan, &error)) fail(path, &error);
    plan->n_buffers = plan->n_gaps = 0;

    while (fgets(line, sizeof line, file)) {
        long long id, begin, end, size;
        memo_buffer* buffer = &plan->buffers[plan->n_buffers];
        char* field = line;
        int is_row =
            sscanf(line, "%lld,%lld,%lld,%lld", &id, &begin, &end, &size) == 4; /* or the heading */
        if (is_row) {
            buffer->id = id;
            buffer->begin = begin;
            buffer->end = end;
            buffer->size_bytes = size;
        }
        for (int column = 0; field; column++) {
            char* comma = strchr(field, ',');
            if (comma) *comma = '\0';
            if (!is_row && !strncmp(field, "alignment", 9)) alignment_column = column;
            if (!is_row && !strncmp(field, "gaps", 4)) gaps_column = column;
            if (is_row && column == alignment_column) buffer->alignment_bytes = atoll(field);
            while (is_row && column == gaps_column &&
                   sscanf(field, "%lld-%lld", &begin, &end) == 2) {
                memo_gap* gap = &plan->gaps[plan->n_gaps++];
                gap->buffer = plan->n_buffers;
                gap->begin = begin;
                gap->end = end;
                field += strcspn(field, " \n");
                field += strspn(field, " ");
            }
            field = comma ? comma + 1 : NULL;
        }
        plan->n_buffers += is_row;
    }
    fclose(file);
    return plan;
}

static const char instances[] = "ABCDEFGHIJK";

/* An instance of google/minimalloc, capacity 1048576; NULL if it is missing. */
static memo_plan* read_instance(char letter) {
    char path[512];
    const char* folder = getenv("INSTANCES");
    snprintf(path, sizeof path, "%s/%c.1048576.csv", folder ? folder : ".", letter);
    return read_csv(path);
}

/* The requests before the last "forward end", and between the first "backward begin" and the last
 * "backward end".  Head, loss and optimizer are left out, because their peak hides the layers'
 * bound. */
static memo_trace* body_of(const memo_trace* trace) {
    int64_t forward_end = -1, backward_begin = -1, backward_end = -1;
    memo_trace* body;
    memo_error error;
    char* keep;
    int64_t largest = 0;

    /* Find the marks that bound the layers. */
    for (int64_t i = 0; i < trace->n_requests; i++) {
        memo_mark mark;
        largest = trace->requests[i].id > largest ? trace->requests[i].id : largest;
        if (trace->requests[i].kind != MEMO_REQUEST_MARK) continue;
        mark = memo_mark_parse(trace->text + trace->requests[i].id);
        if (mark.phase == MEMO_PHASE_FORWARD && mark.is_end) forward_end = i;
        if (mark.phase == MEMO_PHASE_BACKWARD && mark.is_end) backward_end = i;
        if (mark.phase == MEMO_PHASE_BACKWARD && !mark.is_end && backward_begin < 0)
            backward_begin = i;
    }

    /* Copy the requests between them, and the frees of copied blocks. */
    keep = (char*)calloc((size_t)largest + 1, 1);
    if (!keep || memo_trace_create(&body, &error)) fail("body", &error);
    for (int64_t i = 0; i < trace->n_requests; i++) {
        const memo_request* request = &trace->requests[i];
        if (request->kind == MEMO_REQUEST_MALLOC &&
            (i < forward_end || (i > backward_begin && i < backward_end))) {
            keep[request->id] = 1;
            if (memo_trace_malloc(body, request->id, request->size_bytes, request->memory_class,
                                  request->stream, &error))
                fail("body", &error);
        }
        if (request->kind == MEMO_REQUEST_FREE && keep[request->id] &&
            memo_trace_free(body, request->id, &error))
            fail("body", &error);
    }
    free(keep);
    return body;
}

static uint64_t random_state;
static int64_t random_int(int64_t low, int64_t high) {
    return low + (int64_t)(memob_random(&random_state) % (uint64_t)(high - low + 1));
}

/* A full rectangle cut into n pieces.  The optimum is its height, and leaves no byte free. */
static memo_plan* cut_rectangle(int64_t n, int64_t height, uint64_t seed) {
    memo_plan* plan;
    memo_error error;
    int64_t made = 1;
    random_state = seed;
    if (memo_plan_create(n, 0, 1, &plan, &error)) fail("cut", &error);
    plan->buffers[0].end = 4 * n;
    plan->buffers[0].size_bytes = height;

    /* Cut one piece at a time, along time or along size. */
    while (made < n) {
        memo_buffer *piece = NULL, *rest = &plan->buffers[made];
        for (int k = 0; k < 3; k++) { /* the largest of three */
            memo_buffer* other = &plan->buffers[random_int(0, made - 1)];
            if (!piece || (double)(other->end - other->begin) * (double)other->size_bytes >
                              (double)(piece->end - piece->begin) * (double)piece->size_bytes)
                piece = other;
        }

        *rest = *piece;
        if (random_int(0, 1) && piece->end - piece->begin > 1) {
            piece->end = rest->begin = random_int(piece->begin + 1, piece->end - 1);
            made++;
        } else if (piece->size_bytes > 1) {
            piece->size_bytes = random_int(1, piece->size_bytes - 1);
            rest->size_bytes -= piece->size_bytes;
            made++;
        }
    }

    for (int64_t i = 0; i < n; i++) plan->buffers[i].id = i;
    return plan;
}

/* Cuts a block into n = 4 k + 1 pieces: four around a fifth, each of which is cut again.  No cut goes
 * through the whole block. */
static void cut_pinwheel(memo_plan* plan, memo_buffer block, int64_t n) {
    memo_buffer piece[5] = {block, block, block, block, block};
    int64_t n_pieces[5] = {1, 1, 1, 1, 1}, left, right, low, high, k;
    block.id = plan->n_buffers;
    if (n == 1) plan->buffers[plan->n_buffers++] = block;
    if (n == 1) return;
    left = block.begin + (block.end - block.begin) * random_int(10, 45) / 100;
    right = block.end - (block.end - block.begin) * random_int(10, 45) / 100;
    low = block.size_bytes * random_int(10, 45) / 100;
    high = block.size_bytes * random_int(10, 45) / 100;
    piece[0].end = piece[4].end = right;
    piece[1].begin = right;
    piece[2].begin = piece[4].begin = left;
    piece[3].end = left;
    piece[0].size_bytes = low;
    piece[1].size_bytes -= high;
    piece[2].size_bytes = high;
    piece[3].size_bytes -= low;
    piece[4].size_bytes -= low + high;
    for (n -= 5; n > 0; n -= 4) n_pieces[random_int(0, 4)] += 4;
    for (k = 0; k < 5; k++) cut_pinwheel(plan, piece[k], n_pieces[k]);
}

/* A problem of n buffers of one of three shapes. */
static memo_plan* generate(const char* shape, int64_t n) {
    memo_plan* plan;
    memo_error error;
    int64_t layers = n / 20;
    random_state = (uint64_t)n;
    if (memo_plan_create(n, 0, 1, &plan, &error)) fail(shape, &error);

    for (int64_t i = 0; i < n; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        buffer->id = i;
        buffer->size_bytes = 512 * random_int(1, 2000);

        if (!strcmp(shape, "nested")) { /* stacks of 100 nested lifetimes */
            buffer->begin = i / 100 * 150 + i % 100;
            buffer->end = i / 100 * 150 + 300 - i % 100;
        } else if (!strcmp(shape, "random")) {
            buffer->begin = random_int(0, 2 * n);
            buffer->end = buffer->begin + random_int(1, random_int(1, 400));
        } else { /* layered: 4 of 20 live to the layer's backward, 8 in each pass */
            int64_t layer = i / 20, k = i % 20, forward = layer * 20,
                    back = (2 * layers - layer) * 20;
            int64_t time = k < 12 ? forward + k : back + k - 12;
            buffer->begin = time;
            buffer->end = k < 4 ? back + 4 + k : time + random_int(1, 8);
            random_state = k == 19 ? (uint64_t)n : random_state; /* equal layers */
        }
    }
    return plan;
}

/* ---- measuring ------------------------------------------------------------------------------- */

typedef struct outcome {
    double seconds, cpu_s;
    int64_t peak_bytes, bound_bytes;
    int64_t n_nodes; /* of the search */
    memo_proof proof;
    int is_met; /* the capacity, if there was one */
    char engine[16];
} outcome;

/* The share of the bound by which the peak exceeds it. */
static double gap_of(const outcome* result) {
    return result->bound_bytes ? (double)result->peak_bytes / (double)result->bound_bytes - 1 : 0;
}

static int32_t n_threads = 1;

static void keep_nodes(void* user, const char* line) {
    const char* nodes = strrchr(line, ',');
    if (nodes && strstr(line, "search: ") == line) *(int64_t*)user = atoll(nodes + 1);
}

static outcome run_traced(memo_plan* plan, const memo_trace* trace, memo_plan_engine engine,
                          int64_t capacity, double limit, uint64_t seed) {
    memo_plan_desc desc = {0};
    memo_error error;
    outcome result;
    memo_status status;
    desc.engine = engine;
    desc.capacity_bytes = capacity;
    desc.time_limit_s = limit;
    desc.seed = seed;
    desc.n_threads = n_threads;
    desc.trace = trace;
    desc.log.write = keep_nodes;
    desc.log.user = &result.n_nodes;
    result.n_nodes = 0;
    result.seconds = now_s();
    result.cpu_s = cpu_s();
    status = memo_plan_solve(plan, &desc, &error);
    result.seconds = now_s() - result.seconds;
    result.cpu_s = cpu_s() - result.cpu_s;
    if (status && status != MEMO_STATUS_INFEASIBLE) fail("solve", &error);
    if (memo_plan_validate(plan, &error)) fail("validate", &error);
    result.is_met = status == MEMO_STATUS_OK;
    result.peak_bytes = plan->peak_bytes;
    result.bound_bytes = plan->lower_bound_bytes;
    result.proof = plan->proof;
    memcpy(result.engine, plan->engine, sizeof result.engine);
    return result;
}

static outcome run_engine(memo_plan* plan, memo_plan_engine engine, int64_t capacity, double limit,
                          uint64_t seed) {
    return run_traced(plan, NULL, engine, capacity, limit, seed);
}

/* Orders the buffers at random, because the order of the file breaks ties. */
static void shuffle_buffers(memo_plan* plan, uint64_t seed) {
    int64_t n = plan->n_buffers;
    int64_t* place = (int64_t*)calloc((size_t)n + 1, sizeof(int64_t));
    memo_buffer* before = (memo_buffer*)calloc((size_t)n + 1, sizeof(memo_buffer));
    if (!place || !before) exit(1);
    memcpy(before, plan->buffers, (size_t)n * sizeof(memo_buffer));
    random_state = seed + 1;
    for (int64_t i = 0; i < n; i++) place[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = random_int(0, i), other = place[i];
        place[i] = place[k];
        place[k] = other;
    }
    for (int64_t i = 0; i < n; i++) plan->buffers[place[i]] = before[i];
    for (int64_t i = 0; i < plan->n_gaps; i++) plan->gaps[i].buffer = place[plan->gaps[i].buffer];
    for (int64_t i = 0; i < plan->n_holds; i++)
        plan->holds[i].buffer = place[plan->holds[i].buffer];
    free(place);
    free(before);
}

/* Seconds of the public solver for a problem without gaps, as a process that reads a CSV.  Negative
 * if it finds nothing in time, or if MINIMALLOC is not set. */
static double run_public(const memo_plan* plan, int64_t capacity, double limit) {
    const char* program = getenv("MINIMALLOC");
    char path[] = "/tmp/memo_bench_XXXXXX", command[1024];
    double seconds = -1;
    int descriptor = program ? mkstemp(path) : -1;
    FILE* file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (!file) return -1;
    fprintf(file, "id,lower,upper,size\n");
    for (int64_t i = 0; i < plan->n_buffers; i++)
        fprintf(file, "%lld,%lld,%lld,%lld\n", (long long)plan->buffers[i].id,
                (long long)plan->buffers[i].begin, (long long)plan->buffers[i].end,
                (long long)plan->buffers[i].size_bytes);
    if (fclose(file) == 0) {
        snprintf(
            command, sizeof command,
            "timeout %.0f '%s' --capacity=%lld --input='%s' --output=/dev/null >/dev/null 2>&1",
            limit, program, (long long)capacity, path);
        seconds = now_s();
        seconds = system(command) == 0 ? now_s() - seconds : -1;
    }
    unlink(path);
    return seconds;
}

static const char* proof_name(memo_proof proof) {
    return proof == MEMO_PROOF_OPTIMAL ? "optimal" : "feasible";
}

/* In tests/data. */
static const char* const trace_names[] = {"gpt-h4096-n8-s32k-store", "gpt-h4096-n8-s64k-recompute",
                                          "gpt2-124m-b8-s1k-store", "llama-1b-s8k-recompute",
                                          "llama-1b-s8k-store"};

/* ---- tables ---------------------------------------------------------------------------------- */

static void print_traces(int repeats) {
    int r, n_found = 0;
    printf("\n## Traces: milliseconds of planning, median of %d; alignment in bytes\n\n", repeats);
    printf("| trace | part | align | buffers | bound | peak | proof | engine | greedy ms | auto ms "
           "|\n");
    printf("|---|---|---|---|---|---|---|---|---|---|\n");

    for (size_t k = 0; k < sizeof trace_names / sizeof *trace_names; k++) {
        char path[256];
        memo_trace *trace, *body;
        memo_error error;
        snprintf(path, sizeof path, "tests/data/%s.trace", trace_names[k]);
        if (memo_trace_read(path, &trace, &error)) continue;
        n_found++;
        body = body_of(trace);

        /* The whole iteration and its layers alone, packed and aligned. */
        for (int is_body = 0; is_body < 2; is_body++) {
            for (int alignment = 1; alignment <= 512; alignment *= 512) {
                double greedy_s[64], auto_s[64];
                outcome result;
                memo_plan* plan = NULL;
                memset(&result, 0, sizeof result);
                for (r = 0; r < repeats && r < 64; r++) {
                    if (memo_plan_from_trace(is_body ? body : trace, alignment, &plan, &error))
                        fail(trace_names[k], &error);
                    greedy_s[r] = run_engine(plan, MEMO_PLAN_ENGINE_GREEDY, 0, 10, 0).seconds;
                    result = run_engine(plan, MEMO_PLAN_ENGINE_AUTO, 0, 10, (uint64_t)r);
                    auto_s[r] = result.seconds;
                    if (r + 1 < repeats) memo_plan_destroy(plan);
                }

                printf("| %s | %s | %d | %lld | %lld | %lld | %s | %s | %.2f | %.2f |\n",
                       trace_names[k], is_body ? "body" : "whole", alignment,
                       (long long)plan->n_buffers, (long long)result.bound_bytes,
                       (long long)result.peak_bytes, proof_name(result.proof), result.engine,
                       1e3 * median(greedy_s, r), 1e3 * median(auto_s, r));
                fflush(stdout);
                memo_plan_destroy(plan);
            }
        }
        memo_trace_destroy(body);
        memo_trace_destroy(trace);
    }
    check_found(n_found, "traces");
}

/* A trainer's step whose layers leave no byte free: the n_pieces locals of a phase are a full
 * rectangle.  Three buffers live from a layer's forward to its backward. */
static memo_trace* layered_trace(int64_t n_layers, int64_t n_pieces) {
    memo_trace* trace;
    memo_error error;
    memo_status status = memo_trace_create(&trace, &error);
    memo_plan* cut[2];
    cut[0] = cut_rectangle(n_pieces, 1000, 2);
    cut[1] = cut_rectangle(n_pieces, 1000, 3);

    /* Forwards in order, backwards in reverse; each lasts as long as the rectangle. */
    for (int64_t step = 0; step < 2 * n_layers && !status; step++) {
        int is_backward = step >= n_layers;
        int64_t layer = is_backward ? 2 * n_layers - 1 - step : step, base = step * n_pieces;
        const memo_buffer* pieces = cut[is_backward]->buffers;
        char mark[64];
        snprintf(mark, sizeof mark, "layer %lld %s begin", (long long)layer,
                 is_backward ? "backward" : "forward");
        status = memo_trace_mark(trace, mark, &error);

        for (int64_t time = 0; time <= 4 * n_pieces && !status; time++) {
            for (int64_t k = 0; k < n_pieces && !status; k++)
                if (pieces[k].end == time) status = memo_trace_free(trace, base + k, &error);
            for (int64_t k = 0; k < n_pieces && !status; k++)
                if (pieces[k].begin == time)
                    status = memo_trace_malloc(trace, base + k, 512 * pieces[k].size_bytes,
                                               MEMO_CLASS_TRANSIENT, 0, &error);

            /* The first three times also request or free what the backward needs. */
            if (time >= 3 || status) continue;
            if (is_backward)
                status = memo_trace_free(trace, -1 - (3 * layer + time), &error);
            else
                status = memo_trace_malloc(trace, -1 - (3 * layer + time), 512 * 100 * (time + 1),
                                           MEMO_CLASS_SKELETAL, 0, &error);
        }

        snprintf(mark, sizeof mark, "layer %lld %s end", (long long)layer,
                 is_backward ? "backward" : "forward");
        if (!status) status = memo_trace_mark(trace, mark, &error);
    }

    if (status) fail("layered trace", &error);
    memo_plan_destroy(cut[0]);
    memo_plan_destroy(cut[1]);
    return trace;
}

static void print_engine_row(const char* name, memo_plan* plan, const memo_trace* trace,
                             double limit) {
    static const memo_plan_engine engines[] = {MEMO_PLAN_ENGINE_AUTO, MEMO_PLAN_ENGINE_GREEDY,
                                               MEMO_PLAN_ENGINE_BILEVEL, MEMO_PLAN_ENGINE_MIP};
    for (int k = 0; k < 4; k++) {
        outcome result;
        if (engines[k] == MEMO_PLAN_ENGINE_MIP && plan->n_buffers > 30) {
            printf(" - |");
            continue;
        }
        result = run_traced(plan, trace, engines[k], 0, limit, 0);
        if (k == 0)
            printf("| %s | %lld | %lld | %lld | %s | %s |", name, (long long)plan->n_buffers,
                   (long long)result.bound_bytes, (long long)result.peak_bytes,
                   proof_name(result.proof), result.engine);
        printf(" %.2f (%.2f) |", 1e3 * result.seconds, 100 * gap_of(&result));
        fflush(stdout);
    }
    printf("\n");
}

static void print_engines(double limit) {
    const char* letter;
    char text[256];
    memo_trace* trace;
    memo_error error;
    memo_plan* plan;
    printf("\n## Engines: milliseconds (gap %%) of each, limit %.0f s; bound and peak of auto\n\n",
           limit);
    printf("| instance | buffers | bound | peak | proof | by | auto | greedy | bilevel | mip "
           "|\n|---|---|---|---|---|---|---|---|---|---|\n");

    /* Recorded traces. */
    for (size_t k = 0; k < sizeof trace_names / sizeof *trace_names; k++) {
        snprintf(text, sizeof text, "tests/data/%s.trace", trace_names[k]);
        if (memo_trace_read(text, &trace, &error)) continue;
        if (memo_plan_from_trace(trace, 512, &plan, &error)) fail(text, &error);
        print_engine_row(trace_names[k], plan, trace, limit);
        memo_plan_destroy(plan);
        memo_trace_destroy(trace);
    }

    /* Generated layers that leave no byte free. */
    for (int64_t n = 8; n <= 512; n *= 4) {
        trace = layered_trace(n, 60);
        if (memo_plan_from_trace(trace, 512, &plan, &error)) fail("layered", &error);
        snprintf(text, sizeof text, "%lld tight layers", (long long)n);
        print_engine_row(text, plan, trace, limit);
        memo_plan_destroy(plan);
        memo_trace_destroy(trace);
    }

    /* Instances without layers. */
    for (letter = instances; *letter; letter++) {
        plan = read_instance(*letter);
        if (!plan) continue;
        snprintf(text, sizeof text, "minimalloc %c", *letter);
        print_engine_row(text, plan, NULL, limit);
        memo_plan_destroy(plan);
    }

    /* Small enough for the mixed-integer program. */
    for (int64_t n = 10; n <= 30; n += 10) {
        plan = cut_rectangle(n, 100, (uint64_t)n);
        snprintf(text, sizeof text, "rectangle in %lld", (long long)n);
        print_engine_row(text, plan, NULL, limit);
        memo_plan_destroy(plan);
    }
}

static void print_minimalloc(int seeds, double limit) {
    const char* letter;
    const char* program = getenv("MINIMALLOC");
    double log_ratio = 0;
    int n_ratios = 0, n_found = 0, seed;
    printf("\n## Public hard instances at capacity 1048576, %d seeds, limit %.0f s\n\n", seeds,
           limit);
    if (!program) printf("(the public solver does not run, because MINIMALLOC is not set)\n\n");
    printf(
        "| instance | buffers | bound | solved | median s | worst s | public median s | ratio |\n");
    printf("|---|---|---|---|---|---|---|---|\n");

    for (letter = instances; *letter; letter++) {
        double seconds[100], public_s[100], worst, middle, public_middle;
        int n_met = 0;
        memo_plan* plan = read_instance(*letter);
        if (!plan) continue;
        n_found++;

        /* Both solvers get the same order of buffers. */
        for (seed = 0; seed < seeds && seed < 100; seed++) {
            outcome result;
            if (seed) shuffle_buffers(plan, (uint64_t)seed); /* seed 0: the published order */
            public_s[seed] = run_public(plan, 1048576, 60);
            if (public_s[seed] < 0) public_s[seed] = 60;
            result = run_engine(plan, MEMO_PLAN_ENGINE_AUTO, 1048576, limit, (uint64_t)seed);
            seconds[seed] = result.seconds;
            n_met += result.is_met;
        }

        public_middle = median(public_s, seed);
        middle = median(seconds, seed);
        worst = seconds[seed - 1];
        printf("| %c | %lld | %lld | %d/%d | %.4f | %.4f |", *letter, (long long)plan->n_buffers,
               (long long)plan->lower_bound_bytes, n_met, seed, middle, worst);
        if (program) {
            printf(" %.3f | %.0f |\n", public_middle, public_middle / middle);
            log_ratio += log(public_middle / middle);
            n_ratios++;
        } else {
            printf(" - | - |\n");
        }
        fflush(stdout);
        memo_plan_destroy(plan);
    }

    check_found(n_found, "public instances");
    if (n_ratios)
        printf("\nGeometric mean: %.1f times faster than the public solver.\n",
               exp(log_ratio / n_ratios));
}

static void print_minimize(int seeds, double limit) {
    const char* letter;
    int n_found = 0;
    printf("\n## Public hard instances, smallest peak within %.0f s; up to %d seeds if no proof is "
           "found\n\n",
           limit, seeds);
    printf("| instance | bound | least peak | gap %% | largest peak | proof | s |\n"
           "|---|---|---|---|---|---|---|\n");

    for (letter = instances; *letter; letter++) {
        outcome result;
        int64_t least = INT64_MAX, largest = 0;
        int seed = 0;
        memo_plan* plan = read_instance(*letter);
        if (!plan) continue;
        n_found++;

        /* A proof holds for every seed, so no other seed is needed. */
        do {
            result = run_engine(plan, MEMO_PLAN_ENGINE_AUTO, 0, limit, (uint64_t)seed);
            least = result.peak_bytes < least ? result.peak_bytes : least;
            largest = result.peak_bytes > largest ? result.peak_bytes : largest;
        } while (++seed < seeds && result.proof != MEMO_PROOF_OPTIMAL);

        printf("| %c | %lld | %lld | %.3f | %lld | %s | %.3f |\n", *letter,
               (long long)result.bound_bytes, (long long)least,
               100 * ((double)least / (double)result.bound_bytes - 1), (long long)largest,
               proof_name(result.proof), result.seconds);
        fflush(stdout);
        memo_plan_destroy(plan);
    }
    check_found(n_found, "public instances");
}

static void print_tight(int seeds, double limit) {
    static const int64_t counts[] = {100, 200, 400, 700, 1000};
    const char* program = getenv("MINIMALLOC");
    int seed;
    printf(
        "\n## Random tight instances: a full rectangle cut into pieces, %d each, limit %.0f s\n\n",
        seeds, limit);
    printf(
        "| buffers | greedy gap %% | solved | gap %% of the rest | median s | public solved |\n");
    printf("|---|---|---|---|---|---|\n");

    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        double seconds[100], greedy_gap = 0, gap = 0;
        int n_met = 0, n_public = 0;

        /* The optimum is 1000, the height of the rectangle, so a gap is a tenth of the excess. */
        for (seed = 0; seed < seeds && seed < 100; seed++) {
            memo_plan* plan =
                cut_rectangle(counts[k], 1000, 1000 * (uint64_t)counts[k] + (uint64_t)seed);
            outcome greedy = run_engine(plan, MEMO_PLAN_ENGINE_GREEDY, 0, limit, 0);
            outcome result = run_engine(plan, MEMO_PLAN_ENGINE_AUTO, 0, limit, (uint64_t)seed);
            greedy_gap += (double)greedy.peak_bytes / 10 - 100;
            seconds[seed] = result.seconds;
            n_met += result.peak_bytes == 1000;
            gap += (double)result.peak_bytes / 10 - 100;
            n_public += run_public(plan, 1000, limit) >= 0;
            memo_plan_destroy(plan);
        }

        printf("| %lld | %.2f | %d/%d | %.2f | %.3f |", (long long)counts[k], greedy_gap / seed,
               n_met, seed, n_met < seed ? gap / (seed - n_met) : 0.0, median(seconds, seed));
        if (program)
            printf(" %d/%d |\n", n_public, seed);
        else
            printf(" - |\n");
        fflush(stdout);
    }
}

/* A full square cut in two again and again, or in pinwheels.  The optimum is its height. */
static memo_plan* tiling(int is_pinwheel, int64_t n, int64_t height, uint64_t seed) {
    memo_plan* plan;
    memo_buffer block;
    memo_error error;
    if (!is_pinwheel) return cut_rectangle(n, height, seed);
    if (memo_plan_create(n, 0, 1, &plan, &error)) fail("pinwheels", &error);
    block = plan->buffers[0];
    block.begin = plan->n_buffers = 0;
    block.end = (int64_t)1 << 40;
    block.size_bytes = height;
    random_state = seed;
    cut_pinwheel(plan, block, n);
    return plan;
}

static void print_tilings(int seeds, double limit) {
    static const int64_t counts[] = {501, 801, 1201, 2001, 3001, 4097};
    printf("\n## Full tilings of two heights, buffers in random order, %d each, limit %.0f s\n\n"
           "| cut | height | buffers | proven | mean gap %% | median s | largest s |\n"
           "|---|---|---|---|---|---|---|\n",
           seeds, limit);
    for (int is_pinwheel = 0; is_pinwheel < 2; is_pinwheel++)
        for (int small = 0; small < 2 - is_pinwheel; small++)
            for (int c = 0; c < (int)(sizeof counts / sizeof *counts); c++) {
                const int64_t height = small ? 20000 : (int64_t)1 << 40;
                double seconds[64], gap = 0, most = 0;
                int n_proven = 0;
                for (int seed = 0; seed < seeds; seed++) {
                    memo_plan* plan =
                        tiling(is_pinwheel, counts[c], height, (uint64_t)(1000 * counts[c] + seed));
                    outcome result;
                    shuffle_buffers(plan, (uint64_t)seed);
                    result = run_engine(plan, MEMO_PLAN_ENGINE_AUTO, 0, limit, 0);
                    n_proven += result.proof == MEMO_PROOF_OPTIMAL;
                    gap += 100 * gap_of(&result);
                    seconds[seed] = result.seconds;
                    most = fmax(most, result.seconds);
                    memo_plan_destroy(plan);
                }
                printf("| %s | %lld | %lld | %d of %d | %.2f | %.3f | %.3f |\n",
                       is_pinwheel ? "pinwheels" : "in two", (long long)height,
                       (long long)counts[c], n_proven, seeds, gap / seeds, median(seconds, seeds),
                       most);
                fflush(stdout);
            }
}

static void print_growth(double limit) {
    static const char* const shapes[] = {"nested", "random", "layered"};
    static const int64_t counts[] = {1000, 3000, 10000, 30000, 100000};
    printf("\n## Growth: generated problems, limit %.0f s\n\n", limit);
    printf("| shape | buffers | bound | peak | gap %% | proof | greedy s | auto s |\n");
    printf("|---|---|---|---|---|---|---|---|\n");
    for (size_t k = 0; k < 3; k++) {
        for (size_t c = 0; c < 5; c++) {
            memo_plan* plan = generate(shapes[k], counts[c]);
            outcome greedy = run_engine(plan, MEMO_PLAN_ENGINE_GREEDY, 0, limit, 0);
            outcome result = run_engine(plan, MEMO_PLAN_ENGINE_AUTO, 0, limit, 0);
            printf("| %s | %lld | %lld | %lld | %.3f | %s | %.3f | %.3f |\n", shapes[k],
                   (long long)counts[c], (long long)result.bound_bytes,
                   (long long)result.peak_bytes, 100 * gap_of(&result), proof_name(result.proof),
                   greedy.seconds, result.seconds);
            fflush(stdout);
            memo_plan_destroy(plan);
        }
    }
}

/* A number from low to high whose logarithm is uniform. */
static int64_t random_log(int64_t low, int64_t high) {
    double share = (double)random_int(0, 1000000) / 1e6;
    return (int64_t)((double)low * pow((double)high / (double)low, share));
}

/* Many buffers that live side by side: queues with jitter or a few long lives, lives of uniform
 * length, lives whose logarithm is uniform, lives between any two times (whole), and at most a
 * sixteenth of 4,096 times (short). */
static memo_plan* dense(const char* shape, int64_t n, uint64_t seed) {
    memo_plan* plan;
    memo_error error;
    random_state = seed;
    if (memo_plan_create(n, 0, 1, &plan, &error)) fail("dense", &error);
    for (int64_t i = 0; i < n; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        const int is_queue = shape[0] == 'q', is_log = shape[0] == 'l';
        const int has_outliers = !strcmp(shape, "queue, outliers");
        int64_t life = is_log ? random_log(1, n / 10) : random_int(1, 2000);
        if (is_queue) life = 1000 + random_int(0, 500);
        if (has_outliers) life = 100 + random_int(0, random_int(0, 19) ? 5 : 1000);
        buffer->id = i;
        buffer->size_bytes = is_queue ? random_int(1, 2000) : random_log(64, 1 << 18);
        buffer->begin = is_queue ? i : random_int(0, n);
        buffer->end = buffer->begin + life;
        if (shape[0] == 'w') {
            const int64_t times[2] = {random_int(0, 10 * n), random_int(0, 10 * n)};
            buffer->size_bytes = random_int(1, 2000);
            buffer->begin = memob_min(times[0], times[1]);
            buffer->end = memob_max(times[0], times[1]) + 1;
        } else if (shape[0] == 's') {
            buffer->size_bytes = random_int(1, 1 << 20);
            buffer->begin = random_int(0, 4095);
            buffer->end = memob_min(buffer->begin + random_int(1, 256), 4096);
        }
    }
    return plan;
}

static void print_dense(int seeds, double limit) {
    static const char* const shapes[] = {"queue", "queue, outliers", "uniform", "log"};
    const int64_t n = 100000;
    printf("\n## %lld dense buffers, limit %.0f s, %d each\n\n| lives | mean gap %% | largest |\n"
           "|---|---|---|\n",
           (long long)n, limit, seeds);
    for (int k = 0; k < 4; k++) {
        double sum = 0, most = 0;
        for (int seed = 0; seed < seeds; seed++) {
            memo_plan* plan = dense(shapes[k], n, (uint64_t)seed + 1);
            const outcome result = run_engine(plan, MEMO_PLAN_ENGINE_AUTO, 0, limit, 0);
            const double gap = 100 * gap_of(&result);
            sum += gap;
            most = fmax(most, gap);
            memo_plan_destroy(plan);
        }
        printf("| %s | %.3f | %.3f |\n", shapes[k], sum / seeds, most);
        fflush(stdout);
    }
}

/* Buffers with every feature.  Half have an alignment of 16 bytes to 64 KiB, as kernels and copies
 * require.  A third have a gap in their lifetime, as swapped tensors have.  Every second problem
 * has buffers fixed by an earlier plan. */
static memo_plan* with_features(int64_t n, uint64_t seed) {
    memo_plan* plan;
    memo_error error;
    int64_t n_gaps = 0;
    random_state = seed;
    if (memo_plan_create(n, n, 1, &plan, &error)) fail("features", &error);

    for (int64_t i = 0; i < n; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        buffer->id = i;
        buffer->size_bytes = random_log(64, 1 << 18);
        buffer->begin = random_int(0, 2 * n - 1);
        buffer->end = buffer->begin + random_log(1, n < 100 ? n : n / 4);
        if (random_int(0, 1)) buffer->alignment_bytes = (int64_t)1 << random_int(4, 16);

        if (buffer->end - buffer->begin < 3 || random_int(0, 2) > 0) continue;
        plan->gaps[n_gaps].buffer = i;
        plan->gaps[n_gaps].begin = random_int(buffer->begin + 1, buffer->end - 2);
        plan->gaps[n_gaps].end = random_int(plan->gaps[n_gaps].begin + 1, buffer->end - 1);
        n_gaps++;
    }

    /* Every sixth or so lies at a random offset, unless an earlier one overlaps it there: no planner
     * has a part in the problem. */
    plan->n_gaps = n_gaps;
    if (memo_plan_prepare(plan, &error)) fail("features", &error);
    for (int64_t i = 0; i < n && seed % 2; i++) {
        memo_buffer* buffer = &plan->buffers[i];
        int64_t step = memob_max(buffer->alignment_bytes, 1), k;
        if (random_int(0, 5) > 0) continue;
        buffer->offset_bytes =
            random_int(0, (plan->lower_bound_bytes - buffer->size_bytes) / step) * step;
        buffer->is_fixed = 1;
        for (k = 0; k < i && buffer->is_fixed; k++) {
            const memo_buffer* other = &plan->buffers[k];
            buffer->is_fixed = !other->is_fixed || other->end <= buffer->begin ||
                               other->begin >= buffer->end ||
                               other->offset_bytes + other->size_bytes <= buffer->offset_bytes ||
                               other->offset_bytes >= buffer->offset_bytes + buffer->size_bytes;
        }
    }
    return plan;
}

static void print_features(int seeds, double limit) {
    static const int64_t counts[] = {40, 200, 1000, 3000};
    printf("\n## Every feature: %d problems each, limit %.0f s\n\n", seeds, limit);
    printf("| buffers | proven | greedy: mean over bound %% | auto %% | auto: mean s |\n");
    printf("|---|---|---|---|---|\n");
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        double greedy_over = 0, over = 0, seconds = 0;
        int n_proven = 0;
        for (int seed = 0; seed < seeds; seed++) {
            memo_plan* plan = with_features(counts[c], (uint64_t)seed);
            outcome greedy = run_engine(plan, MEMO_PLAN_ENGINE_GREEDY, 0, limit, 0);
            outcome result = run_engine(plan, MEMO_PLAN_ENGINE_AUTO, 0, limit, 0);
            int64_t bound = plan->lower_bound_bytes;
            greedy_over += (double)greedy.peak_bytes / (double)bound - 1;
            over += (double)result.peak_bytes / (double)bound - 1;
            seconds += result.seconds;
            n_proven += result.proof == MEMO_PROOF_OPTIMAL;
            memo_plan_destroy(plan);
        }
        printf("| %lld | %d of %d | %.3f | %.3f | %.2f |\n", (long long)counts[c], n_proven, seeds,
               100 * greedy_over / seeds, 100 * over / seeds, seconds / seeds);
        fflush(stdout);
    }
}

/* ---- shapes of training steps, and other planners -------------------------------------------- */

/* Adds a buffer to a plan with room for it. */
static void add_buffer(memo_plan* plan, int64_t begin, int64_t end, int64_t bytes) {
    memo_buffer* buffer = &plan->buffers[plan->n_buffers];
    buffer->id = plan->n_buffers++;
    buffer->begin = begin;
    buffer->end = end;
    buffer->size_bytes = bytes;
}

static memo_plan* empty_plan(int64_t most) {
    memo_plan* plan;
    memo_error error;
    if (memo_plan_create(most, 0, 1, &plan, &error)) fail("shapes", &error);
    plan->n_buffers = 0;
    return plan;
}

enum { STAGES = 4, MICRO_BATCHES = 8, LAYERS = 6, KEPT = 3 };

/* One pass of a micro-batch through a stage's layers. */
static void pipeline_pass(memo_plan* plan, char what, int64_t* now, int64_t* kept,
                          const int64_t* bytes) {
    for (int64_t l = 0; l < LAYERS; l++, *now += 2) {
        for (int64_t k = 0; k < KEPT; k++) {
            int64_t* buffer = &kept[l * KEPT + k];
            if (what == 'F') {
                *buffer = plan->n_buffers;
                add_buffer(plan, *now, *now + 1, bytes[l * KEPT + k]);
            } else { /* every pass that reads it lengthens its life; layers run backward */
                plan->buffers[kept[(LAYERS - 1 - l) * KEPT + k]].end = *now + 2;
            }
        }
        if (what != 'W') add_buffer(plan, *now, *now + 3, bytes[l]); /* to the next layer */
        add_buffer(plan, *now, *now + 1, bytes[(l + 7) % (LAYERS * KEPT)] / 2);
    }
}

/* The first stage of a pipeline: a forward and a backward pass alternate once all stages are busy.
 * With W apart (zero bubble) a backward pass leaves the gradients of weights to a later one, which
 * needs the same activations. */
static memo_plan* pipeline(int has_w) {
    memo_plan* plan = empty_plan(MICRO_BATCHES * LAYERS * (KEPT + 5));
    int64_t bytes[LAYERS * KEPT], kept[MICRO_BATCHES][LAYERS * KEPT], now = 0, f = 0, b = 0, w = 0,
                                                                      k;
    random_state = 1;
    for (k = 0; k < LAYERS * KEPT; k++) bytes[k] = 512 * random_int(100, 4000);
    while (b < MICRO_BATCHES || (has_w && w < MICRO_BATCHES)) {
        if (f < MICRO_BATCHES && f < b + STAGES)
            pipeline_pass(plan, 'F', &now, kept[f++], bytes);
        else if (b < MICRO_BATCHES)
            pipeline_pass(plan, 'B', &now, kept[b++], bytes);
        if (has_w && w < b && (b - w > 2 || b == MICRO_BATCHES))
            pipeline_pass(plan, 'W', &now, kept[w++], bytes);
    }
    return plan;
}
static memo_plan* one_f_one_b(int64_t n) {
    (void)n;
    return pipeline(0);
}
static memo_plan* zero_bubble(int64_t n) {
    (void)n;
    return pipeline(1);
}

static memo_plan* plan_of(memo_trace* trace) {
    memo_plan* plan;
    memo_error error;
    if (memo_plan_from_trace(trace, 512, &plan, &error)) fail("shapes", &error);
    memo_trace_destroy(trace);
    return plan;
}

/* FSDP: stream 1 gathers the weights of a layer, at most two layers ahead of the computation,
 * forward and backward; activations live from a layer's forward to its backward. */
static memo_plan* fsdp(int64_t n_layers) {
    memo_trace* t;
    memo_error error;
    int64_t step, n_bad, id = 2 * n_layers;
    random_state = 2;
    if (memo_trace_create(&t, &error)) fail("fsdp", &error);

    for (step = 0, n_bad = 0; step < 2 * n_layers; step++) {
        int64_t l = step < n_layers ? step : 2 * n_layers - 1 - step;
        if (step >= 2) n_bad += memo_trace_wait(t, step - 2, 1, &error) != 0;
        n_bad += memo_trace_malloc(t, step, 4096 * (100 + 37 * (l % 5)), MEMO_CLASS_TRANSIENT, 1,
                                   &error) != 0;
        n_bad += memo_trace_record(t, 2 * n_layers + step, 1, &error) != 0;
        n_bad += memo_trace_wait(t, 2 * n_layers + step, 0, &error) != 0;
        n_bad += memo_trace_use(t, step, 0, &error) != 0;

        /* The computation of the layer, on stream 0. */
        if (step < n_layers)
            n_bad += memo_trace_malloc(t, 10 * n_layers + l, 4096 * (60 + 11 * (l % 3)),
                                       MEMO_CLASS_SKELETAL, 0, &error) != 0;
        for (int64_t k = 0; k < 4; k++, id++) {
            n_bad += memo_trace_malloc(t, 20 * n_layers + id, 512 * random_int(1, 400),
                                       MEMO_CLASS_TRANSIENT, 0, &error) != 0;
            if (k > 0) n_bad += memo_trace_free(t, 20 * n_layers + id - 1, &error) != 0;
        }
        n_bad += memo_trace_free(t, 20 * n_layers + id - 1, &error) != 0;

        /* The weights are freed after it. */
        n_bad += memo_trace_record(t, step, 0, &error) != 0;
        n_bad += memo_trace_free(t, step, &error) != 0;
        if (step >= n_layers) n_bad += memo_trace_free(t, 10 * n_layers + l, &error) != 0;
    }

    if (n_bad) fail("fsdp", &error);
    return plan_of(t);
}

/* Stream 1 fetches the input of the next micro-batch and waits for nothing else; the computation
 * waits for each input and frees it at the end of its micro-batch. */
static memo_plan* prefetch(int64_t n_layers) {
    enum { BATCHES = 4 };
    memo_trace* t;
    memo_error error;
    int64_t l, n_bad = 0, id = 1000;
    random_state = 3;
    if (memo_trace_create(&t, &error)) fail("prefetch", &error);

    for (int64_t batch = 0; batch <= BATCHES; batch++) {
        if (batch < BATCHES) {
            n_bad += memo_trace_malloc(t, batch, 4096 * 100, MEMO_CLASS_TRANSIENT, 1, &error) != 0;
            n_bad += memo_trace_record(t, batch, 1, &error) != 0;
        }

        /* The micro-batch whose input was fetched one step earlier. */
        if (batch == 0) continue;
        n_bad += memo_trace_wait(t, batch - 1, 0, &error) != 0;
        n_bad += memo_trace_use(t, batch - 1, 0, &error) != 0;
        for (l = 0; l < 2 * n_layers; l++) {
            int64_t kept = id + n_layers * 4 + (l < n_layers ? l : 2 * n_layers - 1 - l);
            if (l < n_layers)
                n_bad += memo_trace_malloc(t, kept, 512 * random_int(200, 800), MEMO_CLASS_SKELETAL,
                                           0, &error) != 0;
            n_bad += memo_trace_malloc(t, id + l, 512 * random_int(1, 900), MEMO_CLASS_TRANSIENT, 0,
                                       &error) != 0;

            if (l > 0) n_bad += memo_trace_free(t, id + l - 1, &error) != 0;
            if (l >= n_layers) n_bad += memo_trace_free(t, kept, &error) != 0;
        }
        n_bad += memo_trace_free(t, id + l - 1, &error) != 0;
        n_bad += memo_trace_free(t, batch - 1, &error) != 0;
        id += 5 * n_layers;
    }

    if (n_bad) fail("prefetch", &error);
    return plan_of(t);
}

/* The forward pass of a graph: node k reads inputs[first[k]] to inputs[first[k + 1] - 1], and its
 * output lives to its last reader. */
static memo_plan* graph_pass(int64_t n, const int64_t* first, const int64_t* inputs,
                             const int64_t* bytes) {
    memo_plan* plan = empty_plan(n);
    int64_t* reader = (int64_t*)calloc((size_t)n, sizeof(int64_t));
    if (!reader) exit(1);
    for (int64_t k = 0; k < n; k++) reader[k] = k;
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = first[k]; i < first[k + 1]; i++) reader[inputs[i]] = k;
    for (int64_t k = 0; k < n; k++) add_buffer(plan, k, reader[k] + 1, bytes[k]);
    free(reader);
    return plan;
}

/* UNet++ networks in a chain: node (i, j), at depth i, reads all of (i, 0) to (i, j - 1), and (i +
 * 1, j - 1) from below; a node of column 0 reads the one above.  Outputs have similar sizes, as if
 * channels grow with depth. */
static memo_plan* unetpp(int64_t n) {
    enum { DEPTH = 24, NODES = DEPTH * (DEPTH + 1) / 2 };
    int64_t n_units = n / NODES, made = 0, n_inputs = 0;
    int64_t* first = (int64_t*)calloc((size_t)(n_units * NODES + 1), sizeof(int64_t));
    int64_t* bytes = (int64_t*)calloc((size_t)(n_units * NODES), sizeof(int64_t));
    int64_t* inputs = (int64_t*)calloc((size_t)(n_units * NODES * DEPTH), sizeof(int64_t));
    int64_t at[DEPTH][DEPTH], last = -1;
    memo_plan* plan;
    if (!first || !bytes || !inputs) exit(1);
    random_state = 4;

    for (int64_t unit = 0; unit < n_units; unit++) {
        for (int64_t j = 0; j < DEPTH; j++) { /* column by column */
            for (int64_t i = 0; i < DEPTH - j; i++) {
                at[i][j] = made;
                bytes[made] = 4 * random_int(18000, 23000);
                if (j == 0 && i == 0 && last >= 0) inputs[n_inputs++] = last;
                if (j == 0 && i > 0) inputs[n_inputs++] = at[i - 1][0];
                if (j > 0) inputs[n_inputs++] = at[i + 1][j - 1];
                for (int64_t k = 0; k < j; k++) inputs[n_inputs++] = at[i][k];
                first[++made] = n_inputs;
            }
        }
        last = at[0][DEPTH - 1];
    }

    plan = graph_pass(made, first, inputs, bytes);
    free(first);
    free(bytes);
    free(inputs);
    return plan;
}

/* NASNet: a cell joins five blocks; each adds two outputs of the two previous cells or of the
 * cell's earlier blocks. */
static memo_plan* nasnet(int64_t n) {
    enum { BLOCKS = 5, NODES = BLOCKS + 1 };
    int64_t n_cells = n / NODES, made = 0, n_inputs = 0;
    int64_t* first = (int64_t*)calloc((size_t)(n_cells * NODES + 1), sizeof(int64_t));
    int64_t* bytes = (int64_t*)calloc((size_t)(n_cells * NODES), sizeof(int64_t));
    int64_t* inputs = (int64_t*)calloc((size_t)(n_cells * NODES * BLOCKS), sizeof(int64_t));
    memo_plan* plan;
    if (!first || !bytes || !inputs) exit(1);
    random_state = 5;

    for (int64_t cell = 0; cell < n_cells; cell++) {
        int64_t begin = made, scale = cell % 6 == 5 ? 2 : 1;
        for (int64_t b = 0; b < NODES; b++) {
            for (int64_t k = 0; k < (b < BLOCKS ? 2 : BLOCKS); k++) {
                int64_t pick = random_int(-2, b - 1), node;
                node = b == BLOCKS ? begin + k
                       : pick < 0  ? begin + NODES * pick + BLOCKS
                                   : begin + pick;
                if (node >= 0) inputs[n_inputs++] = node;
            }
            bytes[made] = 512 * random_int(200, 400) * (b == BLOCKS ? BLOCKS : 1) / scale;
            first[++made] = n_inputs;
        }
    }

    plan = graph_pass(made, first, inputs, bytes);
    free(first);
    free(bytes);
    free(inputs);
    return plan;
}

/* Random buffers with the granularities of a GPU: 512 bytes, 4 KiB, 64 KiB, 2 MiB. */
static memo_plan* aligned(int64_t n) {
    static const int64_t alignments[] = {512, 4096, 65536, 2097152};
    memo_plan* plan = empty_plan(n);
    random_state = 6;
    for (int64_t i = 0; i < n; i++) {
        int64_t begin = random_int(0, 2 * n);
        add_buffer(plan, begin, begin + random_log(1, n / 4 + 2), 512 * random_log(1, 1 << 16));
        plan->buffers[i].alignment_bytes = alignments[random_int(0, 3)];
    }
    return plan;
}

/* Objects with "size", "start" and "end", which are vectors of clocks; NULL if the file is missing.
 * The caller frees *made; the id of a buffer is its place there. */
static memo_plan* read_clocks(const char* path, clocked** made) {
    FILE* file = fopen(path, "r");
    clocked* buffers = NULL;
    int64_t n = 0, capacity = 0;
    char word[64];
    memo_plan* plan;
    if (!file) return NULL;
    while (fscanf(file, "%63s", word) == 1) {
        int64_t* clock;
        char after = ',';
        long long value;
        int is_start = !strcmp(word, "\"start\":"), is_size = !strcmp(word, "\"size\":");
        if (!is_start && !is_size && strcmp(word, "\"end\":")) continue;
        if (is_size) {
            if (!memob_reserve(&buffers, &capacity, n + 1, sizeof *buffers) ||
                fscanf(file, "%lld", &value) != 1)
                break;
            memset(&buffers[n], 0, sizeof *buffers);
            buffers[n++].size = value;
            continue;
        }
        clock = is_start ? buffers[n - 1].start : buffers[n - 1].end;
        if (fscanf(file, " [") != 0) break;
        for (n_clocks = 0; after == ',' && n_clocks < CLOCKS_MAX; n_clocks++) {
            if (fscanf(file, "%lld %c", &value, &after) != 2) break;
            clock[n_clocks] = value;
        }
    }
    fclose(file);
    plan = plan_of_clocks(buffers, n);
    *made = buffers;
    return plan;
}

static const struct {
    const char *name, *program, *variable;
    int64_t most; /* buffers; with more it takes gigabytes or minutes to begin */
} peers[] = {{"CP-SAT", "cp-sat", "ORTOOLS", 2000},
             {"minimalloc", "minimalloc", "MINIMALLOC", 5000},
             {"SuperMalloc", "supermalloc", "OMNIMALLOC", 50000},
             {"Omni", "omni", "OMNIMALLOC", 50000}};
enum { N_PEERS = (int)(sizeof peers / sizeof *peers), SHUFFLE_SEED = 7 };

/* Runs another planner on our problem, in an order shuffled with SHUFFLE_SEED; the plan gets its
 * offsets and proof.  clocks: of a plan from vectors of clocks, by id.  Returns its CPU seconds;
 * negative if it finds no plan in time or lacks a feature. */
static double run_peer(int peer, memo_plan* plan, const clocked* clocks, double limit) {
    const char* variable = getenv(peers[peer].variable);
    int is_python = peer != 1;
    char path[] = "/tmp/memo_bench_XXXXXX", result[64], command[1024];
    memo_error error;
    double seconds = -1;
    int64_t i;
    int is_proven, k, descriptor = variable ? mkstemp(path) : -1;
    FILE* file;
    if (descriptor < 0) return -1;
    close(descriptor);

    if (memo_plan_write(plan, path, &error)) fail(path, &error);
    file = clocks ? fopen(path, "a") : NULL;
    for (i = 0; file && i < plan->n_buffers; i++) {
        const clocked* clock = &clocks[plan->buffers[i].id];
        fprintf(file, "clock");
        for (k = 0; k < n_clocks; k++) fprintf(file, " %lld", (long long)clock->start[k]);
        for (k = 0; k < n_clocks; k++) fprintf(file, " %lld", (long long)clock->end[k]);
        fprintf(file, "\n");
    }
    if (file) fclose(file);

    snprintf(result, sizeof result, "%s.result", path);
    snprintf(command, sizeof command,
             "timeout %.0f '%s' bench/plan_peers.py %s '%s' %g %d '%s' >/dev/null 2>&1",
             3 * limit + 60, is_python ? variable : "python3", peers[peer].program, path, limit,
             (int)SHUFFLE_SEED, result);
    file = system(command) == 0 ? fopen(result, "r") : NULL;

    /* Take the offsets, and validate them here. */
    if (file && fscanf(file, "%lf %d", &seconds, &is_proven) == 2) {
        plan->proof = is_proven ? MEMO_PROOF_OPTIMAL : MEMO_PROOF_FEASIBLE;
        plan->peak_bytes = 0;
        for (i = 0; i < plan->n_buffers; i++) {
            long long offset;
            if (fscanf(file, "%lld", &offset) != 1) break;
            plan->buffers[i].offset_bytes = offset;
            plan->peak_bytes = memob_max(plan->peak_bytes, offset + memob_buffer_bytes(plan, i));
        }
        if (i < plan->n_buffers || memo_plan_validate(plan, &error)) {
            printf("(%s: its plan is wrong: %s)\n", peers[peer].name, error.message);
            seconds = -1;
        }
    }

    if (file) fclose(file);
    unlink(path);
    unlink(result);
    return seconds;
}

static void print_missing_peers(int n) {
    static const char* const ways[] = {"a Python with ortools",
                                       "the program, built from its source",
                                       "a Python with omnimalloc", "a Python with omnimalloc"};
    for (int k = 0; k < n; k++)
        if (!getenv(peers[k].variable))
            printf("(%s does not run, because %s is not set: %s)\n", peers[k].name,
                   peers[k].variable, ways[k]);
}

/* Bytes, what they are above the bound, CPU seconds; a star: proven optimal. */
static void print_cell(double seconds, const memo_plan* plan, int64_t bound) {
    if (seconds < 0)
        printf(" - | - | - |");
    else
        printf(" %lld | %.3f%s | %.2f |", (long long)plan->peak_bytes,
               100 * ((double)plan->peak_bytes / (double)bound - 1),
               plan->proof == MEMO_PROOF_OPTIMAL ? "*" : "", seconds);
    fflush(stdout);
}

/* A row of memo beside its peers; frees the plan. */
static void print_peer_row(const char* name, memo_plan* plan, const clocked* clocks, double limit) {
    memoi_problem problem;
    memo_error error;
    int64_t bound;
    double seconds;
    shuffle_buffers(plan, SHUFFLE_SEED);
    if (memo_plan_prepare(plan, &error) || memoi_solve_pose(plan, 0, &problem, &error))
        fail(name, &error);
    bound = memob_max(plan->lower_bound_bytes, problem.lower_bound * problem.unit_bytes);
    memoi_problem_free(&problem);

    seconds = run_engine(plan, MEMO_PLAN_ENGINE_AUTO, 0, limit, 0).cpu_s;
    printf("| %s | %lld | %lld |", name, (long long)plan->n_buffers, (long long)bound);
    print_cell(seconds, plan, bound);
    for (int k = 0; k < N_PEERS; k++)
        print_cell(plan->n_buffers > peers[k].most ? -1 : run_peer(k, plan, clocks, limit), plan,
                   bound);
    printf("\n");
    memo_plan_destroy(plan);
}

/* A file of MORE_INSTANCES; a pattern gives several. */
static const char* more_instances(const char* file, char path[512]) {
    const char* folder = getenv("MORE_INSTANCES");
    snprintf(path, 512, "%s/%s", folder ? folder : "/nonexistent", file);
    return path;
}
#define PROBLEMS_OF_BUFFERS "[!d]*" /* all but the problems of degrees */

/* A file of MORE_INSTANCES by the end of its name; NULL: of another kind.  The caller frees
 * *clocks. */
static memo_plan* read_any(const char* path, clocked** clocks) {
    const char* end = strrchr(path, '.');
    char unpacked[] = "/tmp/memo_bench_XXXXXX", command[512];
    int descriptor = -1;
    memo_plan* plan = NULL;
    memo_trace* trace;
    memo_error error;
    *clocks = NULL;
    pattern_state = 7; /* of the order, which a reader of clocks shuffles */
    if (!end || end < strrchr(path, '/')) return NULL;
    if (!strcmp(end, ".gz") && (descriptor = mkstemp(unpacked)) >= 0) {
        snprintf(command, sizeof command, "gzip -dc '%s' > '%s'", path, unpacked);
        if (system(command) == 0) plan = read_csv(unpacked);
        unlink(unpacked);
        close(descriptor);
    }
    if (!strcmp(end, ".csv")) plan = read_csv(path);
    if (!strcmp(end, ".json")) plan = read_clocks(path, clocks);
    if (!strcmp(end, ".trace") && !memo_trace_read(path, &trace, &error)) {
        if (memo_plan_from_trace(trace, 1, &plan, &error)) fail(path, &error);
        memo_trace_destroy(trace);
    }
    return plan;
}

/* Same instances, same order, same run, same limit, one thread each; every plan is validated here.
 * "-" means that a peer is missing, found no plan within the limit, or lacks a feature of the
 * instance. */
static void print_peers(double limit) {
    static const struct {
        const char* name;
        memo_plan* (*make)(int64_t n);
        int64_t n;
    } shapes[] = {{"1F1B", one_f_one_b, 0},    {"zero bubble", zero_bubble, 0},
                  {"FSDP, limit 2", fsdp, 32}, {"prefetch", prefetch, 16},
                  {"UNet++", unetpp, 300},     {"UNet++", unetpp, 30000},
                  {"NASNet", nasnet, 450},     {"NASNet", nasnet, 31350},
                  {"aligned", aligned, 40},    {"aligned", aligned, 200}};
    const char* letter;
    char all[512];
    glob_t found;
    printf("\n## Other planners: bytes, above the bound %%, CPU seconds; *: proven optimal; limit "
           "%.0f s, order of buffers shuffled with seed %d\n\n",
           limit, (int)SHUFFLE_SEED);
    print_missing_peers(N_PEERS);
    printf("\n| instance | buffers | bound | memo | %% | s |");
    for (int i = 0; i < N_PEERS; i++) printf(" %s | %% | s |", peers[i].name);
    printf("\n|---|---|---|---|---|---|");
    for (int i = 0; i < N_PEERS; i++) printf("---|---|---|");
    printf("\n");

    for (letter = instances; *letter; letter++) {
        char name[2] = {0, 0};
        memo_plan* plan = read_instance(*letter);
        name[0] = *letter;
        if (plan) print_peer_row(name, plan, NULL, limit);
    }
    for (size_t k = 0; k < sizeof trace_names / sizeof *trace_names; k++) {
        char path[256];
        clocked* clocks; /* none */
        memo_plan* plan;
        snprintf(path, sizeof path, "tests/data/%s.trace", trace_names[k]);
        plan = read_any(path, &clocks);
        if (plan) print_peer_row(trace_names[k], plan, NULL, limit);
    }
    memset(&found, 0, sizeof found);
    if (glob(more_instances(PROBLEMS_OF_BUFFERS, all), 0, NULL, &found)) found.gl_pathc = 0;
    for (size_t k = 0; k < found.gl_pathc; k++) {
        clocked* clocks;
        const char* path = found.gl_pathv[k];
        memo_plan* plan = read_any(path, &clocks);
        if (plan) print_peer_row(strrchr(path, '/') + 1, plan, clocks, limit);
        MEMO_FREE(clocks);
    }
    globfree(&found);
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        print_peer_row(shapes[k].name, shapes[k].make(shapes[k].n), NULL, limit);
}

/* ---- many small problems --------------------------------------------------------------------- */

/* 10 to 40 buffers in 60 steps, a fifth of them to the end.  Kind 0: sizes and alignments of bytes
 * that share no factor; 1: sizes of any magnitude, alignments of 16 bytes to 64 KiB; 2: sizes of
 * any magnitude, alignments of 256 bytes to 64 KiB for a third; 3: sizes of 1 to 100.  All but 2
 * have up to two gaps in a third of the buffers. */
static memo_plan* small_problem(int kind, uint64_t seed) {
    static const int64_t primes[] = {7, 11, 13, 17, 23, 31, 37}, few[] = {8, 16, 32},
                         many[] = {256, 4096, 65536};
    memo_plan* plan;
    memo_error error;
    int64_t n, k;
    random_state = 4 * seed + (uint64_t)kind;
    n = random_int(10, 40);
    if (memo_plan_create(n, 2 * n, 1, &plan, &error)) fail("small", &error);
    plan->n_gaps = 0;
    for (int64_t i = 0; i < n; i++) {
        memo_buffer* b = &plan->buffers[i];
        int64_t at;
        b->id = i;
        b->begin = random_int(0, 56);
        b->end = random_int(0, 4) ? memob_min(60, b->begin + random_log(3, 20)) : 60;
        b->size_bytes = kind == 0   ? primes[random_int(0, 6)]
                        : kind == 3 ? random_int(1, 100)
                                    : random_log(64, 1 << 18);
        if (kind == 0 && random_int(0, 2) == 0) b->alignment_bytes = few[random_int(0, 2)];
        if (kind == 1 && random_int(0, 1)) b->alignment_bytes = (int64_t)1 << random_int(4, 16);
        if (kind == 2 && random_int(0, 2) == 0) b->alignment_bytes = many[random_int(0, 2)];
        if (kind == 2 || random_int(0, 2) > 0) continue;
        for (k = 0, at = b->begin + 1; k < 2 && at < b->end - 1; k++) {
            memo_gap* gap = &plan->gaps[plan->n_gaps++];
            gap->buffer = i;
            gap->begin = random_int(at, b->end - 2);
            gap->end = random_int(gap->begin + 1, b->end - 1);
            at = gap->end + random_int(1, 20);
        }
    }
    return plan;
}

/* memo at its first seed with 2 s, CP-SAT with 10 s; a time counts as at least 0.01 s in a
 * ratio. */
static void print_small(int n_problems) {
    const double least = 0.01;
    printf("\n## Small problems: %d of 10 to 40 buffers, CPU seconds\n\n", n_problems);
    print_missing_peers(1);
    printf(
        "\n| kind | problems | proven in 2 s | mean s | worst s | CP-SAT proven in 10 s | mean s "
        "| memo more than 10 times slower | worst ratio |\n"
        "|---|---|---|---|---|---|---|---|---|\n");
    for (int kind = 0; kind < 4; kind++) {
        int n = 0, n_proven = 0, n_peer = 0, n_slower = 0;
        double sum = 0, worst = 0, peer_sum = 0, worst_ratio = 0;
        for (int k = kind; k < n_problems; k += 4, n++) {
            memo_plan* plan = small_problem(kind, (uint64_t)k);
            outcome own = run_engine(plan, MEMO_PLAN_ENGINE_AUTO, 0, 2, 0);
            double peer = run_peer(0, plan, NULL, 10), ratio;
            int is_proven = own.proof == MEMO_PROOF_OPTIMAL;
            n_proven += is_proven;
            sum += own.cpu_s;
            worst = fmax(worst, own.cpu_s);
            if (peer >= 0) {
                int peer_is_proven = plan->proof == MEMO_PROOF_OPTIMAL;
                if (peer_is_proven && is_proven && plan->peak_bytes != own.peak_bytes)
                    printf("(%d: two optima: %lld and %lld)\n", k, (long long)own.peak_bytes,
                           (long long)plan->peak_bytes);
                n_peer += peer_is_proven;
                peer_sum += peer;
                ratio = peer_is_proven ? fmax(own.cpu_s, least) / fmax(peer, least) : 0;
                n_slower += ratio > 10;
                worst_ratio = fmax(worst_ratio, ratio);
            }
            if (!is_proven || own.cpu_s > 1)
                printf("(%d: %lld buffers, %lld above %lld, %s, %.2f s)\n", k,
                       (long long)plan->n_buffers, (long long)own.peak_bytes,
                       (long long)own.bound_bytes, proof_name(own.proof), own.cpu_s);
            memo_plan_destroy(plan);
        }
        printf("| %d | %d | %d | %.3f | %.3f | %d | %.3f | %d | %.1f |\n", kind, n, n_proven,
               sum / n, worst, n_peer, peer_sum / n, n_slower, worst_ratio);
        fflush(stdout);
    }
}

/* ---- PyTorch's caching allocator ------------------------------------------------------------- */

/* Reads the recorded allocator's peaks from the heading of a trace; 0 if it has none. */
static int read_peaks(const char* path, long long* allocated, long long* reserved,
                      long long* resident) {
    FILE* file = fopen(path, "r");
    char line[512];
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "# framework peaks: allocated %lld reserved %lld resident_before %lld",
                       allocated, reserved, resident) == 3;
    if (file) fclose(file);
    return found;
}

static void keep_block(memo_trace* made, int64_t* id, int64_t bytes) {
    memo_error error;
    if (memo_trace_malloc(made, (*id)++, bytes, MEMO_CLASS_PERSISTENT, 0, &error))
        fail("states", &error);
}

/* Copies requests to stream 0, without events. */
static void copy_requests(const memo_trace* trace, int64_t begin, int64_t end, int64_t shift,
                          memo_trace* made) {
    memo_error error;
    for (int64_t i = begin; i < end; i++) {
        const memo_request* r = &trace->requests[i];
        if (r->kind == MEMO_REQUEST_MALLOC &&
            memo_trace_malloc(made, r->id + shift, r->size_bytes, r->memory_class, 0, &error))
            fail("copy", &error);
        if (r->kind == MEMO_REQUEST_FREE && memo_trace_free(made, r->id + shift, &error))
            fail("copy", &error);
    }
}

/* A training run: parameters; a first iteration, in which Adam makes two states and a step count
 * for each parameter before the gradients are freed; then the iteration of the trace.  The five
 * traces free the gradients last, after the loss of 4 bytes; a gradient is as large as its
 * parameter. */
static memo_trace* whole_run(const memo_trace* trace, int is_late) {
    memo_trace* made;
    memo_error error;
    int64_t tail = 0, first, id = 2000000;
    if (memo_trace_create(&made, &error)) fail("run", &error);

    /* The gradients are freed after the loss, which has 4 bytes. */
    for (int64_t i = 0; i < trace->n_requests; i++)
        if (trace->requests[i].kind == MEMO_REQUEST_MALLOC) tail = i;
    for (first = tail; first + 1 < trace->n_requests; first++)
        if (trace->requests[first].kind == MEMO_REQUEST_FREE &&
            trace->requests[memob_request_origin(trace, first)].size_bytes == 4)
            break;
    first++;

    /* Parameters first, then Adam's states: before the first iteration, or inside it. */
    for (int64_t i = 0; i < 2; i++) {
        if (i == 1 && is_late) copy_requests(trace, 0, first, 1000000, made);
        for (int64_t k = first; k < trace->n_requests; k++) {
            int64_t origin = memob_request_origin(trace, k), bytes;
            if (trace->requests[k].kind != MEMO_REQUEST_FREE) continue;
            bytes = trace->requests[origin].size_bytes;
            if (bytes == 4) continue;
            if (i == 1) keep_block(made, &id, 4);
            keep_block(made, &id, bytes);
            if (i == 1) keep_block(made, &id, bytes);
        }
    }

    /* The rest of the first iteration, then a whole one, which is measured. */
    copy_requests(trace, is_late ? first : 0, trace->n_requests, 1000000, made);
    if (memo_trace_mark(made, "iteration begin", &error)) fail("run", &error);
    copy_requests(trace, 0, trace->n_requests, 0, made);
    return made;
}

static double over_bound(const memo_trace* trace, int64_t n_iterations, int64_t resident,
                         int64_t bound) {
    caching_desc desc;
    caching_stats stats;
    memo_error error;
    memset(&desc, 0, sizeof desc);
    desc.n_iterations = n_iterations;
    if (caching_replay(trace, &desc, &stats, &error)) fail("caching", &error);
    return (double)(stats.reserved_bytes - resident) / (double)bound;
}

static void print_caching(void) {
    int n_found = 0;
    printf("\n## PyTorch's caching allocator: (reserved - resident) / bound\n\n");
    printf(
        "The model replays the iteration once; three times; after parameters and Adam's states; "
        "after\n"
        "parameters and a first iteration, at whose end Adam makes its states in the blocks "
        "that\n"
        "activations have freed.  Recorded: the peaks in the heading of the trace.  Its resident "
        "bytes are\n"
        "subtracted wherever parameters are replayed.\n\n");
    printf("| trace | plan | once | 3 times | states before | states in the first | recorded |\n");
    printf("|---|---|---|---|---|---|---|\n");

    for (size_t k = 0; k < sizeof trace_names / sizeof *trace_names; k++) {
        char path[256];
        memo_trace *trace, *early, *late;
        memo_plan* plan;
        memo_error error;
        int64_t bound;
        long long allocated = 0, reserved = 0, resident = 0;

        /* A trace whose heading lacks the allocator's peaks has nothing to compare with. */
        snprintf(path, sizeof path, "tests/data/%s.trace", trace_names[k]);
        if (!read_peaks(path, &allocated, &reserved, &resident) ||
            memo_trace_read(path, &trace, &error))
            continue;
        n_found++;

        if (memo_plan_from_trace(trace, 512, &plan, &error) || memo_plan_solve(plan, NULL, &error))
            fail(path, &error);
        bound = plan->lower_bound_bytes;
        early = whole_run(trace, 0);
        late = whole_run(trace, 1);
        printf("| %s | %.4f | %.4f | %.4f | %.4f | %.4f | %.4f |\n", trace_names[k],
               (double)plan->peak_bytes / (double)bound, over_bound(trace, 1, 0, bound),
               over_bound(trace, 3, 0, bound), over_bound(early, 2, resident, bound),
               over_bound(late, 2, resident, bound), (double)(reserved - resident) / (double)bound);

        memo_trace_destroy(early);
        memo_trace_destroy(late);
        memo_trace_destroy(trace);
        memo_plan_destroy(plan);
    }
    check_found(n_found, "traces");
}

/* ---- two streams ----------------------------------------------------------------------------- */

/* Offloading without rounding buffers.  Stream 1 copies each layer's activations out; stream 0
 * waits for the copy and frees them `behind` layers later.  In the backward, stream 1 requests
 * memory and copies in, one layer ahead of stream 0. */
static memo_trace* offloading(int64_t n_layers, int64_t behind, int is_wait_first) {
    memo_trace* t;
    memo_error error;
    int64_t n_bad = 0, id = 1000;
    random_state = (uint64_t)(n_layers + behind);
    if (memo_trace_create(&t, &error)) fail("offloading", &error);

    /* Forward: stream 1 copies a layer out as soon as stream 0 has computed it. */
    for (int64_t l = 0; l < n_layers + behind; l++) {
        if (l < n_layers) {
            n_bad += memo_trace_malloc(t, l, 4096, MEMO_CLASS_SKELETAL, 0, &error) != 0;
            for (int64_t k = 0; k < 6; k++, id++) {
                n_bad += memo_trace_malloc(t, id, 512 * random_int(1, 8), MEMO_CLASS_TRANSIENT, 0,
                                           &error) != 0;
                if (k > 1) n_bad += memo_trace_free(t, id - 2, &error) != 0;
            }
            for (int64_t k = 2; k > 0; k--) n_bad += memo_trace_free(t, id - k, &error) != 0;
            n_bad += memo_trace_record(t, 0, 0, &error) != 0;
            n_bad += memo_trace_wait(t, 0, 1, &error) != 0;
            n_bad += memo_trace_use(t, l, 1, &error) != 0;
            n_bad += memo_trace_record(t, 10 + l, 1, &error) != 0;
        }

        if (l >= behind) {
            n_bad += memo_trace_wait(t, 10 + l - behind, 0, &error) != 0;
            n_bad += memo_trace_free(t, l - behind, &error) != 0;
        }
    }

    /* Backward. */
    for (int64_t l = n_layers; l >= 0; l--) { /* copies l - 1 in, computes l */
        if (l > 0) {
            if (is_wait_first) {
                n_bad += memo_trace_record(t, 0, 0, &error) != 0;
                n_bad += memo_trace_wait(t, 0, 1, &error) != 0;
            }
            n_bad += memo_trace_malloc(t, l - 1, 4096, MEMO_CLASS_TRANSIENT, 1, &error) != 0;
            n_bad += memo_trace_record(t, 10 + l - 1, 1, &error) != 0;
        }

        if (l == n_layers) continue;
        n_bad += memo_trace_wait(t, 10 + l, 0, &error) != 0;
        n_bad += memo_trace_use(t, l, 0, &error) != 0;
        for (int64_t k = 0; k < 6; k++, id++) {
            n_bad += memo_trace_malloc(t, id, 512 * random_int(1, 8), MEMO_CLASS_TRANSIENT, 0,
                                       &error) != 0;
            if (k > 1) n_bad += memo_trace_free(t, id - 2, &error) != 0;
        }
        for (int64_t k = 2; k > 0; k--) n_bad += memo_trace_free(t, id - k, &error) != 0;

        if (!is_wait_first) {
            n_bad += memo_trace_record(t, 0, 0, &error) != 0;
            n_bad += memo_trace_wait(t, 0, 1, &error) != 0;
        }
        n_bad += memo_trace_free(t, l, &error) != 0;
    }

    if (n_bad) fail("offloading", &error);
    return t;
}

static void print_streams(void) {
    static const int64_t counts[] = {4, 8, 16, 32};
    printf("\n## Two streams, against one\n\n");
    printf("| layers | freed behind | copies in wait | ms | one stream's bound | plan | proof "
           "|\n|---|---|---|---|---|---|---|\n");

    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        for (int64_t behind = 1; behind <= 2; behind++) {
            for (int is_wait_first = 0; is_wait_first < 2; is_wait_first++) {
                memo_trace* trace = offloading(counts[k], behind, is_wait_first);
                memo_trace* one;
                memo_plan *plan, *naive;
                memo_error error;
                double start = now_s();
                if (memo_plan_from_trace(trace, 1, &plan, &error) ||
                    memo_plan_solve(plan, NULL, &error) || memo_plan_check(plan, trace, &error))
                    fail("streams", &error);
                start = now_s() - start;

                /* The same requests on one stream, for comparison. */
                if (memo_trace_create(&one, &error)) fail("streams", &error);
                copy_requests(trace, 0, trace->n_requests, 0, one);
                if (memo_plan_from_trace(one, 1, &naive, &error)) fail("streams", &error);

                printf("| %lld | %lld | %s | %.2f | %lld | %lld | %s |\n", (long long)counts[k],
                       (long long)behind, is_wait_first ? "before" : "after", 1e3 * start,
                       (long long)naive->lower_bound_bytes, (long long)plan->peak_bytes,
                       proof_name(plan->proof));
                memo_plan_destroy(naive);
                memo_plan_destroy(plan);
                memo_trace_destroy(one);
                memo_trace_destroy(trace);
            }
        }
    }
}

/* ---- streams that wait for each other -------------------------------------------------------- */

static void print_clocks(const char* name, int n_streams, memo_plan* plan, int64_t optimum,
                         double limit) {
    outcome result = run_engine(plan, MEMO_PLAN_ENGINE_AUTO, 0, limit, 0);
    memoi_problem problem;
    memo_error error;
    int64_t bound;
    if (memoi_solve_pose(plan, 0, &problem, &error)) fail(name, &error);
    bound = problem.lower_bound * problem.unit_bytes;
    memoi_problem_free(&problem);
    printf("| %s | %d | %lld | %.2f | %.2f | %s | %.2f |\n", name, n_streams,
           (long long)plan->n_buffers,
           100 * ((double)result.peak_bytes / (double)plan->lower_bound_bytes - 1),
           100 * ((double)result.peak_bytes / (double)(optimum ? optimum : bound) - 1),
           proof_name(result.proof), result.seconds);
    fflush(stdout);
    memo_plan_destroy(plan);
}

/* Streams that wait for each other now and then. */
static void print_synchronization(double limit) {
    static const char* const names[] = {"ring", "pipeline", "barrier", "star", "pairs", "never"};
    static const char* const files[] = {"concurrent-4x128.1048576", "concurrent-4x512.1048576",
                                        "sync-ring-4x256"};
    static const int64_t counts[] = {128, 512};
    printf("\n## Streams that wait for each other, limit %.0f s: above the largest sum of live "
           "sizes, and above the "
           "optimum (tilings) or the largest set in conflict\n\n",
           limit);
    printf("| waits | streams | buffers | above live %% | above %% | proof | s |\n"
           "|---|---|---|---|---|---|---|\n");
    for (int k = 0; k < 2; k++)
        for (int n_streams = 2; n_streams <= CLOCKS_MAX; n_streams *= 2)
            print_clocks("tiling", n_streams,
                         tiling_of_streams(n_streams, counts[k], 1 << 20, (uint64_t)n_streams),
                         1 << 20, limit);
    for (int which = 0; which < N_PATTERNS; which++)
        for (int k = 0; k < 2; k++)
            print_clocks(names[which], 4, pattern_of_streams((pattern)which, 4, counts[k], 7), 0,
                         limit);
    for (int k = 0; k < 3; k++) {
        char path[512], file[64];
        memo_plan* plan;
        clocked* clocks;
        snprintf(file, sizeof file, "%s.json", files[k]);
        pattern_state = 7; /* of the order, which it shuffles */
        plan = read_clocks(more_instances(file, path), &clocks);
        if (!plan) continue;
        print_clocks(files[k], n_clocks, plan, k < 2 ? 1 << 20 : 0, limit);
        MEMO_FREE(clocks);
    }
}

/* ---- waits that a plan buys ------------------------------------------------------------------ */

/* The trace of an instance's buffers, each on a stream at random.  No stream waits for another. */
static memo_trace* trace_on_streams(const memo_plan* instance, int n_streams) {
    int64_t n = instance->n_buffers;
    memob_keyed* events = (memob_keyed*)calloc((size_t)(2 * n), sizeof(memob_keyed));
    memo_trace* trace;
    memo_error error;
    if (!events || memo_trace_create(&trace, &error)) exit(1);
    for (int64_t i = 0; i < n; i++) { /* frees before mallocs */
        events[i].key = instance->buffers[i].end;
        events[i].index = i;
        events[n + i].key = instance->buffers[i].begin;
        events[n + i].index = n + i;
    }
    qsort(events, (size_t)(2 * n), sizeof *events, memob_keyed_compare);
    for (int64_t i = 0; i < 2 * n; i++) {
        int64_t k = events[i].index;
        memo_status status =
            k < n ? memo_trace_free(trace, k, &error)
                  : memo_trace_malloc(trace, k - n, instance->buffers[k - n].size_bytes,
                                      MEMO_CLASS_TRANSIENT, (int32_t)pattern_int(0, n_streams - 1),
                                      &error);
        if (status) fail("streams", &error);
    }
    free(events);
    return trace;
}

/* Before each request its stream may wait for each other stream, up to the latest free before it.
 * Returns a new list. */
static memo_wait* list_waits(const memo_plan* plan, int n_streams, double cost_s, int64_t* n) {
    memo_wait* waits =
        (memo_wait*)calloc((size_t)(plan->n_buffers * n_streams) + 1, sizeof(memo_wait));
    if (!waits) exit(1);
    for (int64_t i = *n = 0; i < plan->n_buffers; i++) {
        const memo_buffer* buffer = &plan->buffers[i];
        memo_wait wait = {-1, i, 0, buffer->stream, cost_s};
        if (buffer->memory_class == MEMO_CLASS_PERSISTENT) continue;
        for (int64_t k = 0; k < i; k++) {
            const memo_buffer* freed = &plan->buffers[k];
            if (freed->memory_class != MEMO_CLASS_PERSISTENT && freed->end <= buffer->begin &&
                freed->end >= plan->body_begin &&
                (wait.freed < 0 || freed->end > plan->buffers[wait.freed].end))
                wait.freed = k;
        }
        for (; wait.from < n_streams && wait.freed >= 0; wait.from++)
            if (wait.from != wait.to) waits[(*n)++] = wait;
    }
    return waits;
}

/* Waits if each request waits for each other stream whose bytes it reuses. */
static int64_t count_reuses(const memo_plan* plan) {
    int64_t n = 0;
    for (int64_t i = 0; i < plan->n_buffers; i++) {
        const memo_buffer* later = &plan->buffers[i];
        uint64_t streams = 0;
        for (int64_t k = 0; k < i; k++) {
            const memo_buffer* earlier = &plan->buffers[k];
            if (earlier->end <= later->begin && earlier->stream != later->stream &&
                earlier->offset_bytes < later->offset_bytes + later->size_bytes &&
                later->offset_bytes < earlier->offset_bytes + earlier->size_bytes)
                streams |= (uint64_t)1 << earlier->stream;
        }
        for (; streams; streams &= streams - 1) n++;
    }
    return n;
}

/* A plan with offers at a cost each; 0 if it misses the capacity. */
static int buy_waits(memo_plan* plan, const memo_trace* trace, int n_streams, int64_t capacity,
                     double cost_s, double limit) {
    memo_plan_desc desc = {0};
    memo_error error;
    memo_status status;
    memo_wait* offers = list_waits(plan, n_streams, cost_s, &desc.n_offers);
    desc.capacity_bytes = capacity;
    desc.time_limit_s = limit;
    desc.trace = trace;
    desc.offers = offers;
    status = memo_plan_solve(plan, &desc, &error);
    if ((status && status != MEMO_STATUS_INFEASIBLE) || memo_plan_check(plan, trace, &error))
        fail("waits", &error);
    free(offers);
    return !status;
}

static void print_waits(double limit) {
    static const char* const files[] = {"fsdp-limit2-ckpt", "offload-reload-unsynced",
                                        "prefetch-mid-bwd"};
    const char* letter;
    int n_found = 0;
    memo_error error;
    printf("\n## Waits at the public instances' capacity, buffers on streams at random, limit %.0f "
           "s\n\n"
           "| instance | streams | without waits %% | one a reuse | first plan needs | bought | of "
           "a reuse | of needed |\n"
           "|---|---|---|---|---|---|---|---|\n",
           limit);
    for (letter = instances; *letter; letter++) {
        memo_plan* instance = read_instance(*letter);
        if (!instance) continue;
        n_found++;
        for (int n_streams = 2; n_streams <= 4; n_streams *= 2) {
            memo_trace* trace;
            memo_plan* plan;
            int64_t bare, n_reuses, n_needed;
            int is_met;
            pattern_state = 7;
            trace = trace_on_streams(instance, n_streams);
            if (memo_plan_from_trace(trace, 1, &plan, &error)) fail("waits", &error);
            bare = run_engine(plan, MEMO_PLAN_ENGINE_AUTO, 0, 1, 0).peak_bytes;

            /* Waits that cost nothing are those of the first plan. */
            is_met = buy_waits(plan, trace, n_streams, 1 << 20, 0, limit);
            n_reuses = count_reuses(plan);
            n_needed = plan->n_waits;
            is_met = is_met && buy_waits(plan, trace, n_streams, 1 << 20, 1, limit);
            printf("| %c | %d | %.1f |", *letter, n_streams, 100 * ((double)bare / (1 << 20) - 1));
            if (is_met)
                printf(" %lld | %lld | %lld | %.2f | %.2f |\n", (long long)n_reuses,
                       (long long)n_needed, (long long)plan->n_waits,
                       (double)plan->n_waits / (double)n_reuses,
                       (double)plan->n_waits / (double)n_needed);
            else
                printf(" capacity not met | | | | |\n");
            fflush(stdout);
            memo_plan_destroy(plan);
            memo_trace_destroy(trace);
        }
        memo_plan_destroy(instance);
    }
    check_found(n_found, "public instances");

    printf(
        "\n## The smallest arena, without and with waits, limit %.0f s: above the largest sum of "
        "live sizes\n\n"
        "| trace | buffers | without %% | with %% | waits | proof |\n|---|---|---|---|---|---|\n",
        limit);
    for (int k = 0; k < 4; k++) {
        memo_trace* trace;
        memo_plan* plan;
        char path[512], file[64];
        int64_t bare;
        snprintf(file, sizeof file, "stream_%s.trace", files[k % 3]);
        if (k == 3)
            trace = offloading(32, 1, 0);
        else if (memo_trace_read(more_instances(file, path), &trace, &error))
            continue;
        if (memo_plan_from_trace(trace, 1, &plan, &error)) fail("waits", &error);
        bare = run_engine(plan, MEMO_PLAN_ENGINE_AUTO, 0, limit, 0).peak_bytes;
        buy_waits(plan, trace, 3, 0, 1, limit);
        printf("| %s | %lld | %.2f | %.2f | %lld | %s |\n",
               k == 3 ? "offloading 32 layers" : files[k], (long long)plan->n_buffers,
               100 * ((double)bare / (double)plan->lower_bound_bytes - 1),
               100 * ((double)plan->peak_bytes / (double)plan->lower_bound_bytes - 1),
               (long long)plan->n_waits, proof_name(plan->proof));
        fflush(stdout);
        memo_plan_destroy(plan);
        memo_trace_destroy(trace);
    }
}

/* Medians of five.  The time of reading includes the file; the time of planning begins with the
 * problem. */
static void print_layers(double limit) {
    const char* path = "tests/data/llama-1b-s8k-recompute.trace";
    double first[2] = {0, 0};
    memo_trace *few = NULL, *trace;
    memo_error error;

    if (memo_trace_read(path, &few, &error)) few = NULL;
    printf("\n## Layers: bi-level planning beside reading the trace, limit %.0f s\n\n", limit);
    printf("| trace | layers | buffers | bound | gap %% | proof | by | reading ms | bi-level ms | "
           "auto ms | greedy gap %% |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int shape = few ? 0 : 1; shape < 2; shape++) {
        for (int64_t n = 8; n <= 512; n *= 2) {
            char file[] = "/tmp/memo_bench_XXXXXX";
            double read_s[5], marks_s[5], auto_s[5];
            outcome result, greedy;
            memo_plan* plan;
            int descriptor = mkstemp(file);

            /* The trace goes through a file, because reading it is timed. */
            memset(&result, 0, sizeof result);
            if (descriptor < 0) return;
            close(descriptor);
            if (shape)
                trace = layered_trace(n, 40);
            else if (trace_apply_layers(few, n, &trace, &error))
                fail(path, &error);
            if (memo_trace_write(trace, file, &error)) fail(file, &error);

            for (int k = 0; k < 5; k++) {
                memo_trace_destroy(trace);
                read_s[k] = now_s();
                if (memo_trace_read(file, &trace, &error)) fail(file, &error);
                read_s[k] = now_s() - read_s[k];
                if (memo_plan_from_trace(trace, 512, &plan, &error)) fail(file, &error);
                auto_s[k] = run_traced(plan, trace, MEMO_PLAN_ENGINE_AUTO, 0, limit, 0).seconds;
                result = run_traced(plan, trace, MEMO_PLAN_ENGINE_BILEVEL, 0, limit, 0);
                marks_s[k] = result.seconds;
                if (k < 4) memo_plan_destroy(plan);
            }

            greedy = run_engine(plan, MEMO_PLAN_ENGINE_GREEDY, 0, limit, 0);
            printf("| %s | %lld | %lld | %lld | %.3f | %s | %s | %.2f | %.2f | %.2f | %.2f |\n",
                   shape ? "tight" : "llama-1b recompute", (long long)n, (long long)plan->n_buffers,
                   (long long)result.bound_bytes, 100 * gap_of(&result), proof_name(result.proof),
                   result.engine, 1e3 * median(read_s, 5), 1e3 * median(marks_s, 5),
                   1e3 * median(auto_s, 5),
                   100 * ((double)greedy.peak_bytes / (double)greedy.bound_bytes - 1));

            /* How the times grow over 64 times as many layers. */
            if (n == 8) {
                first[0] = median(read_s, 5);
                first[1] = median(marks_s, 5);
            }
            if (n == 512)
                printf("| from 8 to 512 | | | | | | | x %.0f | x %.0f | | |\n",
                       median(read_s, 5) / first[0], median(marks_s, 5) / first[1]);

            fflush(stdout);
            unlink(file);
            memo_plan_destroy(plan);
            memo_trace_destroy(trace);
        }
    }
    memo_trace_destroy(few);
}

/* ---- ablation -------------------------------------------------------------------------------- */

typedef struct ablation_case {
    char name[32];
    memo_plan* plan;
    memo_trace* trace; /* its layers, or NULL */
    int64_t capacity;
    outcome whole; /* with all stages */
} ablation_case;

typedef struct ablation {
    ablation_case cases[400];
    int n;
} ablation;

static void add_case(ablation* a, const char* name, memo_plan* plan, memo_trace* trace) {
    ablation_case* here = &a->cases[a->n];
    if (!plan || a->n == (int)(sizeof a->cases / sizeof *a->cases)) return;
    memset(here, 0, sizeof *here);
    snprintf(here->name, sizeof here->name, "%.31s", name);
    here->plan = plan;
    here->trace = trace;
    a->n++;
}

static memo_plan* plan_of_trace(const memo_trace* trace, int64_t alignment) {
    memo_plan* plan;
    memo_error error;
    if (memo_plan_from_trace(trace, alignment, &plan, &error)) fail("trace", &error);
    return plan;
}

static void add_files(ablation* a) {
    char all[512];
    glob_t found;
    if (glob(more_instances(PROBLEMS_OF_BUFFERS, all), 0, NULL, &found)) return;
    for (size_t k = 0; k < found.gl_pathc; k++) {
        clocked* clocks;
        const char* path = found.gl_pathv[k];
        add_case(a, strrchr(path, '/') + 1, read_any(path, &clocks), NULL);
        MEMO_FREE(clocks);
    }
    globfree(&found);
}

/* Four of the public instances, one after the other in time.  NULL: the files are missing. */
static memo_plan* instances_in_a_row(int64_t first) {
    enum { N = 4, MOST_BUFFERS = 500 }; /* of an instance */
    const int64_t n_letters = (int64_t)strlen(instances);
    int64_t begin = 0, end = 0;
    memo_plan* row;
    memo_error error;
    if (memo_plan_create(N * MOST_BUFFERS, 0, 1, &row, &error)) fail("row", &error);
    row->n_buffers = 0;
    for (int64_t k = 0; k < N; k++, begin = end) {
        memo_plan* plan = read_instance(instances[(first + k) % n_letters]);
        for (int64_t i = 0; plan && i < plan->n_buffers && i < MOST_BUFFERS; i++) {
            memo_buffer* buffer = &row->buffers[row->n_buffers];
            *buffer = plan->buffers[i];
            buffer->id = row->n_buffers++;
            buffer->begin += begin;
            buffer->end += begin;
            end = buffer->end > end ? buffer->end : end;
        }
        memo_plan_destroy(plan);
    }
    if (row->n_buffers > 0) return row;
    memo_plan_destroy(row);
    return NULL;
}

/* All public and own sets, and generated problems of each table. */
static void add_cases(ablation* a, int seed) {
    static const char* const shapes[] = {"nested", "random", "layered"};
    static memo_plan* (*const steps[])(int64_t) = {
        one_f_one_b, zero_bubble, fsdp, prefetch, unetpp, nasnet, aligned, unetpp, nasnet, aligned};
    static const int64_t sizes[] = {0, 0, 32, 16, 300, 450, 200, 30000, 31350, 40};
    const char* letter;
    char text[256];
    memo_trace* trace;
    memo_error error;

    /* What does not depend on the seed. */
    for (size_t t = 0; t < sizeof trace_names / sizeof *trace_names && seed == 0; t++) {
        snprintf(text, sizeof text, "tests/data/%s.trace", trace_names[t]);
        if (memo_trace_read(text, &trace, &error)) continue;
        add_case(a, trace_names[t], plan_of_trace(trace, 512), trace);
        add_case(a, trace_names[t], plan_of_trace(body_of(trace), 1), NULL);
        if (!trace_apply_layers(trace, 64, &trace, &error)) {
            add_case(a, "64 layers", plan_of_trace(trace, 512), trace);
            add_case(a, "64 layers, no marks", plan_of_trace(trace, 512), NULL);
        }
    }
    for (int64_t n = 8; n <= 128 && seed == 0; n *= 4) {
        trace = layered_trace(n, 60);
        add_case(a, "tight layers", plan_of_trace(trace, 512), trace);
        add_case(a, "tight layers, no marks", plan_of_trace(trace, 512), NULL);
    }
    for (size_t t = 0; t < sizeof steps / sizeof *steps && seed == 0; t++)
        add_case(a, "step", steps[t](sizes[t]), NULL);
    for (int64_t k = 0; k < 6 && seed == 0; k++)
        add_case(a, shapes[k % 3], generate(shapes[k % 3], k < 3 ? 1000 : 10000), NULL);
    for (int64_t k = 0; k < 2 && seed == 0; k++)
        add_case(a, "offloading", plan_of_trace(offloading(16, 1 + k, (int)k), 1), NULL);
    if (seed == 0) add_files(a);

    /* The public instances without and with their capacity, in another order for each seed. */
    for (int64_t k = 0; k < 2; k++)
        for (letter = instances; *letter; letter++) {
            memo_plan* plan = read_instance(*letter);
            if (plan && seed) shuffle_buffers(plan, (uint64_t)seed);
            snprintf(text, sizeof text, "%c%s", *letter, k ? " at capacity" : "");
            add_case(a, text, plan, NULL);
            if (plan) a->cases[a->n - 1].capacity = k << 20;
        }

    for (int64_t k = 0; k < (int64_t)strlen(instances); k++) {
        memo_plan* plan = instances_in_a_row(k);
        if (plan && seed) shuffle_buffers(plan, (uint64_t)seed);
        add_case(a, "in a row", plan, NULL);
    }

    /* Generated with the seed: plain and dense, then of each table. */
    for (int64_t n = 2000; n <= 4500; n += 1250) {
        add_case(a, "dense, uniform", dense("uniform", n, (uint64_t)(n + seed)), NULL);
        add_case(a, "dense, log", dense("log", n, (uint64_t)(n + seed)), NULL);
        add_case(a, "dense, whole", dense("whole", n, (uint64_t)(n + seed)), NULL);
        add_case(a, "dense, short", dense("short", n, (uint64_t)(n + seed)), NULL);
    }
    for (int64_t n = 100; n <= 1600; n *= 4)
        add_case(a, "rectangle", cut_rectangle(n, 1000, (uint64_t)(1000 * n + seed)), NULL);
    for (int64_t k = 0; k < 8; k++) {
        add_case(a, "features 40", with_features(40, (uint64_t)(8 * seed + k)), NULL);
        add_case(a, "features 200", with_features(200, (uint64_t)(8 * seed + k)), NULL);
        if (k < 2)
            add_case(a, "features 1000", with_features(1000, (uint64_t)(2 * seed + k)), NULL);
    }
    for (int64_t n = 2; n <= CLOCKS_MAX; n *= 2)
        add_case(a, "tiling", tiling_of_streams((int)n, 128, 1 << 20, (uint64_t)(n + 8 * seed)),
                 NULL);
    for (int64_t k = 0; k < N_PATTERNS; k++)
        add_case(a, "streams", pattern_of_streams((pattern)k, 4, 128, (uint64_t)(7 + seed)), NULL);
}

/* Runs all cases without a stage, and compares them with the run with all stages. */
static void print_ablation_row(ablation* a, const char* stage, int is_whole, uint64_t seed,
                               double limit) {
    int n_worse = 0, n_better = 0, n_lost = 0, n_won = 0, n_proven = 0, n = 0;
    double gap = 0, seconds = 0;
    left_out = stage;
    for (int k = 0; k < a->n; k++) {
        ablation_case* here = &a->cases[k];
        const outcome* whole = &here->whole;
        outcome result;
        int is_proven, was_proven;
        result =
            run_traced(here->plan, here->trace, MEMO_PLAN_ENGINE_AUTO, here->capacity, limit, seed);
        is_proven = here->capacity ? result.is_met : result.proof == MEMO_PROOF_OPTIMAL;
        was_proven = here->capacity ? whole->is_met : whole->proof == MEMO_PROOF_OPTIMAL;
        n++;
        if (is_whole) here->whole = result;
        gap += here->capacity ? 0 : gap_of(&result);
        seconds += result.seconds;
        n_proven += is_proven;
        if (is_whole) continue;
        if (!here->capacity) n_worse += result.peak_bytes > whole->peak_bytes;
        if (!here->capacity) n_better += result.peak_bytes < whole->peak_bytes;
        n_lost += was_proven && !is_proven;
        n_won += is_proven && !was_proven;
        if (getenv("ABLATION_CASES") &&
            (is_proven != was_proven || result.peak_bytes != whole->peak_bytes))
            fprintf(stderr, "%s: %s %d: %.4f %d -> %.4f %d\n", stage, here->name, k,
                    100 * gap_of(whole), was_proven, 100 * gap_of(&result), is_proven);
    }
    left_out = "";
    printf("| %s |", is_whole ? "nothing" : *stage ? stage : "nothing, another seed");
    if (is_whole)
        printf(" | | %d of %d proven | |", n_proven, n);
    else
        printf(" %d | %d | %d | %d |", n_worse, n_better, n_lost, n_won);
    printf(" %.3f | %.1f |\n", n ? 100 * gap / n : 0, seconds);
    fflush(stdout);
}

static const char* const stages[] = {"orders",    "sweep",  "first_fit", "full_sections",
                                     "windows",   "reuse",  "cover",     "cores",
                                     "ejections", "search", "bricks"};
enum { N_STAGES = sizeof stages / sizeof *stages };

static int is_stage(const char* name) {
    for (int k = 0; k < N_STAGES; k++)
        if (!strcmp(stages[k], name)) return 1;
    return 0;
}

static void print_ablation(int seeds, double limit) {
    static ablation a;
    const char* only = left_out;
    is_cpu = 1;
    left_out = "";
    for (int seed = 0; seed < seeds; seed++) add_cases(&a, seed);
    printf("\n## Without one stage: limit %.2f s of processor time\n\n", limit);
    printf("| without | worse | better | proofs lost | won | mean gap %% | s |\n"
           "|---|---|---|---|---|---|---|\n");
    print_ablation_row(&a, "", 1, 0, limit);
    print_ablation_row(&a, "", 0, 1, limit);
    for (int k = 0; k < N_STAGES; k++)
        if (!*only || !strcmp(only, stages[k])) print_ablation_row(&a, stages[k], 0, 0, limit);
}

/* What is proven within a second, again with a limit of ten: the nodes are the same, and so is the
 * time up to noise. */
static void print_limits(void) {
    static ablation a;
    int n_proven = 0, n_lost = 0, n_other = 0, n_slower = 0;
    double worst = 0;
    is_cpu = 1;
    add_cases(&a, 0);
    printf(
        "\n## Time to proof at limits of 1 s and 10 s of processor time\n\n"
        "| problem | buffers | nodes at 1 | at 10 | s at 1 | at 10 |\n|---|---|---|---|---|---|\n");
    for (int k = 0; k < a.n; k++) {
        const ablation_case* here = &a.cases[k];
        outcome result[2];
        double ratio;
        result[0] =
            run_traced(here->plan, here->trace, MEMO_PLAN_ENGINE_AUTO, here->capacity, 1, 0);
        if (here->capacity ? !result[0].is_met : result[0].proof != MEMO_PROOF_OPTIMAL) continue;
        result[1] =
            run_traced(here->plan, here->trace, MEMO_PLAN_ENGINE_AUTO, here->capacity, 10, 0);
        n_proven++;
        n_lost += here->capacity ? !result[1].is_met : result[1].proof != MEMO_PROOF_OPTIMAL;
        n_other += result[0].n_nodes != result[1].n_nodes;
        ratio = fmax(result[1].seconds, 0.01) / fmax(result[0].seconds, 0.01);
        n_slower += ratio > 1.5;
        worst = fmax(worst, ratio);
        if (ratio > 1.5 || result[0].n_nodes != result[1].n_nodes)
            printf("| %s | %lld | %lld | %lld | %.3f | %.3f |\n", here->name,
                   (long long)here->plan->n_buffers, (long long)result[0].n_nodes,
                   (long long)result[1].n_nodes, result[0].seconds, result[1].seconds);
        fflush(stdout);
    }
    printf(
        "\n%d of %d proven within 1 s; within 10 s %d lost, %d with other nodes, %d in more than "
        "1.5 times the time (at most %.2f; at least 0.01 s counts)\n",
        n_proven, a.n, n_lost, n_other, n_slower, worst);
}

/* Is this table selected?  Without names, all are. */
static int is_asked(int argc, char** argv, const char* name) {
    int n_names = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], name)) return 1;
        if (argv[i][0] == '-')
            i++; /* its value */
        else
            n_names++;
    }
    return n_names == 0;
}

int main(int argc, char** argv) {
    static const char* const names[] = {"traces",   "engines", "minimalloc", "minimize", "tight",
                                        "growth",   "dense",   "layers",     "caching",  "streams",
                                        "features", "peers",   "waits",      "ablation", "small",
                                        "tilings",  "limits"};
    int seeds = 5;
    double limit = 10;
    bench_help(argc, argv,
               "[TABLE...] [--seeds N] [--limit S] [--threads N] [--cpu 1] [--without STAGE]");

    /* Words select tables; options apply to all of them. */
    for (int i = 1; i < argc; i++) {
        int is_known = 0;
        for (int k = 0; k < (int)(sizeof names / sizeof *names); k++)
            is_known |= !strcmp(argv[i], names[k]);
        if (is_known) continue;
        if (!strcmp(argv[i], "--seeds") && i + 1 < argc)
            seeds = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--limit") && i + 1 < argc)
            limit = atof(argv[++i]);
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc)
            n_threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--cpu") && i + 1 < argc)
            is_cpu = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--without") && i + 1 < argc)
            left_out = argv[++i];
        else {
            fprintf(stderr,
                    "plan: %s: unknown table or option; the head of bench/plan.c lists them\n",
                    argv[i]);
            return 2;
        }
    }
    if (*left_out && !is_stage(left_out)) {
        fprintf(stderr, "plan: --without %s: unknown stage; the stages are", left_out);
        for (int k = 0; k < N_STAGES; k++) fprintf(stderr, "%s %s", k ? "," : "", stages[k]);
        fprintf(stderr, "\n");
        return 2;
    }
    if (seeds < 1 || seeds > 64 || !(limit > 0) || n_threads < 1 || n_threads > 64) {
        fprintf(stderr, "plan: --seeds and --threads must be 1 to 64, and --limit above 0\n");
        return 2;
    }

    if (is_asked(argc, argv, "traces")) print_traces(seeds);
    if (is_asked(argc, argv, "engines")) print_engines(limit);
    if (is_asked(argc, argv, "minimalloc")) print_minimalloc(seeds, limit);
    if (is_asked(argc, argv, "minimize")) print_minimize(seeds, limit);
    if (is_asked(argc, argv, "tight")) print_tight(seeds, limit);
    if (is_asked(argc, argv, "tilings")) print_tilings(seeds, limit);
    if (is_asked(argc, argv, "growth")) print_growth(limit);
    if (is_asked(argc, argv, "dense")) print_dense(seeds, limit);
    if (is_asked(argc, argv, "features")) print_features(seeds, limit);
    if (is_asked(argc, argv, "caching")) print_caching();
    if (is_asked(argc, argv, "streams")) {
        print_streams();
        print_synchronization(limit);
    }
    if (is_asked(argc, argv, "waits")) print_waits(limit);
    if (is_asked(argc, argv, "layers")) print_layers(limit);
    if (is_asked(argc, argv, "small")) print_small(100 * seeds);
    if (is_asked(argc, argv, "peers")) print_peers(limit);
    if (is_asked(argc, argv, "limits")) print_limits();
    if (is_asked(argc, argv, "ablation") && !is_asked(argc, argv, "")) print_ablation(seeds, limit);
    return is_missing;
}
