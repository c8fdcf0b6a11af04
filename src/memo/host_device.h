#pragma once
#include "memo/text.h"
/* ---- >>host device ------------------------------------------------------------------------------
 * Knows: threads, counters, the device table.  Knows nothing of traces, plans or swapping.
 *
 * 1. Counters are even but for the sleepers' bit, and never go back.
 * 2. Operations in a queue take at most its places, or there is one alone; and the STOP of a stream
 *    that ends.
 * 3. An event has a mark for each stream that recorded it; the latest one has a stream.
 * 4. A wait ends after its record; the clock of a worker never goes back.
 * 5. What is reused was destroyed before; what is stopped is live.
 * 6. Bytes used of a memory are at least 0, at most its capacity and its peak.
 * 7. A copy stays inside its rows.
 *
 * Who writes what.  The caller's thread fills a stream's queue, numbers the records of events and
 * does all bookkeeping of memory.  A stream's worker empties the queue and completes the events
 * recorded on it.  The two meet in counters; what else is shared is relaxed and orders nothing. */
#ifndef MEMO_NO_HOST_DEVICE

#if defined(__linux__)
#include <sys/prctl.h>
#endif

#define MEMOI_HOST_MAGIC                0x6d656d6f686f7374u /* "memohost" */
#define MEMOI_HOST_QUEUE_OPERATIONS     1024                /* about as many as CUDA takes */
#define MEMOI_HOST_QUEUE_OPERATIONS_MAX ((int64_t)1 << 24)
#define MEMOI_HOST_PLACE_ARGS_BYTES     64     /* of args in the first place; those of a copy */
#define MEMOI_HOST_CHUNK_BYTES          262144 /* a copy looks at its rate at least this often */
#define MEMOI_HOST_CHUNK_S              1e-3   /* and this often */
#define MEMOI_HOST_NAP_S                2e-4   /* shorter sleeps than this are saved up */

/* 1: threads sleep on a futex.  syscall() is not in POSIX; without a declaration threads poll. */
#if defined(__linux__) && defined(SYS_futex) && (defined(__USE_MISC) || !defined(__GLIBC__))
#define MEMOB_HAS_FUTEX 1
#else
#define MEMOB_HAS_FUTEX 0
#endif

/* --- counter ---
 *
 * A counter is the only way in which two threads meet.  One thread sets it, in steps of two that
 * wrap; any number wait for it.  Bit 0: somebody sleeps on it.
 *
 * The sleepers' bit is part of the counted word.  Setting it fails if the counter moves meanwhile,
 * and moving the counter clears it, so no wake-up is missed.  Waiters read relaxed until they have
 * reached their target, so that they order nothing else. */

/* Compares a value that was loaded before, without any ordering. */
MEMOI int memob_counter_is_past(uint32_t value, uint32_t target) {
    return (value & ~1u) - target < 0x80000000u;
}

/* Wakes the sleepers of a counter that was `before`. */
MEMOI void memob_counter_wake(uint32_t* counter, uint32_t before) {
#if MEMOB_HAS_FUTEX
    if (before & 1)
        syscall(SYS_futex, counter, 1 | 128 /* wake, private */, INT32_MAX, NULL, NULL, 0);
#else
    (void)counter;
    (void)before;
#endif
}

/* Sleeps while the counter is value, at most limit_ns. */
MEMOI void memob_counter_sleep(uint32_t* counter, uint32_t value, int64_t limit_ns) {
#if MEMOB_HAS_FUTEX
    struct timespec limit = memoi_timespec(limit_ns);
    if (MEMOB_TURN(waits())) return;
    if ((value & 1) || __atomic_compare_exchange_n(counter, &value, value | 1, 0, __ATOMIC_RELAXED,
                                                   __ATOMIC_RELAXED))
        syscall(SYS_futex, counter, 0 | 128 /* wait, private */, value | 1, &limit, NULL, 0);
#else
    (void)counter;
    (void)value;
    (void)limit_ns;
    memob_sleep_until(memob_now_ns() + 100000);
#endif
}

/* Releases, and wakes sleepers. */
MEMOI void memob_counter_set(uint32_t* counter, uint32_t value) {
    const uint32_t before = __atomic_exchange_n(counter, value, __ATOMIC_RELEASE);
    MEMO_ASSERT(!(value & 1));                               /* 1 */
    MEMO_ASSERT(memob_counter_is_past(value, before & ~1u)); /* 1 */
    memob_counter_wake(counter, before);
}

/* Acquires if it returns 1. */
MEMOI int memob_counter_reached(const uint32_t* counter, uint32_t target) {
    if (!memob_counter_is_past(__atomic_load_n(counter, __ATOMIC_RELAXED), target)) return 0;
    (void)__atomic_load_n(counter, __ATOMIC_ACQUIRE);
    return 1;
}

MEMOI void memoi_host_counter_wait(uint32_t* counter, uint32_t target) {
    int64_t n_tries = 0;
    for (; !memob_counter_reached(counter, target); n_tries++) {
        const uint32_t value = __atomic_load_n(counter, __ATOMIC_RELAXED);
        if (n_tries < MEMOB_SPINS)
            memob_spin_pause();
        else if (!memob_counter_is_past(value, target))
            memob_counter_sleep(counter, value, 1000000000);
    }
}

/* --- what the device is made of --- */

/* The records of one event on one stream.  A stream completes its records in order, so a wait for a
 * record is a wait for a counter; a record on another stream must not end that wait.  Records take
 * turns with several counters: otherwise a wait that comes late would see later records too, and be
 * ordered after more than the wait asked for. */
