/* memo_faults.h - a device around a device that fails a chosen call and delays streams, to test a
 * trainer.
 *
 * EXAMPLE: fail every call in turn (examples/20_inject_faults.c is complete).
 *
 *     #define MEMO_IMPLEMENTATION             // in exactly one translation unit
 *     #define MEMO_FAULTS_IMPLEMENTATION      // in the same one
 *     #include "extras/memo_faults.h"                // cc -std=c99 test.c -lpthread -lm
 *
 *     memo_status status;
 *     int64_t k = 1;
 *     do {
 *         memo_faults faults;
 *         memo_faults_init(&faults, device);
 *         faults.failing_call = k++;
 *         status = train(&faults.device, &error); // instead of device
 *     } while (status); // until a run makes fewer than k calls
 *
 * All calls of memo_device are counted, except those whose failure nobody reads: to free, to
 * destroy, and to synchronize with error NULL, as before these.  They are passed on.  A call that
 * fails does nothing, but a synchronization waits first, as in CUDA.  Delays change no result if
 * events order the streams; if a wait is missing, they do.
 *
 * A trainer launches its own work on the inner device, which memo_host_device_launch requires.
 *
 * License: MIT.  Language: C99 that is also C++11. */
#ifndef MEMO_FAULTS_H
#define MEMO_FAULTS_H

#include "memo.h"

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 2
#error "memo_faults.h: memo.h is of another release; use the memo.h of the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct memo_faults {
    memo_device device; /* the table to pass on; this struct must outlive its use, and not move */

    /* Set these while no call is under way.  All are 0 after memo_faults_init. */
    int64_t failing_call; /* the number of the call that fails, from 1; 0: none */
    int32_t is_lasting;   /* all later calls fail, too */
    /* What the call enqueues fails when its stream reaches it; the call itself returns OK, unless
     * that was before it returned.  Without effect on a call that enqueues nothing, and on a device
     * without launch_host. */
    int32_t is_late;
    /* Every second operation, on average, waits before it begins: a random time up to this, on its
     * stream, or in the calling thread on a device without launch_host. */
    double delay_s;
    uint64_t seed; /* of delays */

    /* Read these.  Calls are counted over all threads. */
    int64_t n_calls;    /* so far; set to 0 to count again */
    const char* failed; /* the function that failed first, such as "event_record"; NULL: none */

    /* Private. */
    memo_device inner;
    memo_host_call late_call, delay_call;
    uint64_t n_delays;
} memo_faults;

/* Fills *faults with a device that passes every call on to inner, until fields above are set.  It
 * has the functions that inner has, and takes no memory.  A call that is made to fail returns
 * DEVICE, with the message "FUNCTION: call K fails on purpose". */
MEMO_API void memo_faults_init(memo_faults* faults, const memo_device* inner);

#ifdef __cplusplus
}
#endif

#endif /* MEMO_FAULTS_H */

/* ==== implementation ========================================================================== */
#if defined(MEMO_FAULTS_IMPLEMENTATION) && !defined(MEMO_FAULTS_IMPLEMENTATION_DONE)
#define MEMO_FAULTS_IMPLEMENTATION_DONE
#ifndef MEMO_IMPLEMENTATION_DONE
#error "memo_faults.h: MEMO_IMPLEMENTATION is not defined; define it in the same file"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Counts a call.  Is it made to fail? */
MEMOI int memoi_faults_count(memo_faults* f, const char* function, memo_error* error) {
    const char* none = NULL;
    int64_t k = __atomic_add_fetch(&f->n_calls, 1, __ATOMIC_RELAXED);
    if (!f->failing_call || k < f->failing_call || (k > f->failing_call && !f->is_lasting))
        return 0;
    (void)__atomic_compare_exchange_n(&f->failed, &none, function, 0, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED);
    memo_error_set(error, MEMO_STATUS_DEVICE, "%s: call %lld fails on purpose", function,
                   (long long)k);
    return 1;
}

MEMOI memo_status memoi_faults_fail_late(void* argument, memo_error* error) {
    memo_faults* f = (memo_faults*)argument;
    return memo_error_set(error, MEMO_STATUS_DEVICE, "%s: call %lld fails on purpose, late",
                          f->failed, (long long)f->failing_call);
}

