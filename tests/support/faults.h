/* faults.h - one switch for faults in any test program: MEMO_FAULT=K in the environment makes the call
 * K fail, of the device or for host memory (see scarce.h), in programs built with VARIANT=faults.
 * What follows must end in a status: the first CHECK that is false behind the fault ends the program,
 * after a look for leaks.  A crash, a hang and a leak are bugs.  tests/faults.sh chooses K.
 *
 * memo_test.h includes it.  Every host device of the program counts, whoever calls it; calls whose
 * failure nobody reads (to free, to destroy, to synchronize with error NULL) do not.  So do the
 * trainer's functions of a session: one that fails calls memo_session_fail, and computes nothing. */
#ifndef TEST_FAULTS_H
#define TEST_FAULTS_H

#include "scarce.h"
#include <sanitizer/lsan_interface.h>

#define FAULTY(function, parameters, arguments)                                                    \
    static memo_status(*memo_fault_inner_##function) parameters;                                   \
    static memo_status memo_fault_##function parameters {                                          \
        if (error && fault_strikes(#function))                                                     \
            return memo_error_set(error, MEMO_STATUS_DEVICE, #function ": MEMO_FAULT");            \
        return memo_fault_inner_##function arguments;                                              \
    }
#define FAULTY_FUNCTIONS(X)                                                                        \
    X(device_alloc, (void* c, int64_t n, void** to, memo_error* error), (c, n, to, error))         \
    X(host_alloc, (void* c, int64_t n, void** to, memo_error* error), (c, n, to, error))           \
    X(memory_info, (void* c, int64_t* n, int64_t* all, memo_error* error), (c, n, all, error))     \
    X(stream_create, (void* c, const char* name, int32_t k, memo_stream* s, memo_error* error),    \
      (c, name, k, s, error))                                                                      \
    X(stream_synchronize, (void* c, memo_stream s, memo_error* error), (c, s, error))              \
    X(event_create, (void* c, memo_event* e, memo_error* error), (c, e, error))                    \
    X(event_create_untimed, (void* c, memo_event* e, memo_error* error), (c, e, error))            \
    X(event_record, (void* c, memo_event e, memo_stream s, memo_error* error), (c, e, s, error))   \
    X(event_wait, (void* c, memo_event e, memo_stream s, memo_error* error), (c, e, s, error))     \
    X(event_query, (void* c, memo_event e, int32_t* is_done, memo_error* error),                   \
      (c, e, is_done, error))                                                                      \
    X(event_synchronize, (void* c, memo_event e, memo_error* error), (c, e, error))                \
    X(event_elapsed, (void* c, memo_event a, memo_event b, double* s, memo_error* error),          \
      (c, a, b, s, error))                                                                         \
    X(copy,                                                                                        \
      (void* c, memo_stream s, memo_copy_kind kind, void* to, const void* from, int64_t n,         \
       memo_error* error),                                                                         \
      (c, s, kind, to, from, n, error))                                                            \
    X(copy_rows,                                                                                   \
      (void* c, memo_stream s, memo_copy_kind kind, void* to, int64_t to_stride, const void* from, \
       int64_t from_stride, int64_t row_bytes, int64_t n, memo_error* error),                      \
      (c, s, kind, to, to_stride, from, from_stride, row_bytes, n, error))                         \
    X(fill, (void* c, memo_stream s, void* to, int32_t value, int64_t n, memo_error* error),       \
      (c, s, to, value, n, error))                                                                 \
    X(status, (void* c, memo_error* error), (c, error))                                            \
    X(row_kernel, (void* c, memo_stream s, const memo_row_call* call, memo_error* error),          \
      (c, s, call, error))                                                                         \
    X(launch_host, (void* c, memo_stream s, memo_host_call* call, memo_error* error),              \
      (c, s, call, error))
FAULTY_FUNCTIONS(FAULTY)

/* The device's own table gets the functions: whoever copies it counts. */
__attribute__((unused)) static memo_status
faulty_host_device_create(const memo_host_device_desc* desc, memo_device** device,
                          memo_error* error) {
    const memo_status status = memo_host_device_create(desc, device, error);
    if (status || !device || !*device) return status;
#define FAULTY_SET(function, parameters, arguments)                                                \
    memo_fault_inner_##function = (*device)->function;                                             \
    if ((*device)->function) (*device)->function = memo_fault_##function;
    FAULTY_FUNCTIONS(FAULTY_SET)
    return status;
}
#define memo_host_device_create(desc, device, error) faulty_host_device_create(desc, device, error)

/* --- functions of a trainer --- */

#ifdef MEMO_PLAN_H
#define FAULTY_STEPS(X)                                                                            \
    X(step, (void* user, memo_session* s), (of->user, s))                                          \
    X(forward, (void* user, memo_session* s, int32_t layer), (of->user, s, layer))                 \
    X(between, (void* user, memo_session* s), (of->user, s))                                       \
    X(backward, (void* user, memo_session* s, int32_t layer), (of->user, s, layer))                \
    X(loss, (void* user, memo_session* s), (of->user, s))                                          \
    X(recompute,                                                                                   \
      (void* user, memo_session* s, int32_t layer, int32_t tensor, int64_t begin, int64_t end),    \
      (of->user, s, layer, tensor, begin, end))                                                    \
    X(update, (void* user, memo_session* s, int32_t layer), (of->user, s, layer))                  \
    X(planned, (void* user, memo_session* s, const memo_step_plan* plan), (of->user, s, plan))
#define FAULTY_STEP(function, parameters, arguments)                                               \
    static void memo_fault_##function parameters {                                                 \
        const memo_session_desc* of = (const memo_session_desc*)user;                              \
        if (fault_strikes(#function))                                                              \
            memo_session_fail(s, MEMO_STATUS_DEVICE, #function ": MEMO_FAULT");                    \
        else                                                                                       \
            of->function arguments;                                                                \
    }
FAULTY_STEPS(FAULTY_STEP)

/* The ranks have met before it fails. */
static memo_status memo_fault_agree(void* user, int64_t* values, int64_t n, memo_error* error) {
    const memo_session_desc* of = (const memo_session_desc*)user;
    const memo_status status = of->agree(of->user, values, n, error);
    if (status || !fault_strikes("agree")) return status;
    return memo_error_set(error, MEMO_STATUS_COMM, "agree: MEMO_FAULT");
}
static memo_status memo_fault_fetch(void* user, int32_t layer, int32_t state, int64_t at, void* to,
                                    int64_t n_bytes, memo_error* error) {
    const memo_session_desc* of = (const memo_session_desc*)user;
    if (!fault_strikes("fetch")) return of->fetch(of->user, layer, state, at, to, n_bytes, error);
    return memo_error_set(error, MEMO_STATUS_IO, "fetch: MEMO_FAULT");
}
/* It has no status. */
static void memo_fault_update_host(void* user, int32_t layer, void* const* states) {
    const memo_session_desc* of = (const memo_session_desc*)user;
    of->update_host(of->user, layer, states);
}

/* The desc's functions with faults.  Its copy, which is their user, lives as long as the program. */
__attribute__((unused)) static memo_session_desc faulty_desc(const memo_session_desc* desc) {
    memo_session_desc own = *desc, *kept = (memo_session_desc*)malloc(sizeof *kept);
    *kept = *desc;
    __lsan_ignore_object(kept);
    own.user = kept;
#define FAULTY_USE(function, parameters, arguments)                                                \
    if (own.function) own.function = memo_fault_##function;
    FAULTY_STEPS(FAULTY_USE)
    FAULTY_USE(agree, , )
    FAULTY_USE(fetch, , )
    FAULTY_USE(update_host, , )
    return own;
}
#define FAULTY_DESC(function, parameters, arguments)                                               \
    __attribute__((unused)) static memo_status faulty_##function parameters {                      \
        memo_session_desc own;                                                                     \
        if (!desc) return function arguments;                                                      \
        own = faulty_desc(desc);                                                                   \
        desc = &own;                                                                               \
        return function arguments;                                                                 \
    }
FAULTY_DESC(memo_session_plan,
            (const memo_session_desc* desc, const memo_profile* profile, memo_step_plan** plan,
             memo_error* error),
            (desc, profile, plan, error))
FAULTY_DESC(memo_session_get_least,
            (const memo_session_desc* desc, int64_t* device_bytes, memo_error* error),
            (desc, device_bytes, error))
FAULTY_DESC(memo_session_open,
            (const memo_session_desc* desc, const memo_step_plan* plan, memo_session** session,
             memo_error* error),
            (desc, plan, session, error))
FAULTY_DESC(memo_session_create,
            (const memo_session_desc* desc, memo_session** session, memo_error* error),
            (desc, session, error))
#define memo_session_plan      faulty_memo_session_plan
#define memo_session_get_least faulty_memo_session_get_least
#define memo_session_open      faulty_memo_session_open
#define memo_session_create    faulty_memo_session_create

#ifdef MEMO_CHECK_H
/* A norm has the session's user. */
static double (*memo_fault_watched)(void* user);
static double memo_fault_norm(void* user) {
    return memo_fault_watched(((const memo_session_desc*)user)->user);
}
__attribute__((unused)) static memo_status
faulty_memo_session_watch(memo_session* s, const memo_verify_desc* check, memo_error* error) {
    memo_verify_desc own = MEMO_ZERO(memo_verify_desc);
    if (!check || !check->norm) return memo_session_watch(s, check, error);
    own = *check;
    memo_fault_watched = own.norm;
    own.norm = memo_fault_norm;
    return memo_session_watch(s, &own, error);
}
#define memo_session_watch faulty_memo_session_watch
#endif

/* A fill has the session's user, and runs in the call. */
static __thread void (*memo_fault_filling)(void* user, memo_session* s, int32_t layer);
static void memo_fault_fill_layer(void* user, memo_session* s, int32_t layer) {
    if (fault_strikes("fill_states"))
        memo_session_fail(s, MEMO_STATUS_DEVICE, "fill_states: MEMO_FAULT");
    else
        memo_fault_filling(((const memo_session_desc*)user)->user, s, layer);
}
__attribute__((unused)) static memo_status
faulty_memo_session_fill_states(memo_session* s, void (*fill)(void*, memo_session*, int32_t),
                                memo_error* error) {
    memo_fault_filling = fill;
    return memo_session_fill_states(s, fill ? memo_fault_fill_layer : NULL, error);
}
#define memo_session_fill_states faulty_memo_session_fill_states
#endif

/* Behind the fault a failed check is a status that was read.  What it holds is on the stack still. */
static inline void faulty_end(void) {
    if (!fault_struck) return;
    printf("# the status of `%s` was read\n", fault_struck);
    fflush(stdout);
    if (__lsan_do_recoverable_leak_check()) _exit(98);
    _exit(0);
}
__attribute__((destructor)) static void faulty_count(void) {
    printf("# calls %lld%s%s\n", fault_calls, fault_struck ? ", passed after " : "",
           fault_struck ? fault_struck : "");
}

#endif