#define MEMOI_HOST_TURNS 16
typedef struct memoi_host_mark {
    struct memoi_host_mark* next;
    const struct memoi_host_stream* stream; /* NULL: still free */
    uint32_t enqueued;                   /* the caller's: number of the latest record, times two */
    uint32_t counters[MEMOI_HOST_TURNS]; /* the worker's */
    int64_t time_ns; /* of the latest completion; waits on other streams read any later one */
} memoi_host_mark;

MEMOI uint32_t* memoi_host_counter(memoi_host_mark* mark, uint32_t target) {
    return &mark->counters[target / 2 % MEMOI_HOST_TURNS];
}

/* Every stream and event begins with it. */
typedef struct memoi_host_made {
    struct memoi_host* host; /* the device that made it */
    int32_t is_live;
} memoi_host_made;

/* Destroyed events stay in the device for reuse: queues may still name them. */
typedef struct memoi_host_event {
    memoi_host_made made;
    struct memoi_host_event* next_free; /* of the destroyed */
    memoi_host_mark first_mark;
    memoi_host_mark* latest; /* NULL: never recorded */
} memoi_host_event;

typedef enum memoi_host_op_kind {
    MEMOI_HOST_CALL,
    MEMOI_HOST_RECORD,
    MEMOI_HOST_WAIT,
    MEMOI_HOST_STOP
} memoi_host_op_kind;

/* The first place of an operation; its args go on in the next places. */
typedef struct memoi_host_op {
    memoi_host_op_kind kind;
    int32_t n_places;
    int64_t enqueued_ns;
    memo_host_function function; /* CALL */
    uint32_t target;             /* RECORD, WAIT: number of the record, times two */
    union {
        char bytes[MEMOI_HOST_PLACE_ARGS_BYTES]; /* CALL */
        memoi_host_mark* mark;                   /* RECORD, WAIT */
        long double aligned_for_numbers;
    } args;
} memoi_host_op;

MEMOI int32_t memoi_host_places(int64_t args_bytes) {
    const int64_t place_bytes = (int64_t)sizeof(memoi_host_op);
    return (int32_t)((args_bytes - MEMOI_HOST_PLACE_ARGS_BYTES + 2 * place_bytes - 1) /
                     place_bytes);
}
#define MEMOI_HOST_PLACES_MAX ((int64_t)memoi_host_places(MEMO_HOST_ARGS_BYTES))

/* All of them, not only the ones in the first place. */
MEMOI char* memoi_host_args(memoi_host_op* op) { return (char*)op + offsetof(memoi_host_op, args); }

typedef struct memoi_host_stream {
    memoi_host_made made;
    struct memoi_host_stream* next; /* of all; destroyed streams stay for reuse: events name them */
    char name[32];
    pthread_t thread;
    /* A ring of n_places.  An operation that begins at one of the last goes on behind the end. */
    memoi_host_op* places;
    int64_t n_places;

    /* The caller's side of the queue. */
    int64_t tail_index;
    uint32_t tail_position;
    uint32_t seen_head; /* as of the last time that the queue looked full */
    char apart1[64];    /* the two sides write to cache lines of their own */
    uint32_t tail;      /* counter */
    char apart2[64];
    uint32_t head;    /* counter */
    uint32_t drained; /* counter: the head when the queue was last empty.  Who waits for an empty
                       * queue waits for this counter, and is not woken by each operation. */

    /* The worker's clock: when the next operation may begin.  Events read this clock.  Operations
     * with a given duration count from it, so a worker that wakes up late does not slow them. */
    int64_t ready_ns;
} memoi_host_stream;

typedef struct memoi_host_memory {
    const char* name;
    memo_status status_when_full;
    int64_t capacity_bytes; /* 0: no limit */
    int64_t used_bytes, peak_bytes;
    memob_map sizes; /* from address */
} memoi_host_memory;

typedef struct memoi_host {
    uint64_t magic;
    memo_device table;
    int64_t queue_operations, stack_bytes;
    memoi_host_memory device_memory, host_memory;
    memoi_host_stream* streams;
    memoi_host_event* free_events;
    memob_arrays arrays; /* streams, events and marks, which live as long as the device */

    /* By memo_copy_kind; relaxed. */
    double bytes_per_s[2];
    int64_t copied_bytes[2];
    int32_t n_copies[2]; /* in progress, if there is a rate */

    memob_failure failure;
} memoi_host;

/* --- what the workers do --- */

typedef struct memoi_host_sleep_args {
    memoi_host_stream* stream;
    double duration_s;
} memoi_host_sleep_args;

MEMOI memo_status memoi_host_run_sleep(void* args, memo_error* error) {
    const memoi_host_sleep_args* sleep = (const memoi_host_sleep_args*)args;
    (void)error;
    sleep->stream->ready_ns += (int64_t)(sleep->duration_s * 1e9);
    memob_sleep_until(sleep->stream->ready_ns);
    return MEMO_STATUS_OK;
}

typedef struct memoi_host_fill_args {
    void* address;
    int64_t size_bytes;
    int32_t byte_value;
} memoi_host_fill_args;

MEMOI memo_status memoi_host_run_fill(void* args, memo_error* error) {
    const memoi_host_fill_args* fill = (const memoi_host_fill_args*)args;
    (void)error;
    if (fill->size_bytes) memset(fill->address, fill->byte_value, (size_t)fill->size_bytes);
    return MEMO_STATUS_OK;
}

typedef struct memoi_host_copy_args {
    memoi_host_stream* stream;
    memo_copy_kind kind;
    char* to;
    const char* from;
    int64_t to_stride_bytes, from_stride_bytes, row_bytes, n_rows;
} memoi_host_copy_args;

