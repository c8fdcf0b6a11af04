#pragma once
/* ---- 6 host device: threads as streams ----------------------------------------------------------
 *
 * A device of host memory, for tests, for trainers on CPUs, and for experiments with schedules.
 * Each stream is a thread with a queue, so copies and functions really run later and on another
 * thread.  Capacities are hard limits.  Copies can be given a bandwidth and operations a duration.
 * Such times count from the moment when the stream could begin, as events show: a thread that wakes
 * up late makes no operation longer.  Only events order two streams, no lock and no shared counter,
 * so that a race detector finds a missing wait.  A stream has its whole queue from its creation on.
 * Enqueueing allocates only if a second stream records an event for the first time.
 *
 * Signals, fork and exit, for all threads that memo's headers and extras start: streams, parts of
 * large operations of a file, host functions on CUDA, pinning, the watchdog of NCCL, searches.
 *   signals  These threads block all signals but SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS and
 *            SIGTRAP.  So a program's handlers, sigwait and signalfd serve its own threads; a
 *            function that a stream runs takes no signal either.
 *   fork     The child has none of these threads.  It must not use objects of its parent, nor
 *            destroy them.  It may create objects of its own on the host.
 *   exit     Neither exit nor a return from main waits for streams.  Destroy sessions and devices
 *            first: until then functions run, and use memory that the end of the program frees. */
#ifndef MEMO_NO_HOST_DEVICE

typedef struct memo_host_device_desc {
    int64_t device_memory_bytes; /* capacity of device_alloc; 0: no limit */
    int64_t host_memory_bytes;   /* capacity of host_alloc; 0: no limit */
    /* Rate of copies; 0: no limit. */
    double to_host_bytes_per_s;
    double to_device_bytes_per_s;
    /* Places in a stream's queue, which enqueueing waits for; 0: 1024.  An operation takes one, but
     * up to seven with more than 64 bytes of args.  A place takes 96 bytes of host memory from the
     * creation of the stream on. */
    int64_t queue_operations;
    /* Stack of a stream's thread, which runs the functions; rounded up to 64 KiB.  0: 8 MiB.  A
     * stack takes memory only for the pages that a function touches. */
    int64_t stack_bytes;
} memo_host_device_desc;

typedef struct memo_host_device_stats {
    int64_t device_bytes, device_peak_bytes;
    int64_t host_bytes, host_peak_bytes;
    int64_t to_host_bytes, to_device_bytes; /* copied so far; read after synchronization */
} memo_host_device_stats;

#define MEMO_HOST_ARGS_BYTES 640

MEMO_TRY memo_status memo_host_device_create(const memo_host_device_desc* desc,
                                             memo_device** device, memo_error* error);
/* Waits for all streams, then frees all memory of the device. */
MEMO_API void memo_host_device_destroy(memo_device* device);
/* Enqueues function(args); the thread of stream runs it.  args are copied: at most
 * MEMO_HOST_ARGS_BYTES. */
MEMO_TRY memo_status memo_host_device_launch(memo_device* device, memo_stream stream,
                                             memo_host_function function, const void* args,
                                             int64_t args_bytes, memo_error* error);
/* Enqueues an operation that takes duration_s and uses no processor. */
MEMO_TRY memo_status memo_host_device_sleep(memo_device* device, memo_stream stream,
                                            double duration_s, memo_error* error);
MEMO_API memo_host_device_stats memo_host_device_get_stats(const memo_device* device);

#endif
