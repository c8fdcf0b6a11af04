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