/* Bytes [begin, end) of the rows laid end to end. */
MEMOI void memoi_host_copy_part(const memoi_host_copy_args* copy, int64_t begin, int64_t end) {
    MEMO_ASSERT(begin >= 0 && end <= copy->row_bytes * copy->n_rows); /* 7 */
    while (begin < end) {
        int64_t row = begin / copy->row_bytes, column = begin % copy->row_bytes;
        int64_t n = memob_min(copy->row_bytes - column, end - begin);
        memcpy(copy->to + row * copy->to_stride_bytes + column,
               copy->from + row * copy->from_stride_bytes + column, (size_t)n);
        begin += n;
    }
}

/* Copies in one direction share its rate equally. */
MEMOI void memoi_host_copy_slowly(const memoi_host_copy_args* copy, int way, int64_t total_bytes) {
    memoi_host* host = copy->stream->made.host;
    const int64_t start_ns = copy->stream->ready_ns;
    int64_t done_bytes = 0, busy_ns = 0, begin_ns, now_ns;
    double due_s = 0; /* after the start; grows by exact amounts, so late wake-ups do not add up */
    __atomic_fetch_add(&host->n_copies[way], 1, __ATOMIC_RELAXED);
    while (done_bytes < total_bytes) {
        int32_t n_copies = __atomic_load_n(&host->n_copies[way], __ATOMIC_RELAXED);
        double rate = host->bytes_per_s[way] / n_copies;
        int64_t n = MEMOI_HOST_CHUNK_BYTES;
        MEMO_ASSERT(n_copies > 0); /* this one at least */
        if (rate * MEMOI_HOST_CHUNK_S < (double)n) n = 1 + (int64_t)(rate * MEMOI_HOST_CHUNK_S);
        n = memob_min(n, total_bytes - done_bytes);

        begin_ns = memob_now_ns();
        memoi_host_copy_part(copy, done_bytes, done_bytes + n);
        now_ns = memob_now_ns();
        busy_ns += now_ns - begin_ns;
        done_bytes += n;
        due_s += (double)n / rate;
        if (due_s - (double)(now_ns - start_ns) * 1e-9 > MEMOI_HOST_NAP_S ||
            done_bytes == total_bytes)
            memob_sleep_until(start_ns + (int64_t)(due_s * 1e9));
    }
    __atomic_fetch_sub(&host->n_copies[way], 1, __ATOMIC_RELAXED);

    /* Memory may be slower than the rate. */
    copy->stream->ready_ns = start_ns + memob_max(busy_ns, (int64_t)(due_s * 1e9));
}

MEMOI memo_status memoi_host_run_copy(void* args, memo_error* error) {
    const memoi_host_copy_args* copy = (const memoi_host_copy_args*)args;
    memoi_host* host = copy->stream->made.host;
    int64_t total_bytes = copy->row_bytes * copy->n_rows;
    int way = copy->kind == MEMO_COPY_TO_DEVICE;
    int is_on_device = copy->kind == MEMO_COPY_ON_DEVICE;
    (void)error;
    if (!is_on_device && host->bytes_per_s[way] > 0)
        memoi_host_copy_slowly(copy, way, total_bytes);
    else
        memoi_host_copy_part(copy, 0, total_bytes);
    if (!is_on_device) __atomic_fetch_add(&host->copied_bytes[way], total_bytes, __ATOMIC_RELAXED);
    return MEMO_STATUS_OK;
}

MEMOI void* memoi_host_worker(void* argument) {
    memoi_host_stream* stream = (memoi_host_stream*)argument;
    uint32_t position = 0;
    int64_t index = 0;
#if defined(__linux__)
    prctl(PR_SET_NAME, (unsigned long)(uintptr_t)stream->name, 0UL, 0UL, 0UL);
    /* The default of 50 us would lengthen each sleep. */
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
#endif

    (void)MEMOB_TURN(begins());

    /* Until the queue is stopped. */
    for (;;) {
        memoi_host_op* op = &stream->places[index];
        if (!memob_counter_reached(&stream->tail, position + 2))
            memob_counter_set(&stream->drained, position);
        memoi_host_counter_wait(&stream->tail, position + 2);
        if (op->kind == MEMOI_HOST_STOP) break;
        (void)MEMOB_TURN(waits()); /* any other thread may be faster */
        stream->ready_ns = memob_max(stream->ready_ns, op->enqueued_ns);
        MEMO_ASSERT(op->kind <= MEMOI_HOST_WAIT);

        /* A record is completed even after a failure: other streams may wait for it. */
        if (op->kind == MEMOI_HOST_RECORD) {
            __atomic_store_n(&op->args.mark->time_ns, stream->ready_ns, __ATOMIC_RELAXED);
            memob_counter_set(memoi_host_counter(op->args.mark, op->target), op->target);
        } else if (op->kind == MEMOI_HOST_WAIT) {
            memoi_host_counter_wait(memoi_host_counter(op->args.mark, op->target), op->target);
            MEMO_ASSERT(memob_counter_reached(memoi_host_counter(op->args.mark, op->target),
                                              op->target)); /* 4 */
            stream->ready_ns = memob_max(
                stream->ready_ns, __atomic_load_n(&op->args.mark->time_ns, __ATOMIC_RELAXED));
        } else if (!memob_failure_is_kept(&stream->made.host->failure)) {
            const int64_t begin_ns = stream->ready_ns;
            memo_error error = MEMO_ZERO(memo_error);
            const memo_status status = op->function(memoi_host_args(op), &error);
            if (status)
                memob_failure_keep(&stream->made.host->failure, status, "stream %s: %.400s",
                                   stream->name,
                                   error.message[0] ? error.message : memo_status_name(status));
            MEMO_ASSERT(stream->ready_ns >= begin_ns); /* 4 */
            if (stream->ready_ns == begin_ns) stream->ready_ns = memob_now_ns();
        }

        /* The places in the queue are free for the caller's thread. */
        position += 2 * (uint32_t)op->n_places;
        index += op->n_places;
        if (index >= stream->n_places) index -= stream->n_places;
        memob_counter_set(&stream->head, position);
    }
    (void)MEMOB_TURN(ends());
    return NULL;
}

