#pragma once
#include "memo/engine.h"
/* ---- >>profile ----------------------------------------------------------------------------------
 * Knows: how long copies take, and reads and writes of a file.  Knows nothing of plans. */

#define MEMOI_PROFILE_REPETITIONS 5
#define MEMOI_PROFILE_SMALL_BYTES 32768
#define MEMOI_PROFILE_COPY_S      0.1  /* the longest that a copy of more bytes should take */
#define MEMOI_PROFILE_SHORT_S     1.25 /* the longest of a short copy */

typedef struct memoi_profiler {
    memob_engine engine;  /* each memory holds two of the largest copies; one operation of a file */
    memo_event events[2]; /* the engine's, which time a transfer */
    int64_t copy_bytes;   /* of the copy being measured */
    int64_t half_bytes;   /* the second half of host memory begins there */
    memob_spill_op file_ops[2]; /* its write and its read */
    int64_t file_bytes;         /* of each */
    int32_t is_read;            /* the one being measured is */
    int64_t n_beside;           /* copies beside it */
} memoi_profiler;

/* Sorts times; clocks of finite resolution may give one below 0. */
MEMOI double memoi_profile_median(double* times_s, int64_t n) {
    qsort(times_s, (size_t)n, sizeof *times_s, memob_compare_doubles);
    return times_s[n / 2] > 0 ? times_s[n / 2] : 0;
}

/* Returns the median time of n transfers on one of the streams: of a copy; or, on the file's, of a
 * read or write, and copies that keep their link busy meanwhile: these use the other half of the
 * buffer.  The engine keeps the first failure. */
MEMOI double memoi_profile_time(memoi_profiler* p, int32_t stream, int n) {
    const int is_file = stream == MEMOB_STREAM_FILE;
    const int32_t link = is_file ? MEMOB_STREAM_TO_HOST + p->is_read : stream;
    const int is_back = link == MEMOB_STREAM_TO_DEVICE;
    memob_engine* e = &p->engine;
    double times[MEMOI_PROFILE_REPETITIONS] = {0};
    for (int i = -1; i < n; i++) { /* the first warms up */
        memob_engine_record(e, stream, 0);
        for (int64_t k = 0; k < (is_file ? p->n_beside : 1); k++)
            memob_engine_copy(e, &e->memory, is_back, is_back ? p->copy_bytes : 0,
                              is_back ? p->half_bytes : 0, p->copy_bytes);
        if (is_file)
            memob_engine_use_file(e, &e->memory, p->is_read, !p->is_read,
                                  p->is_read ? 0 : p->half_bytes, 0, p->file_bytes);
        memob_engine_record(e, stream, 1);
        if (!e->status)
            e->status = memo_stream_synchronize(&e->device, e->streams[stream], e->error);
        if (!e->status)
            e->status = memo_event_elapsed(&e->device, e->events[0], e->events[1],
                                           &times[memob_max(i, 0)], e->error);
    }
    return memoi_profile_median(times, n);
}

/* A short copy is timed once.  A busy machine may delay it, so a slow one is timed again. */
MEMOI double memoi_profile_time_copy(memoi_profiler* p, int32_t stream, int is_short) {
    enum { N_TRIES = 3 };
    double time_s = memoi_profile_time(p, stream, is_short ? 1 : MEMOI_PROFILE_REPETITIONS);
    for (int i = 1; i < N_TRIES && is_short && time_s > MEMOI_PROFILE_SHORT_S; i++)
        time_s = memoi_profile_time(p, stream, 1);
    return time_s;
}

/* Copies of rising size.  Short ones refuse a link on which measuring would take hours.  Smaller
 * copies than the largest show the rate of a slow link, too. */
MEMOI void memoi_profile_copies(memoi_profiler* p, int64_t largest_bytes, memo_profile* profile) {
    memob_engine* e = &p->engine;
    for (p->copy_bytes = memob_min(8, largest_bytes);;
         p->copy_bytes = memob_min(8 * p->copy_bytes, largest_bytes)) {
        const int is_short = p->copy_bytes < memob_min(MEMOI_PROFILE_SMALL_BYTES, largest_bytes);
        memo_profile_transfer* copy = &profile->copies[1];
        double slower_s;
        copy->out_s = memoi_profile_time_copy(p, MEMOB_STREAM_TO_HOST, is_short);
        copy->back_s = memoi_profile_time_copy(p, MEMOB_STREAM_TO_DEVICE, is_short);
        if (e->status) return;
        copy->size_bytes = p->copy_bytes;
        if (p->copy_bytes <= MEMOI_PROFILE_SMALL_BYTES) profile->copies[0] = *copy;

        slower_s = fmax(copy->out_s, copy->back_s);
        if (is_short && slower_s > MEMOI_PROFILE_SHORT_S)
            e->status =
                memo_error_set(e->error, MEMO_STATUS_UNSUPPORTED,
                               "memo_session_desc.device: a copy of %lld bytes takes %.3g s; "
                               "measuring such a link would take hours, so give a profile",
                               (long long)p->copy_bytes, slower_s);
        if (e->status || p->copy_bytes == largest_bytes ||
            (!is_short && 8 * slower_s > MEMOI_PROFILE_COPY_S))
            return;
    }
}

/* Returns the time of a write or a read of the third tier, beside as many copies as fit into its
 * time alone.  Both use the bandwidth of host memory. */