/* Sleeps in every second call, by a hash of its number (splitmix64). */
MEMOI memo_status memoi_faults_delay(void* argument, memo_error* error) {
    memo_faults* f = (memo_faults*)argument;
    uint64_t n = __atomic_add_fetch(&f->n_delays, 1, __ATOMIC_RELAXED);
    uint64_t z = f->seed + n * 0x9e3779b97f4a7c15u;
    (void)error;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    if (z & 1)
        memob_sleep_until(memob_now_ns() +
                          (int64_t)(f->delay_s * 1e9 * (double)(z >> 11) / 9007199254740992.0));
    return MEMO_STATUS_OK;
}

/* Before a call that enqueues: 1 if it is made to fail, now or late, with what it returns in
 * *status. */
MEMOI int memoi_faults_enqueue(memo_faults* f, memo_stream stream, const char* function,
                               memo_status* status, memo_error* error) {
    *status = MEMO_STATUS_OK;
    if (f->delay_s > 0) {
        *status = f->inner.launch_host ? memo_launch_host(&f->inner, stream, &f->delay_call, error)
                                       : memoi_faults_delay(f, error);
        if (*status) return 1;
    }
    if (!memoi_faults_count(f, function, error)) return 0;
    /* The call itself follows the failure: without its record or wait, operations of other streams
     * could pass it before it happens. */
    *status = f->is_late && f->inner.launch_host
                  ? memo_launch_host(&f->inner, stream, &f->late_call, error)
                  : MEMO_STATUS_DEVICE;
    return *status != MEMO_STATUS_OK;
}

/* Functions of the table, by kind.  Their arguments, in parentheses, begin with the inner device's
 * context. */