/* --- what the caller's thread does --- */

MEMOI memo_status memoi_host_status(void* context, memo_error* error) {
    return memob_failure_status(&((memoi_host*)context)->failure, error);
}

/* Checks a stream or event of the caller's; what: which. */
MEMOI memo_status memoi_host_check(const void* host, const void* handle, const char* what,
                                   memo_error* error) {
    const memoi_host_made* made = (const memoi_host_made*)handle;
    if (made && made->host == host && made->is_live) return MEMO_STATUS_OK;
    if (!made)
        return MEMOB_INVALID(error, "%s: NULL; pass %s %s of this host device", what,
                             *what == 'e' ? "an" : "a", what);
    return MEMOB_INVALID(error,
                         "%s: destroyed or of another device (%p); pass %s %s of this host device",
                         what, handle, *what == 'e' ? "an" : "a", what);
}

/* Gives the next places in the queue, which memoi_host_commit hands to the worker. */
MEMOI memo_status memoi_host_reserve(memoi_host_stream* stream, int64_t args_bytes,
                                     memoi_host_op** op, memo_error* error) {
    const int64_t n_most = stream->made.host->queue_operations;
    const int32_t n_places = memoi_host_places(args_bytes);
    /* The head when there is room; an operation that takes more than all places waits for all. */
    const uint32_t least =
        stream->tail_position - 2 * (uint32_t)(memob_max(n_most, n_places) - n_places);
    memo_status status = memoi_host_status(stream->made.host, error);
    if (status) return status;
    if (!memob_counter_is_past(stream->seen_head, least)) {
        memoi_host_counter_wait(&stream->head, least);
        stream->seen_head = __atomic_load_n(&stream->head, __ATOMIC_ACQUIRE) & ~1u;
    }
    MEMO_ASSERT(memob_counter_is_past(stream->seen_head, least));                  /* 2 */
    MEMO_ASSERT(stream->tail_index >= 0 && stream->tail_index < stream->n_places); /* 2 */
    *op = &stream->places[stream->tail_index];
    (*op)->n_places = n_places;
    (*op)->enqueued_ns = memob_now_ns();
    return MEMO_STATUS_OK;
}

MEMOI void memoi_host_commit(memoi_host_stream* stream, const memoi_host_op* op) {
    stream->tail_position += 2 * (uint32_t)op->n_places;
    stream->tail_index += op->n_places;
    if (stream->tail_index >= stream->n_places) stream->tail_index -= stream->n_places;
    memob_counter_set(&stream->tail, stream->tail_position);
    (void)MEMOB_TURN(waits());
}

MEMOI memo_status memoi_host_call(const void* host, memo_stream handle, memo_host_function function,
                                  const void* args, int64_t args_bytes, memo_error* error) {
    memoi_host_stream* stream = (memoi_host_stream*)handle;
    memoi_host_op* op;
    memo_status status = memoi_host_check(host, stream, "stream", error);
    if (!status) status = memoi_host_reserve(stream, args_bytes, &op, error);
    if (status) return status;
    op->kind = MEMOI_HOST_CALL;
    op->function = function;
    if (args_bytes) memcpy(memoi_host_args(op), args, (size_t)args_bytes);
    memoi_host_commit(stream, op);
    return MEMO_STATUS_OK;
}

/* --- memory --- */

