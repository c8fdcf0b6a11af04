/* The shared object of memo_plan: the public functions of the headers, those that Python needs beside them, and the
 * sizes of the structs that __init__.py mirrors. */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "examples/tools/plan_proof.h" /* includes extras/memo_pack.h and memo_plan.h */
#include "extras/memo_look.h"

#include <signal.h>

/* Python delivers a signal only when C returns.  So a search has a handler of its own, which ends it. */
static int32_t python_stop;
static void python_ask_to_stop(int number) {
    (void)number;
    __atomic_store_n(&python_stop, 1, __ATOMIC_RELAXED);
}

/* On the main thread SIGINT ends the search from here on, unless it is ignored.  Returns what the search reads; NULL: nothing. */
static const int32_t* python_begin(int is_main, struct sigaction* before) {
    struct sigaction stops;
    memset(&stops, 0, sizeof stops);
    stops.sa_handler = python_ask_to_stop;
    if (!is_main || sigaction(SIGINT, NULL, before) || before->sa_handler == SIG_IGN) return NULL;
    (void)sigaction(SIGINT, &stops, NULL);
    return &python_stop;
}

/* Raises the signal again for the handler from before.  Then a plan that a log function solves hands the signal on to the
 * plan around it. */
static void python_end(const int32_t* stop, const struct sigaction* before) {
    if (!stop) return;
    (void)sigaction(SIGINT, before, NULL);
    if (__atomic_exchange_n(&python_stop, 0, __ATOMIC_RELAXED)) (void)raise(SIGINT);
}

memo_status memo_python_solve(memo_plan* plan, const memo_plan_desc* desc, int is_main, memo_error* error);
memo_status memo_python_solve(memo_plan* plan, const memo_plan_desc* desc, int is_main, memo_error* error) {
    memo_plan_desc own = *desc;
    struct sigaction before;
    memo_status status;
    own.stop = python_begin(is_main, &before);
    status = memo_plan_solve(plan, &own, error);
    python_end(own.stop, &before);
    return status;
}

/* Is buffer i free before buffer k begins, by n_clocks each? */
static int python_is_over(const int64_t* end, const int64_t* start, int64_t n_clocks) {
    for (int64_t c = 0; c < n_clocks; c++)
        if (end[c] > start[c]) return 0;
    return 1;
}

/* Holds of a plan whose times are sums of clocks: each buffer has a lane of its own, and is held against all that begin later by
 * these sums, but not by each clock.  starts, ends: (buffers, clocks). */
memo_status memo_python_hold(memo_plan* plan, int64_t n_clocks, const int64_t* starts, const int64_t* ends, memo_error* error);
memo_status memo_python_hold(memo_plan* plan, int64_t n_clocks, const int64_t* starts, const int64_t* ends, memo_error* error) {
    enum { MOST = 1 << 25 }; /* as many as the planner takes one by one */
    const int64_t n = plan->n_buffers;
    for (int pass = 0; pass < 2; pass++) { /* counts, then lists */
        if (pass) plan->holds = (memo_hold*)memob_calloc(plan->n_holds, sizeof(memo_hold));
        plan->n_holds = 0;
        if (pass && !plan->holds) return memob_no_memory(error, "the holds of a plan");
        for (int64_t i = 0; i < n; i++) {
            plan->buffers[i].lane = MEMOB_STREAMS + (int32_t)i; /* as a lane that is no stream */
            for (int64_t k = 0; k < n; k++) {
                const int64_t begin = plan->buffers[k].begin;
                if (plan->buffers[i].end > begin || python_is_over(ends + i * n_clocks, starts + k * n_clocks, n_clocks)) continue;
                if (plan->n_holds == MOST) {
                    plan->n_holds = 0; /* none is listed yet */
                    return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                                          "begins: more than %d pairs of buffers have no order by their clocks; fewer buffers, or "
                                          "numbers, would work",
                                          (int)MOST);
                }
                if (pass) {
                    memo_hold* hold = &plan->holds[plan->n_holds];
                    hold->buffer = i;
                    hold->until = begin + 1;
                    hold->lane = MEMOB_STREAMS + (int32_t)k;
                }
                plan->n_holds++;
            }
        }
    }
    return MEMO_STATUS_OK;
}

memo_status memo_python_write_proof(const memo_plan* plan, const char* path, int is_main, int* is_found, memo_error* error);
memo_status memo_python_write_proof(const memo_plan* plan, const char* path, int is_main, int* is_found, memo_error* error) {
    struct sigaction before;
    const int32_t* stop = python_begin(is_main, &before);
    const memo_status status = write_proof(plan, stop, path, is_found, error);
    python_end(stop, &before);
    return status;
}

extern const int64_t memo_python_sizes[];
const int64_t memo_python_sizes[] = {sizeof(memo_error), sizeof(memo_buffer), sizeof(memo_gap), sizeof(memo_plan),
                                     sizeof(memo_plan_desc)};
