/* 02_plan_trace_file.c - reads a trace of memory requests, plans it, and writes the plan and its
 * picture.
 *
 * A trace is text with lines "malloc ID SIZE", "free ID SIZE" and "mark TEXT" (memo.h, chapter 2).
 * The log of any allocator can be written so.  examples/layer.trace is a small trace.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/02_plan_trace_file.c -o 02_plan_trace_file -lpthread -lm
 * Run:
 *     ./02_plan_trace_file examples/layer.trace layer.plan layer.svg
 * Expected output:
 *     examples/layer.trace: 17 buffers, 4736 KiB requested in all
 *     lower bound 2176 KiB, planned 2176 KiB by greedy: optimal
 *     layer.plan, layer.svg written
 */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo.h"
#include "memo_plan.h"
#include "extras/memo_look.h"

#include <stdio.h>

static memo_status plan_trace(const memo_trace* trace, char** paths, memo_error* error) {
    int64_t total_bytes = 0;
    memo_plan* plan;
    memo_status status = memo_plan_from_trace(trace, 0, &plan, error); /* aligned to 512 bytes */
    if (status) return status;

    for (int64_t i = 0; i < plan->n_buffers; i++) total_bytes += plan->buffers[i].size_bytes;
    printf("%s: %lld buffers, %lld KiB requested in all\n", paths[1], (long long)plan->n_buffers,
           (long long)(total_bytes / 1024));

    status = memo_plan_solve(plan, NULL, error);

    /* The solver's plan is valid; this call checks plans of unknown origin. */
    if (!status) status = memo_plan_validate(plan, error);
    if (!status)
        printf("lower bound %lld KiB, planned %lld KiB by %s: %s\n",
               (long long)(plan->lower_bound_bytes / 1024), (long long)(plan->peak_bytes / 1024),
               plan->engine, plan->proof == MEMO_PROOF_OPTIMAL ? "optimal" : "valid");

    if (!status) status = memo_plan_write(plan, paths[2], error);
    if (!status) status = memo_plan_write_svg(plan, trace, paths[1], paths[3], error);
    if (!status) printf("%s, %s written\n", paths[2], paths[3]);
    memo_plan_destroy(plan);
    return status;
}

int main(int argc, char** argv) {
    memo_error error;
    memo_trace* trace;
    memo_status status;
    if (argc != 4) {
        fprintf(stderr, "usage: %s TRACE PLAN SVG\n", argv[0]);
        return 2;
    }
    status = memo_trace_read(argv[1], &trace, &error);
    if (!status) {
        status = plan_trace(trace, argv, &error);
        memo_trace_destroy(trace);
    }
    if (status) fprintf(stderr, "02_plan_trace_file: %s\n", error.message);
    return status ? 1 : 0;
}