MEMOI memo_status memoi_host_memory_alloc(memoi_host_memory* memory, int64_t size_bytes,
                                          void** address, memo_error* error) {
    int64_t counted_bytes;
    char asked[32], left[32], all[32];
    *address = NULL;
    if (size_bytes < 0)
        return MEMOB_INVALID(error, "%s memory: negative size (%lld); 0 or more are valid",
                             memory->name, (long long)size_bytes);

    /* The capacity counts whole alignments, and is a hard limit. */
    memob_bytes_text(asked, (double)size_bytes);
    if (size_bytes > MEMOB_BYTES_MAX)
        return memo_error_set(error, memory->status_when_full,
                              "%s memory: %s requested; the limit is 2^62 bytes", memory->name,
                              asked);
    counted_bytes = memob_align_up(size_bytes, MEMOB_DEVICE_ALIGNMENT);
    if (memory->capacity_bytes && counted_bytes > memory->capacity_bytes - memory->used_bytes) {
        int64_t free_bytes = memory->capacity_bytes - memory->used_bytes;
        return memo_error_set(error, memory->status_when_full,
                              "%s memory: %s (%lld bytes) requested, %s (%lld bytes) free of %s",
                              memory->name, asked, (long long)size_bytes,
                              memob_bytes_text(left, (double)free_bytes), (long long)free_bytes,
                              memob_bytes_text(all, (double)memory->capacity_bytes));
    }

    /* The machine may have less than the capacity. */
    if (counted_bytes > MEMOB_BYTES_MAX - memory->used_bytes ||
        posix_memalign(address, MEMOB_DEVICE_ALIGNMENT, size_bytes ? (size_t)size_bytes : 1)) {
        *address = NULL;
        return memo_error_set(error, memory->status_when_full,
                              "%s memory: %s (%lld bytes) requested; the machine has less",
                              memory->name, asked, (long long)size_bytes);
    }
    if (!memob_map_put(&memory->sizes, (int64_t)(uintptr_t)*address, counted_bytes)) {
        free(*address);
        *address = NULL;
        return memob_no_memory(error, "the sizes of allocations");
    }

    memory->used_bytes += counted_bytes;
    memory->peak_bytes = memob_max(memory->peak_bytes, memory->used_bytes);
    MEMO_ASSERT(!memory->capacity_bytes || memory->used_bytes <= memory->capacity_bytes); /* 6 */
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_host_memory_free(memoi_host_memory* memory, void* address,
                                         memo_error* error) {
    int64_t key = (int64_t)(uintptr_t)address, counted_bytes;
    if (!address) return MEMO_STATUS_OK;
    counted_bytes = memob_map_get(&memory->sizes, key);
    if (counted_bytes < 0)
        return MEMOB_INVALID(error, "%s memory: %p is not allocated; free each address once",
                             memory->name, address);
    memob_map_remove(&memory->sizes, key);
    memory->used_bytes -= counted_bytes;
    MEMO_ASSERT(memory->used_bytes >= 0); /* 6 */
    free(address);
    return MEMO_STATUS_OK;
}

MEMOI void memoi_host_memory_destroy(memoi_host_memory* memory) {
    for (int64_t i = 0; i < memory->sizes.capacity; i++)
        if (memory->sizes.values[i] >= 0) free((void*)(uintptr_t)memory->sizes.keys[i]);
    memob_map_free(&memory->sizes);
}

#define MEMOI_HOST_MEMORY(which)                                                                   \
    MEMOI memo_status memoi_host_##which##_alloc(void* context, int64_t n_bytes, void** address,   \
                                                 memo_error* error) {                              \
        return memoi_host_memory_alloc(&((memoi_host*)context)->which##_memory, n_bytes, address,  \
                                       error);                                                     \
    }                                                                                              \
    MEMOI memo_status memoi_host_##which##_free(void* context, void* address, memo_error* error) { \
        return memoi_host_memory_free(&((memoi_host*)context)->which##_memory, address, error);    \
    }
MEMOI_HOST_MEMORY(device)
MEMOI_HOST_MEMORY(host)

MEMOI memo_status memoi_host_memory_info(void* context, int64_t* free_bytes, int64_t* total_bytes,
                                         memo_error* error) {
    const memoi_host_memory* memory = &((memoi_host*)context)->device_memory;
    *total_bytes = memory->capacity_bytes ? memory->capacity_bytes : MEMOB_BYTES_MAX;
    *free_bytes = *total_bytes - memory->used_bytes;
    return memoi_host_status(context, error);
}

/* --- streams --- */

MEMOI memo_status memoi_host_stream_create(void* context, const char* name, int32_t priority,
                                           memo_stream* handle, memo_error* error) {
    memoi_host* host = (memoi_host*)context;
    memoi_host_stream* stream = host->streams;
    memo_status status = memoi_host_status(host, error);
    (void)priority;
    *handle = NULL;
    if (status) return status;

    /* A destroyed stream is reused, because events may still refer to it. */
    while (stream && stream->made.is_live) stream = stream->next;
    if (!stream) {
        stream = MEMOB_ARRAY(&host->arrays, memoi_host_stream, 1);
        if (!stream) return memob_no_memory(error, "a stream");
        stream->made.host = host;
        stream->next = host->streams;
        host->streams = stream;
    }

    MEMO_ASSERT(!stream->made.is_live && stream->made.host == host); /* 5 */

    /* An empty queue, with one more place for STOP.  Not zeroed: a queue never filled never touches
     * its pages. */
    stream->n_places = memob_max(host->queue_operations, MEMOI_HOST_PLACES_MAX) + 1;
    stream->places = (memoi_host_op*)MEMO_MALLOC(
        (size_t)(stream->n_places + MEMOI_HOST_PLACES_MAX - 1) * sizeof(memoi_host_op));
    if (!stream->places) return memob_no_memory(error, "the queue of a stream");
    stream->tail_index = stream->ready_ns = 0;
    stream->tail_position = stream->seen_head = stream->tail = stream->head = stream->drained = 0;
    snprintf(stream->name, sizeof stream->name, "%.31s", name ? name : "stream");

    /* The worker last: it runs at once. */
    if (memob_thread_create(&stream->thread, host->stack_bytes, memoi_host_worker, stream)) {
        MEMO_FREE(stream->places);
        return memo_error_set(
            error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
            "stream %s: the system cannot create another thread; use fewer streams, or a smaller "
            "memo_host_device_desc.stack_bytes",
            stream->name);
    }
    (void)MEMOB_TURN(creates());
    stream->made.is_live = 1;
    *handle = (memo_stream)stream;
    return MEMO_STATUS_OK;
}

MEMOI void memoi_host_stream_stop(memoi_host_stream* stream) {
    memoi_host_op* stop = &stream->places[stream->tail_index]; /* there is always room for it */
    MEMO_ASSERT(stream->made.is_live);                         /* 5 */
    stop->kind = MEMOI_HOST_STOP;
    stop->n_places = 1;
    memoi_host_commit(stream, stop);
}

MEMOI void memoi_host_stream_join(memoi_host_stream* stream) {
    (void)MEMOB_TURN(joins(stream->thread));
    pthread_join(stream->thread, NULL);
    MEMO_FREE(stream->places);
    stream->made.is_live = 0;
}