#define MEMOI_FAULTS_CALL(function, parameters, arguments)                                         \
    MEMOI memo_status memoi_faults_##function parameters {                                         \
        memo_faults* f = (memo_faults*)context;                                                    \
        if (memoi_faults_count(f, #function, error)) return MEMO_STATUS_DEVICE;                    \
        return f->inner.function arguments;                                                        \
    }
#define MEMOI_FAULTS_WAIT(function, parameters, arguments)                                         \
    MEMOI memo_status memoi_faults_##function parameters {                                         \
        memo_faults* f = (memo_faults*)context;                                                    \
        memo_status status = f->inner.function arguments;                                          \
        if (error && !status && memoi_faults_count(f, #function, error))                           \
            status = MEMO_STATUS_DEVICE;                                                           \
        return status;                                                                             \
    }
#define MEMOI_FAULTS_ENQUEUE(function, parameters, arguments)                                      \
    MEMOI memo_status memoi_faults_##function parameters {                                         \
        memo_faults* f = (memo_faults*)context;                                                    \
        memo_status status;                                                                        \
        if (memoi_faults_enqueue(f, stream, #function, &status, error)) return status;             \
        return f->inner.function arguments;                                                        \
    }
#define MEMOI_FAULTS_RELEASE(function, type)                                                       \
    MEMOI memo_status memoi_faults_##function(void* context, type released, memo_error* error) {   \
        memo_faults* f = (memo_faults*)context;                                                    \
        return f->inner.function(f->inner.context, released, error);                               \
    }

/* All functions of the table: C calls, W waits, E enqueues, R releases. */
#define MEMOI_FAULTS_TABLE(C, W, E, R)                                                             \
    C(device_alloc, (void* context, int64_t n, void** address, memo_error* error),                 \
      (f->inner.context, n, address, error))                                                       \
    C(host_alloc, (void* context, int64_t n, void** address, memo_error* error),                   \
      (f->inner.context, n, address, error))                                                       \
    C(memory_info, (void* context, int64_t* left, int64_t* total, memo_error* error),              \
      (f->inner.context, left, total, error))                                                      \
    C(stream_create,                                                                               \
      (void* context, const char* name, int32_t priority, memo_stream* stream, memo_error* error), \
      (f->inner.context, name, priority, stream, error))                                           \
    C(event_create, (void* context, memo_event* event, memo_error* error),                         \
      (f->inner.context, event, error))                                                            \
    C(event_create_untimed, (void* context, memo_event* event, memo_error* error),                 \
      (f->inner.context, event, error))                                                            \
    C(event_query, (void* context, memo_event event, int32_t* is_done, memo_error* error),         \
      (f->inner.context, event, is_done, error))                                                   \
    C(event_elapsed,                                                                               \
      (void* context, memo_event begin, memo_event end, double* elapsed_s, memo_error* error),     \
      (f->inner.context, begin, end, elapsed_s, error))                                            \
    C(status, (void* context, memo_error* error), (f->inner.context, error))                       \
    C(annotate,                                                                                    \
      (void* context, memo_stream stream, const struct memo_op_desc* op, memo_error* error),       \
      (f->inner.context, stream, op, error))                                                       \
    W(stream_synchronize, (void* context, memo_stream stream, memo_error* error),                  \
      (f->inner.context, stream, error))                                                           \
    W(event_synchronize, (void* context, memo_event event, memo_error* error),                     \
      (f->inner.context, event, error))                                                            \
    E(event_record, (void* context, memo_event event, memo_stream stream, memo_error* error),      \
      (f->inner.context, event, stream, error))                                                    \
    E(event_wait, (void* context, memo_event event, memo_stream stream, memo_error* error),        \
      (f->inner.context, event, stream, error))                                                    \
    E(copy,                                                                                        \
      (void* context, memo_stream stream, memo_copy_kind kind, void* to, const void* from,         \
       int64_t n, memo_error* error),                                                              \
      (f->inner.context, stream, kind, to, from, n, error))                                        \
    E(copy_rows,                                                                                   \
      (void* context, memo_stream stream, memo_copy_kind kind, void* to, int64_t to_stride,        \
       const void* from, int64_t from_stride, int64_t row_bytes, int64_t n, memo_error* error),    \
      (f->inner.context, stream, kind, to, to_stride, from, from_stride, row_bytes, n, error))     \
    E(fill,                                                                                        \
      (void* context, memo_stream stream, void* address, int32_t value, int64_t n,                 \
       memo_error* error),                                                                         \
      (f->inner.context, stream, address, value, n, error))                                        \
    E(launch_host, (void* context, memo_stream stream, memo_host_call* call, memo_error* error),   \
      (f->inner.context, stream, call, error))                                                     \
    E(row_kernel,                                                                                  \
      (void* context, memo_stream stream, const memo_row_call* call, memo_error* error),           \
      (f->inner.context, stream, call, error))                                                     \
    R(device_free, void*)                                                                          \
    R(host_free, void*)                                                                            \
    R(stream_destroy, memo_stream)                                                                 \
    R(event_destroy, memo_event)

MEMOI_FAULTS_TABLE(MEMOI_FAULTS_CALL, MEMOI_FAULTS_WAIT, MEMOI_FAULTS_ENQUEUE, MEMOI_FAULTS_RELEASE)

void memo_faults_init(memo_faults* faults, const memo_device* inner) {
    memo_faults* f = faults;
    memset(f, 0, sizeof *f);
    memcpy(&f->inner, inner, (size_t)memob_min(inner->struct_bytes, (int64_t)sizeof f->inner));
    f->late_call.function = memoi_faults_fail_late;
    f->delay_call.function = memoi_faults_delay;
    f->late_call.argument = f->delay_call.argument = f;

    f->device.struct_bytes = (int64_t)sizeof f->device;
    f->device.name = f->inner.name;
    f->device.context = f;
    f->device.inner = &f->inner;
#define MEMOI_FAULTS_SET(function)                                                                 \
    if (f->inner.function) f->device.function = memoi_faults_##function;
#define MEMOI_FAULTS_SET_3(function, parameters, arguments) MEMOI_FAULTS_SET(function)
#define MEMOI_FAULTS_SET_2(function, type)                  MEMOI_FAULTS_SET(function)
    MEMOI_FAULTS_TABLE(MEMOI_FAULTS_SET_3, MEMOI_FAULTS_SET_3, MEMOI_FAULTS_SET_3,
                       MEMOI_FAULTS_SET_2)
}

#ifdef __cplusplus
}
#endif

#endif /* MEMO_FAULTS_IMPLEMENTATION */
