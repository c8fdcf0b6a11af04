/* faults.h - one switch for faults in any test program: MEMO_FAULT=K in the environment makes the call
 * K fail, of the device or for host memory (see scarce.h), in programs built with VARIANT=faults.
 * What follows must end in a status: the first CHECK that is false behind the fault ends the program,
 * after a look for leaks.  A crash, a hang and a leak are bugs.  tests/faults.sh chooses K.
 *
 * memo_test.h includes it.  Every host device of the program counts, whoever calls it; calls whose
 * failure nobody reads (to free, to destroy, to synchronize with error NULL) do not. */
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