MEMOI memo_status memoi_host_stream_destroy(void* context, memo_stream handle, memo_error* error) {
    memoi_host_stream* stream = (memoi_host_stream*)handle;
    memo_status status = MEMO_STATUS_OK;
    if (stream) status = memoi_host_check(context, stream, "stream", error);
    if (!stream || status) return status;
    memoi_host_stream_stop(stream);
    memoi_host_stream_join(stream);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_host_stream_synchronize(void* context, memo_stream handle,
                                                memo_error* error) {
    memoi_host_stream* stream = (memoi_host_stream*)handle;
    memo_status status = memoi_host_check(context, stream, "stream", error);
    if (status) return status;
    memoi_host_counter_wait(&stream->drained, stream->tail_position);
    return memoi_host_status(context, error);
}

/* --- events --- */

MEMOI memo_status memoi_host_event_create(void* context, memo_event* handle, memo_error* error) {
    memoi_host* host = (memoi_host*)context;
    memoi_host_event* event = host->free_events;
    memo_status status = memoi_host_status(host, error);
    *handle = NULL;
    if (status) return status;
    if (event) {
        host->free_events = event->next_free;
    } else {
        event = MEMOB_ARRAY(&host->arrays, memoi_host_event, 1);
        if (!event) return memob_no_memory(error, "an event");
        event->made.host = host;
    }
    MEMO_ASSERT(!event->made.is_live && event->made.host == host); /* 5 */
    event->made.is_live = 1;
    event->latest = NULL;
    *handle = (memo_event)event;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_host_event_destroy(void* context, memo_event handle, memo_error* error) {
    memoi_host* host = (memoi_host*)context;
    memoi_host_event* event = (memoi_host_event*)handle;
    memo_status status = MEMO_STATUS_OK;
    if (event) status = memoi_host_check(host, event, "event", error);
    if (!event || status) return status;
    event->made.is_live = 0;
    event->next_free = host->free_events;
    host->free_events = event;
    return MEMO_STATUS_OK;
}

/* The event's mark on stream; the first record on a second stream makes one.  NULL: no memory. */
MEMOI memoi_host_mark* memoi_host_find_mark(memoi_host_event* event,
                                            const memoi_host_stream* stream) {
    memoi_host_mark* mark = &event->first_mark;
    while (mark->stream && mark->stream != stream && mark->next) mark = mark->next;
    if (mark->stream && mark->stream != stream) {
        MEMO_ASSERT(!mark->next); /* 3 */
        mark->next = MEMOB_ARRAY(&event->made.host->arrays, memoi_host_mark, 1);
        mark = mark->next;
    }
    if (mark) mark->stream = stream;
    return mark;
}

/* A record, or a wait for the latest record. */
MEMOI memo_status memoi_host_order(void* host, memoi_host_op_kind kind, memo_event event_handle,
                                   memo_stream stream_handle, memo_error* error) {
    memoi_host_event* event = (memoi_host_event*)event_handle;
    memoi_host_stream* stream = (memoi_host_stream*)stream_handle;
    memoi_host_op* op;
    /* A stream may wait for another device's event. */
    const void* made = kind == MEMOI_HOST_WAIT && event ? event->made.host : host;
    memo_status status = memoi_host_check(made, event, "event", error);
    if (!status) status = memoi_host_check(host, stream, "stream", error);
    if (!status && kind == MEMOI_HOST_WAIT && !event->latest) return memoi_host_status(host, error);
    if (!status) status = memoi_host_reserve(stream, 0, &op, error);
    if (status) return status;
    if (kind == MEMOI_HOST_RECORD) {
        memoi_host_mark* mark = memoi_host_find_mark(event, stream);
        if (!mark) return memob_no_memory(error, "an event on one more stream");
        mark->enqueued += 2;
        event->latest = mark;
    }
    MEMO_ASSERT(event->latest && event->latest->stream); /* 3 */
    op->kind = kind;
    op->args.mark = event->latest;
    op->target = event->latest->enqueued;
    memoi_host_commit(stream, op);
    return MEMO_STATUS_OK;
}
MEMOI memo_status memoi_host_event_record(void* context, memo_event event, memo_stream stream,
                                          memo_error* error) {
    return memoi_host_order(context, MEMOI_HOST_RECORD, event, stream, error);
}
MEMOI memo_status memoi_host_event_wait(void* context, memo_event event, memo_stream stream,
                                        memo_error* error) {
    return memoi_host_order(context, MEMOI_HOST_WAIT, event, stream, error);
}

MEMOI int memoi_host_event_is_done(const memoi_host_event* event) {
    memoi_host_mark* mark = event->latest;
    return !mark || memob_counter_reached(memoi_host_counter(mark, mark->enqueued), mark->enqueued);
}

MEMOI memo_status memoi_host_event_query(void* context, memo_event handle, int32_t* is_done,
                                         memo_error* error) {
    memoi_host_event* event = (memoi_host_event*)handle;
    memo_status status = memoi_host_check(context, event, "event", error);
    if (status) return status;
    *is_done = memoi_host_event_is_done(event);
    return memoi_host_status(context, error);
}

MEMOI memo_status memoi_host_event_synchronize(void* context, memo_event handle,
                                               memo_error* error) {
    memoi_host_event* event = (memoi_host_event*)handle;
    memo_status status = memoi_host_check(context, event, "event", error);
    if (status) return status;
    if (event->latest)
        memoi_host_counter_wait(memoi_host_counter(event->latest, event->latest->enqueued),
                                event->latest->enqueued);
    return memoi_host_status(context, error);
}

MEMOI memo_status memoi_host_event_elapsed(void* context, memo_event begin_handle,
                                           memo_event end_handle, double* elapsed_s,
                                           memo_error* error) {
    memoi_host_event *begin = (memoi_host_event*)begin_handle, *end = (memoi_host_event*)end_handle;
    memo_status status = memoi_host_status(context, error);
    if (!status) status = memoi_host_check(context, begin, "event", error);
    if (!status) status = memoi_host_check(context, end, "event", error);
    if (status) return status;
    if (!begin->latest || !end->latest)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "event_elapsed: the %s event was never recorded; record it first",
                              begin->latest ? "second" : "first");
    if (!memoi_host_event_is_done(begin) || !memoi_host_event_is_done(end))
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "event_elapsed: the %s event is not done; synchronize first",
                              memoi_host_event_is_done(begin) ? "second" : "first");
    *elapsed_s = (double)(end->latest->time_ns - begin->latest->time_ns) * 1e-9;
    return MEMO_STATUS_OK;
}

