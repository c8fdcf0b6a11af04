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

/* Counts a call.  DEVICE: it is made to fail. */
MEMOI memo_status memoi_faults_count(memo_faults* f, const char* function, memo_error* error) {
    const char* none = NULL;
    int64_t k = __atomic_add_fetch(&f->n_calls, 1, __ATOMIC_RELAXED);
    if (!f->failing_call || k < f->failing_call || (k > f->failing_call && !f->is_lasting))
        return MEMO_STATUS_OK;
    (void)__atomic_compare_exchange_n(&f->failed, &none, function, 0, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED);
    return memo_error_set(error, MEMO_STATUS_DEVICE, "%s: call %lld fails on purpose", function,
                          (long long)k);
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

/* Before a call that enqueues.  If it is made to fail late, the failure is enqueued. */
MEMOI memo_status memoi_faults_enqueue(memo_faults* f, memo_stream stream, const char* function,
                                       memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (f->delay_s > 0)
        status = f->inner.launch_host ? memo_launch_host(&f->inner, stream, &f->delay_call, error)
                                      : memoi_faults_delay(f, error);
    if (status) return status;
    status = memoi_faults_count(f, function, error);
    /* The call itself follows the failure: without its record or wait, operations of other streams
     * could pass it before it happens. */
    return status && f->is_late && f->inner.launch_host
               ? memo_launch_host(&f->inner, stream, &f->late_call, error)
               : status;
}

/* n parameters between context and error, (type, name, ...): declared, and passed on. */
#define MEMOI_FAULTS_D0(none)
#define MEMOI_FAULTS_P0(none)
#define MEMOI_FAULTS_D1(A, a)                         A a,
#define MEMOI_FAULTS_P1(A, a)                         a,
#define MEMOI_FAULTS_D2(A, a, B, b)                   A a, B b,
#define MEMOI_FAULTS_P2(A, a, B, b)                   a, b,
#define MEMOI_FAULTS_D3(A, a, B, b, C, c)             A a, B b, C c,
#define MEMOI_FAULTS_P3(A, a, B, b, C, c)             a, b, c,
#define MEMOI_FAULTS_D4(A, a, B, b, C, c, D, d)       A a, B b, C c, D d,
#define MEMOI_FAULTS_P4(A, a, B, b, C, c, D, d)       a, b, c, d,
#define MEMOI_FAULTS_D5(A, a, B, b, C, c, D, d, E, e) A a, B b, C c, D d, E e,
#define MEMOI_FAULTS_P5(A, a, B, b, C, c, D, d, E, e) a, b, c, d, e,
#define MEMOI_FAULTS_D8(A, a, B, b, C, c, D, d, E, e, F, f, G, g, H, h)                            \
    A a, B b, C c, D d, E e, F f, G g, H h,
#define MEMOI_FAULTS_P8(A, a, B, b, C, c, D, d, E, e, F, f, G, g, H, h) a, b, c, d, e, f, g, h,

/* before and after: a failure on purpose, or OK. */
#define MEMOI_FAULTS_PASS(function, n, parameters, before, after)                                  \
    MEMOI memo_status memoi_faults_##function(void* context,                                       \
                                              MEMOI_FAULTS_D##n parameters memo_error* error) {    \
        memo_faults* f = (memo_faults*)context;                                                    \
        memo_status status = before;                                                               \
        if (!status)                                                                               \
            status = f->inner.function(f->inner.context, MEMOI_FAULTS_P##n parameters error);      \
        return status ? status : after;                                                            \
    }
#define MEMOI_FAULTS_CALL(function, n, parameters)                                                 \
    MEMOI_FAULTS_PASS(function, n, parameters, memoi_faults_count(f, #function, error),            \
                      MEMO_STATUS_OK)
#define MEMOI_FAULTS_WAIT(function, n, parameters)                                                 \
    MEMOI_FAULTS_PASS(function, n, parameters, MEMO_STATUS_OK,                                     \
                      error ? memoi_faults_count(f, #function, error) : MEMO_STATUS_OK)
#define MEMOI_FAULTS_ENQUEUE(function, n, parameters)                                              \
    MEMOI_FAULTS_PASS(function, n, parameters, memoi_faults_enqueue(f, stream, #function, error),  \
                      MEMO_STATUS_OK)
#define MEMOI_FAULTS_RELEASE(function, n, parameters)                                              \
    MEMOI_FAULTS_PASS(function, n, parameters, MEMO_STATUS_OK, MEMO_STATUS_OK)

/* All functions of the table: C calls, W waits, E enqueues, R releases. */
#define MEMOI_FAULTS_TABLE(C, W, E, R)                                                             \
    C(device_alloc, 2, (int64_t, size_bytes, void**, address))                                     \
    C(host_alloc, 2, (int64_t, size_bytes, void**, address))                                       \
    C(memory_info, 2, (int64_t*, free_bytes, int64_t*, total_bytes))                               \
    C(stream_create, 3, (const char*, name, int32_t, priority, memo_stream*, stream))              \
    C(event_create, 1, (memo_event*, event))                                                       \
    C(event_create_untimed, 1, (memo_event*, event))                                               \
    C(event_query, 2, (memo_event, event, int32_t*, is_done))                                      \
    C(event_elapsed, 3, (memo_event, begin, memo_event, end, double*, elapsed_s))                  \
    C(status, 0, ())                                                                               \
    C(annotate, 2, (memo_stream, stream, const struct memo_op_desc*, op))                          \
    W(stream_synchronize, 1, (memo_stream, stream))                                                \
    W(event_synchronize, 1, (memo_event, event))                                                   \
    E(event_record, 2, (memo_event, event, memo_stream, stream))                                   \
    E(event_wait, 2, (memo_event, event, memo_stream, stream))                                     \
    E(copy, 5,                                                                                     \
      (memo_stream, stream, memo_copy_kind, kind, void*, to, const void*, from, int64_t, n))       \
    E(copy_rows, 8,                                                                                \
      (memo_stream, stream, memo_copy_kind, kind, void*, to, int64_t, to_stride, const void*,      \
       from, int64_t, from_stride, int64_t, row_bytes, int64_t, n_rows))                           \
    E(fill, 4, (memo_stream, stream, void*, address, int32_t, byte_value, int64_t, size_bytes))    \
    E(launch_host, 2, (memo_stream, stream, memo_host_call*, call))                                \
    E(row_kernel, 2, (memo_stream, stream, const memo_row_call*, call))                            \
    R(device_free, 1, (void*, address))                                                            \
    R(host_free, 1, (void*, address))                                                              \
    R(stream_destroy, 1, (memo_stream, stream))                                                    \
    R(event_destroy, 1, (memo_event, event))

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
#define MEMOI_FAULTS_SET(function, n, parameters)                                                  \
    if (f->inner.function) f->device.function = memoi_faults_##function;
    MEMOI_FAULTS_TABLE(MEMOI_FAULTS_SET, MEMOI_FAULTS_SET, MEMOI_FAULTS_SET, MEMOI_FAULTS_SET)
}

#ifdef __cplusplus
}
#endif

#endif /* MEMO_FAULTS_IMPLEMENTATION */
