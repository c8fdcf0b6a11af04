/* The shared object of memo_plan: the public functions of the headers, those that Python needs beside them, and the
 * sizes of the structs that __init__.py mirrors. */
#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "examples/tools/plan_proof.h" /* includes extras/memo_pack.h and memo_plan.h */
#include "extras/memo_look.h"

#include <signal.h>

/* Python delivers a signal only when C returns.  So planning has a handler of its own, which ends the search. */
static int32_t python_stop;
static void python_ask_to_stop(int number) {
    (void)number;
    __atomic_store_n(&python_stop, 1, __ATOMIC_RELAXED);
}

/* memo_plan_solve.  On the main thread SIGINT ends the search, unless it is ignored, and is raised again for the handler
 * from before.  Then a plan that a log function solves hands the signal on to the plan around it. */
memo_status memo_python_solve(memo_plan* plan, const memo_plan_desc* desc, int is_main, memo_error* error);
memo_status memo_python_solve(memo_plan* plan, const memo_plan_desc* desc, int is_main, memo_error* error) {
    memo_plan_desc own = *desc;
    struct sigaction stops, before;
    memo_status status;
    memset(&stops, 0, sizeof stops);
    stops.sa_handler = python_ask_to_stop;
    if (!is_main || sigaction(SIGINT, NULL, &before) || before.sa_handler == SIG_IGN)
        return memo_plan_solve(plan, desc, error);
    own.stop = &python_stop;
    (void)sigaction(SIGINT, &stops, NULL);
    status = memo_plan_solve(plan, &own, error);
    (void)sigaction(SIGINT, &before, NULL);
    if (__atomic_exchange_n(&python_stop, 0, __ATOMIC_RELAXED)) (void)raise(SIGINT);
    return status;
}

memo_status memo_python_write_proof(const memo_plan* plan, const char* path, int* is_found, memo_error* error);
memo_status memo_python_write_proof(const memo_plan* plan, const char* path, int* is_found, memo_error* error) {
    return write_proof(plan, path, is_found, error);
}

extern const int64_t memo_python_sizes[];
const int64_t memo_python_sizes[] = {sizeof(memo_error), sizeof(memo_buffer), sizeof(memo_gap), sizeof(memo_plan),
                                     sizeof(memo_plan_desc)};