/* --- copies --- */

MEMOI memo_status memoi_host_copy_rows(void* context, memo_stream stream, memo_copy_kind kind,
                                       void* to, int64_t to_stride_bytes, const void* from,
                                       int64_t from_stride_bytes, int64_t row_bytes, int64_t n_rows,
                                       memo_error* error) {
    memoi_host_copy_args copy = {
        (memoi_host_stream*)stream, kind,      (char*)to, (const char*)from, to_stride_bytes,
        from_stride_bytes,          row_bytes, n_rows};
    /* Everything is checked here: an operation that fails later fails the whole device. */
    memo_status status = memob_check_copy(kind, to, to_stride_bytes, from, from_stride_bytes,
                                          row_bytes, n_rows, error);
    if (status) return status;

    /* Rows that touch are one long row. */
    if (to_stride_bytes == row_bytes && from_stride_bytes == row_bytes) {
        copy.row_bytes = row_bytes * n_rows;
        copy.n_rows = 1;
    }
    return memoi_host_call(context, stream, memoi_host_run_copy, &copy, sizeof copy, error);
}

MEMOI memo_status memoi_host_copy(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                                  const void* from, int64_t size_bytes, memo_error* error) {
    return memoi_host_copy_rows(context, stream, kind, to, size_bytes, from, size_bytes, size_bytes,
                                1, error);
}

MEMOI memo_status memoi_host_fill(void* context, memo_stream stream, void* address,
                                  int32_t byte_value, int64_t size_bytes, memo_error* error) {
    const memoi_host_fill_args fill = {address, size_bytes, byte_value};
    if (size_bytes < 0 || (!address && size_bytes))
        return MEMOB_INVALID(
            error,
            "fill: invalid range (%lld bytes at %p); 0 or more bytes at an address are valid",
            (long long)size_bytes, address);
    return memoi_host_call(context, stream, memoi_host_run_fill, &fill, sizeof fill, error);
}

/* --- host functions --- */

MEMOI memo_status memoi_host_run_call(void* args, memo_error* error) {
    const memo_host_call* call = *(memo_host_call**)args;
    return call->function(call->argument, error);
}

MEMOI memo_status memoi_host_row_kernel(void* context, memo_stream stream,
                                        const memo_row_call* call, memo_error* error) {
    return memoi_host_call(context, stream, call->function, call->args, call->args_bytes, error);
}

MEMOI memo_status memoi_host_launch_host(void* context, memo_stream stream, memo_host_call* call,
                                         memo_error* error) {
    return memoi_host_call(context, stream, memoi_host_run_call, &call, sizeof call, error);
}

/* --- the device --- */

/* NULL: memo_host_device_create did not make the device.  A context is only looked at if some
 * function of the table is of this device: that of another may be a number. */
MEMOI memoi_host* memoi_host_of(const memo_device* device, memo_error* error) {
#define MEMOI_HOST_HAS(function) || device->function == memoi_host_##function
    const int is_host = device && (0 MEMOB_DEVICE_NEEDS(MEMOI_HOST_HAS));
    memoi_host* host = is_host ? (memoi_host*)device->context : NULL;
    if (host && host->magic == MEMOI_HOST_MAGIC) return host;
    MEMOB_INVALID(error, "device: not a host device; create it with memo_host_device_create");
    return NULL;
}

/* Errors: INVALID_ARGUMENT unless memo_host_device_create made the device. */
MEMOI memo_status memob_check_host_device(const memo_device* device, memo_error* error) {
    return memoi_host_of(device, error) ? MEMO_STATUS_OK : MEMO_STATUS_INVALID_ARGUMENT;
}

/* Limits that the workers' arithmetic needs. */
MEMOI memo_status memoi_host_check_desc(const memo_host_device_desc* desc, memo_error* error) {
    static const char name[] = "memo_host_device_desc";
    const memob_bounds fields[] = {
        {"device_memory_bytes", desc->device_memory_bytes, 0, MEMOB_BYTES_MAX},
        {"host_memory_bytes", desc->host_memory_bytes, 0, MEMOB_BYTES_MAX},
        {"queue_operations", desc->queue_operations, 0, MEMOI_HOST_QUEUE_OPERATIONS_MAX},
        {"stack_bytes", desc->stack_bytes, 0, MEMOB_BYTES_MAX}};
    memo_status status = MEMOB_CHECK_FIELDS(name, fields, error);
    if (!status)
        status = memob_check_rate(name, "to_host_bytes_per_s", desc->to_host_bytes_per_s, error);
    if (!status)
        status =
            memob_check_rate(name, "to_device_bytes_per_s", desc->to_device_bytes_per_s, error);
    return status;
}

/* Rows are computed by functions of this file.  A compiler that may reorder sums finds 1 here, and
 * one that ignores the sign of zero leaves -0 as it is. */
