/* 01_arena.c - records the memory requests of one step without computing, plans them, and replays
 * them every step.
 *
 * Build:
 *     cc -std=c99 -O2 -I. examples/01_arena.c -o 01_arena -lpthread -lm
 * Expected output:
 *     recorded 3 buffers
 *     planned 4194304 bytes; no plan can be smaller
 *     1000 steps, 3000 requests served from one block of 4194304 bytes
 */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#include "memo.h"
#include "memo_plan.h"
#include <stdio.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)

/* One step, as a trainer would write it.  A dry run must not touch the addresses. */
static memo_status step(memo_arena* arena, int is_dry, memo_error* error) {
    void *x, *y, *z;
    if (memo_arena_begin(arena, error) || memo_arena_alloc(arena, 3 * MIB, 0, &x, error) ||
        memo_arena_alloc(arena, 1 * MIB, 0, &y, error))
        return error->status;
    if (!is_dry) memset(x, 1, 4096);
    /* x is not used any more, so z may have its bytes. */
    if (memo_arena_free(arena, x, error) || memo_arena_alloc(arena, 2 * MIB, 0, &z, error))
        return error->status;
    if (!is_dry) memset(z, 2, 4096);
    if (memo_arena_free(arena, y, error) || memo_arena_free(arena, z, error)) return error->status;
    return memo_arena_end(arena, error);
}

/* Creates an arena, runs the steps in it, and destroys it. */
static memo_status steps(const memo_arena_desc* desc, int n_steps, memo_error* error) {
    int is_dry = desc->plan == NULL;
    memo_arena* arena;
    memo_status status = memo_arena_create(desc, &arena, error);
    if (status) return status;
    for (int i = 0; i < n_steps && !status; i++) status = step(arena, is_dry, error);
    const memo_arena_stats stats = memo_arena_get_stats(arena);
    if (!status && !is_dry)
        printf("%d steps, %lld requests served from one block of %lld bytes\n", n_steps,
               (long long)stats.n_requests, (long long)stats.reserved_bytes);
    memo_arena_destroy(arena);
    return status;
}

int main(void) {
    memo_host_device_desc device_desc = {0};
    memo_arena_desc record = {0}, replay = {0};
    memo_device* device = NULL;
    memo_trace* trace = NULL;
    memo_plan* plan = NULL;
    memo_error error;
    memo_status status = memo_trace_create(&trace, &error);

    /* The dry run: an arena with a trace and without a device. */
    record.trace = trace;
    if (!status) status = steps(&record, 1, &error);

    if (!status) status = memo_plan_from_trace(trace, 0, &plan, &error);
    if (!status) status = memo_plan_solve(plan, NULL, &error);
    if (!status) {
        printf("recorded %lld buffers\nplanned %lld bytes; %s\n", (long long)plan->n_buffers,
               (long long)plan->peak_bytes,
               plan->proof == MEMO_PROOF_OPTIMAL ? "no plan can be smaller" : "a valid plan");
        status = memo_host_device_create(&device_desc, &device, &error);
    }

    /* The real steps take their addresses from the plan. */
    replay.device = device;
    replay.plan = plan;
    if (!status) status = steps(&replay, 1000, &error);

    if (status) fprintf(stderr, "01_arena: %s\n", error.message);
    memo_host_device_destroy(device);
    memo_plan_destroy(plan);
    memo_trace_destroy(trace);
    return status ? 1 : 0;
}