MEMOI double memoi_profile_beside(memoi_profiler* p, int is_read,
                                  const memo_profile_transfer* copy) {
    const double copy_s = is_read ? copy->back_s : copy->out_s;
    memob_engine* e = &p->engine;
    double time_s;
    p->copy_bytes = copy->size_bytes;
    p->is_read = is_read;
    p->n_beside = 0;
    time_s = memoi_profile_time(p, MEMOB_STREAM_FILE, MEMOI_PROFILE_REPETITIONS);
    p->n_beside = copy_s > 0 ? (int64_t)fmin(1 + time_s / copy_s, 64) : 64;
    time_s = memoi_profile_time(p, MEMOB_STREAM_FILE, MEMOI_PROFILE_REPETITIONS);
    if (!e->status)
        e->status = memo_stream_synchronize(&e->device, e->streams[MEMOB_STREAM_TO_HOST + is_read],
                                            e->error);
    return time_s;
}

MEMOI void memoi_profile_spill(memoi_profiler* p, const char* directory, double bytes_per_s,
                               memo_profile* profile) {
    memob_engine* e = &p->engine;
    const double bytes = MEMOI_PROFILE_COPY_S * bytes_per_s;
    if (!e->status)
        e->status = memob_engine_check_launch(e, "memo_session_desc", "a file", e->error);
    if (e->status) return;

    /* A file like the swap engine's, with its own stream, so that copies run beside it. */
    p->file_bytes = p->half_bytes;
    if (bytes > 0 && bytes < (double)p->file_bytes)
        p->file_bytes = memob_align_up((int64_t)bytes, MEMOB_SPILL_ALIGNMENT);
    e->status = memob_spill_create(&e->memory.file, directory, p->file_bytes, bytes_per_s,
                                   e->memory.host, e->error);
    memset(e->memory.host, 0, (size_t)(2 * p->half_bytes)); /* no hole in the file, and defined */
    profile->file.out_s = memoi_profile_beside(p, 0, &profile->copies[1]);
    profile->file.back_s = memoi_profile_beside(p, 1, &profile->copies[1]);
    profile->file.size_bytes = p->file_bytes;
}

/* The first bytes of a state that the caller gives. */
MEMOI void memoi_profile_fetch(memoi_profiler* p, const memob_fetch* fetch, memo_profile* profile) {
    memob_engine* e = &p->engine;
    memob_spill_op* op = &p->file_ops[1];
    const int64_t n_bytes = memob_min(fetch->size_bytes, p->half_bytes);
    if (!e->status)
        e->status =
            memob_engine_check_launch(e, "memo_session_desc", "MEMO_STATE_FETCHED", e->error);
    if (e->status) return;
    p->file_bytes = memob_align_up(n_bytes, MEMOB_SPILL_ALIGNMENT);
    memob_spill_op_init(op, &e->memory.file, 0, e->memory.host, 0, p->file_bytes);
    op->fetch = *fetch;
    profile->fetch_s_per_byte = memoi_profile_beside(p, 1, &profile->copies[1]) / (double)n_bytes;
}

/* Measures copies up to a size, or to less if there is less memory, and a file of that size in the
 * directory, and bytes of a state that the caller gives; NULL: none.  on_device, on_host: memory
 * for two copies; NULL: the device's.  Each time is the median of five after one warm-up.  profile
 * is zero. */
MEMOI memo_status memoi_profile_measure(const memo_device* device, int64_t largest_bytes,
                                        const char* directory, double bytes_per_s,
                                        const memob_fetch* fetch, void* on_device, void* on_host,
                                        memo_profile* profile, memo_error* error) {
    const int has_file = directory || (fetch && fetch->size_bytes);
    memoi_profiler p;
    memob_engine* e = &p.engine;
    memo_status status;
    memset(&p, 0, sizeof p);
    if (directory && bytes_per_s > 0 && bytes_per_s < MEMOB_SPILL_ALIGNMENT)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "memo_session_desc.spill_bytes_per_s: %g, so that measuring a file "
                              "would take minutes; at least %d would work, or give a profile",
                              bytes_per_s, MEMOB_SPILL_ALIGNMENT);

    /* Memory for two copies at a time, on the device and on the host, where the file needs whole
     * pages; of 64 KiB if there is not enough for larger copies.  Streams, and events with
     * times. */
    p.half_bytes = has_file ? memob_align_up(largest_bytes, MEMOB_SPILL_ALIGNMENT) : largest_bytes;
    for (int64_t least_bytes = 1 << 16;; p.half_bytes = least_bytes) {
        memob_engine_begin(e, device, NULL, 0, on_device, on_host);
        memob_engine_call(e, error);
        largest_bytes = memob_min(largest_bytes, p.half_bytes);
        status = memob_engine_acquire(e, "memo_session_desc", 2 * largest_bytes, 2 * p.half_bytes,
                                      error);
        if (!status) status = memob_engine_take_streams(e, has_file ? 3 : 2, error);
        if (p.half_bytes <= least_bytes || (status != MEMO_STATUS_OUT_OF_DEVICE_MEMORY &&
                                            status != MEMO_STATUS_OUT_OF_HOST_MEMORY))
            break;
        memob_engine_release(e);
    }
    e->events = p.events;
    e->n_events = 2;
    e->memory.spill_ops = p.file_ops;
    for (int i = 0; i < 2 && !status; i++)
        status = memo_event_create(&e->device, &p.events[i], error);
    e->status = status;

    /* The copies come before the file, which is timed beside the largest of them. */
    memoi_profile_copies(&p, largest_bytes, profile);
    if (directory) memoi_profile_spill(&p, directory, bytes_per_s, profile);
    if (fetch && fetch->size_bytes) memoi_profile_fetch(&p, fetch, profile);
    memob_engine_release(e);
    return e->status;
}