MEMOI memo_status memoi_host_check_math(memo_error* error) {
#ifndef MEMO_ALLOW_FAST_MATH
    volatile double large = 1e30, small = 1, negative = -0.0;
    const double a = large, b = small, zero = negative, sum = zero + 0.0;
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if ((a + b) - a > 0 || bits != 0)
        return memo_error_set(
            error, MEMO_STATUS_UNSUPPORTED,
            "memo.h: the implementation is compiled with -ffast-math, -Ofast or a part of these, "
            "which breaks NaN, infinity and -0 in rows; compile the implementation in a file of "
            "its own without this option");
#endif
    (void)error;
    return MEMO_STATUS_OK;
}

memo_status memo_host_device_create(const memo_host_device_desc* desc, memo_device** device,
                                    memo_error* error) {
    memoi_host* host;
    memo_device* table;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "device", device);
    *device = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    status = memoi_host_check_desc(desc, error);
    if (!status) status = memoi_host_check_math(error);
    if (status) return status;

    host = (memoi_host*)memob_calloc(1, sizeof *host);
    if (!host) return memob_no_memory(error, "a host device");
    host->magic = MEMOI_HOST_MAGIC;
    host->queue_operations =
        desc->queue_operations ? desc->queue_operations : MEMOI_HOST_QUEUE_OPERATIONS;
    host->stack_bytes = desc->stack_bytes;
    host->device_memory.name = "device";
    host->device_memory.status_when_full = MEMO_STATUS_OUT_OF_DEVICE_MEMORY;
    host->device_memory.capacity_bytes = desc->device_memory_bytes;
    host->host_memory.name = "host";
    host->host_memory.status_when_full = MEMO_STATUS_OUT_OF_HOST_MEMORY;
    host->host_memory.capacity_bytes = desc->host_memory_bytes;
    host->bytes_per_s[MEMO_COPY_TO_HOST] = desc->to_host_bytes_per_s;
    host->bytes_per_s[MEMO_COPY_TO_DEVICE] = desc->to_device_bytes_per_s;

    /* The table that callers get. */
    table = &host->table;
    table->struct_bytes = (int64_t)sizeof *table;
    table->name = "host";
    table->context = host;
#define MEMOI_HOST_SET(function) table->function = memoi_host_##function;
    MEMOB_DEVICE_FUNCTIONS(MEMOI_HOST_SET)
    table->row_kernel = memoi_host_row_kernel;
    table->launch_host = memoi_host_launch_host;
    *device = table;
    return MEMO_STATUS_OK;
}

void memo_host_device_destroy(memo_device* device) {
    memoi_host* host = memoi_host_of(device, NULL);
    memoi_host_stream* stream;
    if (!host) return;

    /* Stop all before joining any: they may wait for each other. */
    for (stream = host->streams; stream; stream = stream->next)
        if (stream->made.is_live) memoi_host_stream_stop(stream);

    for (stream = host->streams; stream; stream = stream->next)
        if (stream->made.is_live) memoi_host_stream_join(stream);

    /* Events and memory last: workers use both. */
    memob_arrays_free(&host->arrays);
    memoi_host_memory_destroy(&host->device_memory);
    memoi_host_memory_destroy(&host->host_memory);
    host->magic = 0;
    MEMO_FREE(host);
}

memo_status memo_host_device_launch(memo_device* device, memo_stream stream,
                                    memo_host_function function, const void* args,
                                    int64_t args_bytes, memo_error* error) {
    memoi_host* host;
    MEMOB_REFUSE_NULL(error, "device", device);
    MEMOB_REFUSE_NULL(error, "function", function);
    host = memoi_host_of(device, error);
    if (!host) return MEMO_STATUS_INVALID_ARGUMENT;
    if (!memob_is_within(args_bytes, 0, MEMO_HOST_ARGS_BYTES) || (!args && args_bytes))
        return MEMOB_INVALID(
            error,
            "launch: %lld bytes of args at %p; at most %d are copied, pass a pointer to more",
            (long long)args_bytes, args, MEMO_HOST_ARGS_BYTES);
    return memoi_host_call(host, stream, function, args, args_bytes, error);
}

memo_status memo_host_device_sleep(memo_device* device, memo_stream stream, double duration_s,
                                   memo_error* error) {
    memoi_host* host;
    const memoi_host_sleep_args sleep = {(memoi_host_stream*)stream, duration_s};
    MEMOB_REFUSE_NULL(error, "device", device);
    host = memoi_host_of(device, error);
    if (!host || memob_check_real("sleep", "duration_s", duration_s, 0, 1e9, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    return memoi_host_call(host, stream, memoi_host_run_sleep, &sleep, sizeof sleep, error);
}

memo_host_device_stats memo_host_device_get_stats(const memo_device* device) {
    const memoi_host* host = memoi_host_of(device, NULL);
    memo_host_device_stats stats = MEMO_ZERO(memo_host_device_stats);
    if (!host) return stats;
    stats.device_bytes = host->device_memory.used_bytes;
    stats.device_peak_bytes = host->device_memory.peak_bytes;
    stats.host_bytes = host->host_memory.used_bytes;
    stats.host_peak_bytes = host->host_memory.peak_bytes;
    stats.to_host_bytes = __atomic_load_n(&host->copied_bytes[MEMO_COPY_TO_HOST], __ATOMIC_RELAXED);
    stats.to_device_bytes =
        __atomic_load_n(&host->copied_bytes[MEMO_COPY_TO_DEVICE], __ATOMIC_RELAXED);
    return stats;
}

#endif /* MEMO_NO_HOST_DEVICE */
