#pragma once
#include "memo/text.h"
#include "memo/device.h"
/* ---- >>spill file -------------------------------------------------------------------------------
 * Knows: the third tier: an unnamed file, its reads and writes as operations, and reads by a
 * function of the caller.  Knows nothing of what the bytes are.
 *
 * 1. Addresses in the file and sizes of operations are multiples of MEMOB_SPILL_ALIGNMENT.
 * 2. The parts of an operation follow each other and cover it; each begins at such a multiple.
 * 3. A part that ended without an error has no bytes left.
 * 4. The file's descriptor is not one of the standard streams'. */

/* Bytes.  Sizes and offsets in the file are multiples of it, so that the page cache can be
 * bypassed. */
#define MEMOB_SPILL_ALIGNMENT 4096

/* The first byte of files, where schedules number bytes. */
#define MEMOB_SPILL_FILE_BASE ((uint64_t)1 << 63)

typedef struct memob_spill_file {
    int fd; /* -1: none */
    double bytes_per_s;
    char directory[160]; /* for messages; may be cut short */
} memob_spill_file;

/* Copies bytes [at, at + n_bytes) of a state to `to`. */
typedef memo_status (*memob_fetch_function)(void* user, int32_t layer, int32_t state, int64_t at,
                                            void* to, int64_t n_bytes, memo_error* error);

/* A state that a function gives in place of the file. */
typedef struct memob_fetch {
    memob_fetch_function function;
    void* user;
    int32_t layer, state;
    int64_t size_bytes; /* of the state; 0: the file */
} memob_fetch;

/* Bytes that go to the file or come back.  It may be enqueued any number of times. */
typedef struct memob_spill_op {
    memo_host_call call;
    const memob_spill_file* file;
    char* address;
    int64_t offset, n_bytes;
    int32_t is_write;
    memob_fetch fetch; /* of a read at `offset` of the state, whose last page may be short */
} memob_spill_op;

MEMOI memo_status memoi_spill_run(void* op, memo_error* error);

MEMOI void memob_spill_op_init(memob_spill_op* op, const memob_spill_file* file, int is_write,
                               char* address, int64_t offset, int64_t n_bytes) {
    const memob_spill_op made = {
        {memoi_spill_run, op, NULL}, file, address, offset, n_bytes, is_write,
        MEMO_ZERO(memob_fetch)};
    MEMO_ASSERT(offset >= 0 && offset % MEMOB_SPILL_ALIGNMENT == 0);   /* 1 */
    MEMO_ASSERT(n_bytes >= 0 && n_bytes % MEMOB_SPILL_ALIGNMENT == 0); /* 1 */
    *op = made;
}

/* Bytes of an operation that a function gives. */
MEMOI memo_status memoi_spill_fetch(const memob_spill_op* op, int64_t begin, int64_t n_bytes,
                                    memo_error* error) {
    const memob_fetch* from = &op->fetch;
    const int64_t at = op->offset + begin;
    return from->function(from->user, from->layer, from->state, at, op->address + begin,
                          memob_min(n_bytes, from->size_bytes - at), error);
}

#if defined(_WIN32)
MEMOI memo_status memob_spill_create(memob_spill_file* file, const char* directory, int64_t n_bytes,
                                     double bytes_per_s, char* memory, memo_error* error) {
    (void)n_bytes, (void)bytes_per_s, (void)memory;
    file->fd = -1;
    return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                          "spill_directory %s: not supported on Windows; NULL is", directory);
}
MEMOI memo_status memoi_spill_run(void* argument, memo_error* error) {
    const memob_spill_op* op = (const memob_spill_op*)argument;
    return op->fetch.size_bytes
               ? memoi_spill_fetch(op, 0, op->n_bytes, error)
               : memo_error_set(error, MEMO_STATUS_UNSUPPORTED, "not supported on Windows");
}
#else
/* A macro of GNU's alone; glibc has it under two names. */
#if defined(O_DIRECT)
#define MEMOI_SPILL_DIRECT O_DIRECT
#elif defined(__O_DIRECT)
#define MEMOI_SPILL_DIRECT __O_DIRECT
#endif

MEMOI memo_status memoi_spill_error(const memob_spill_file* file, const char* what, int64_t n_bytes,
                                    int64_t offset, const char* why, memo_error* error) {
    char size[32];
    return memo_error_set(error, MEMO_STATUS_IO, "spill_directory %s: %s %s at byte %lld: %s",
                          file->directory, what, memob_bytes_text(size, (double)n_bytes),
                          (long long)offset, why);
}

/* Bytes of an operation. */
typedef struct memoi_spill_part {
    const memob_spill_op* op;
    int64_t begin, n_bytes;
    memo_error error; /* its status OK: none */
} memoi_spill_part;

/* Reads or writes all bytes of a part, in as many calls as that takes. */
MEMOI void* memoi_spill_run_part(void* argument) {
    memoi_spill_part* part = (memoi_spill_part*)argument;
    const memob_spill_op* op = part->op;
    const int64_t most_bytes = (int64_t)1 << 30; /* of one call */
    if (op->fetch.size_bytes) {
        part->error.status = memoi_spill_fetch(op, part->begin, part->n_bytes, &part->error);
        if (!part->error.status) part->n_bytes = 0;
    }
    while (part->n_bytes > 0 && !part->error.status) {
        char* address = op->address + part->begin;
        const int64_t offset = op->offset + part->begin;
        const size_t n = (size_t)memob_min(part->n_bytes, most_bytes);
        const ssize_t n_passed = op->is_write ? pwrite(op->file->fd, address, n, (off_t)offset)
                                              : pread(op->file->fd, address, n, (off_t)offset);
        if (n_passed < 0 && errno == EINTR) continue;
        if (n_passed <= 0) {
            memoi_spill_error(op->file, op->is_write ? "writing" : "reading", part->n_bytes, offset,
                              n_passed ? strerror(errno) : "the file ends there", &part->error);
            return NULL;
        }
        part->begin += n_passed;
        part->n_bytes -= n_passed;
    }
    return NULL;
}

/* If these bytes went through the page cache, drop these pages. */
MEMOI memo_status memoi_spill_uncache(const memob_spill_op* op, memo_error* error) {
    const int fd = op->file->fd;
#if defined(MEMOI_SPILL_DIRECT)
    if (fcntl(fd, F_GETFL) & MEMOI_SPILL_DIRECT) return MEMO_STATUS_OK;
#endif
#if defined(POSIX_FADV_DONTNEED)
    if (op->is_write && fsync(fd)) /* pages not written yet do not leave */
        return memoi_spill_error(op->file, "writing", op->n_bytes, op->offset, strerror(errno),
                                 error);
    (void)posix_fadvise(fd, (off_t)op->offset, (off_t)op->n_bytes, POSIX_FADV_DONTNEED);
#else
    (void)fd, (void)error;
#endif
    return MEMO_STATUS_OK;
}

/* Large operations are split into parts, several in flight at once: a single call does not keep an
 * array of disks busy, and one processor does not fill a file in memory fast enough. */
enum { MEMOI_SPILL_THREADS = 4 };
#define MEMOI_SPILL_PART_BYTES ((int64_t)16 << 20) /* at least, to be worth a thread */

MEMOI memo_status memoi_spill_run_parts(const memob_spill_op* op, memo_error* error) {
    memoi_spill_part parts[MEMOI_SPILL_THREADS];
    int64_t part_bytes = memob_align_up(
        (op->n_bytes + MEMOI_SPILL_THREADS - 1) / MEMOI_SPILL_THREADS, MEMOB_SPILL_ALIGNMENT);
    int64_t begin = 0;
    int32_t n = 0, k, is_started[MEMOI_SPILL_THREADS] = {0};
#ifndef MEMO_NO_HOST_DEVICE
    pthread_t threads[MEMOI_SPILL_THREADS];
#endif
    if (part_bytes < MEMOI_SPILL_PART_BYTES) part_bytes = MEMOI_SPILL_PART_BYTES;
    while (begin < op->n_bytes) {
        const memoi_spill_part part = {op, begin, memob_min(part_bytes, op->n_bytes - begin),
                                       MEMO_ZERO(memo_error)};
        MEMO_ASSERT(n < MEMOI_SPILL_THREADS && begin % MEMOB_SPILL_ALIGNMENT == 0); /* 2 */
        begin += part.n_bytes;
        parts[n++] = part;
    }
    MEMO_ASSERT(begin == op->n_bytes); /* 2 */

    /* The first part, and any without a thread, on this thread. */
    for (k = n - 1; k >= 0; k--) {
#ifndef MEMO_NO_HOST_DEVICE
        is_started[k] = k && !memob_thread_create(&threads[k], 0, memoi_spill_run_part, &parts[k]);
#endif
        if (!is_started[k]) (void)memoi_spill_run_part(&parts[k]);
    }
#ifndef MEMO_NO_HOST_DEVICE
    for (k = 1; k < n; k++)
        if (is_started[k]) pthread_join(threads[k], NULL);
#endif
    for (k = 0; k < n; k++) {
        MEMO_ASSERT(!parts[k].n_bytes == !parts[k].error.status); /* 3 */
        if (parts[k].error.status)
            return memo_error_set(error, parts[k].error.status, "%s", parts[k].error.message);
    }
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_spill_run(void* argument, memo_error* error) {
    const memob_spill_op* op = (const memob_spill_op*)argument;
    const memob_spill_file* file = op->file;
    int64_t begin_ns = memob_now_ns();
    memo_status status = memoi_spill_run_parts(op, error);
    if (op->fetch.size_bytes) return status;
    if (!status) status = memoi_spill_uncache(op, error);
    if (!status && file->bytes_per_s > 0) {
        double pace_s = (double)op->n_bytes / file->bytes_per_s;
        memob_sleep_until(begin_ns + (int64_t)(1e9 * (pace_s < 1e9 ? pace_s : 1e9)));
    }
    return status;
}

/* Opens a file and removes its name at once; -1: see errno. */
MEMOI int memoi_spill_open(const char* directory) {
    char path[MEMOI_PATH_BYTES + 32];
    int fd;
    snprintf(path, sizeof path, "%s/memo-spill-XXXXXX", directory);
    fd = mkstemp(path);
    if (fd >= 0) {
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
        (void)unlink(path);
    }
    return memoi_file_descriptor_from_3(fd);
}

/* Room for all bytes now; an errno. */
MEMOI int memoi_spill_reserve(int fd, int64_t n_bytes) {
    int code = EINTR;
    if (memoi_file_is_too_large(n_bytes)) return EFBIG;
#if !defined(__APPLE__)
    while (code == EINTR) code = posix_fallocate(fd, 0, (off_t)n_bytes);
    if (code != EOPNOTSUPP && code != EINVAL && code != ENOSYS) return code;
#endif
    return ftruncate(fd, (off_t)n_bytes) ? errno : 0; /* a file system that reserves nothing */
}

/* Creates an unnamed file of n_bytes, reserves the bytes, and writes and reads
 * MEMOB_SPILL_ALIGNMENT bytes of zeroed memory as a trial.  bytes_per_s: limit of reads and writes,
 * 0: none.  Destroy the file also after a failure.  Errors: IO. */
MEMOI memo_status memob_spill_create(memob_spill_file* file, const char* directory, int64_t n_bytes,
                                     double bytes_per_s, char* memory, memo_error* error) {
    const int64_t trial_bytes = MEMOB_SPILL_ALIGNMENT;
    memob_spill_op trial[2];
    int code, flags, is_direct = 0;
    snprintf(file->directory, sizeof file->directory, "%s", directory ? directory : "");
    file->bytes_per_s = bytes_per_s;
    file->fd = memoi_spill_open(directory);
    if (file->fd < 0)
        return memoi_spill_error(file, "creating a file of", n_bytes, 0, strerror(errno), error);
    MEMO_ASSERT(file->fd > STDERR_FILENO); /* 4 */

    /* Reserve all bytes, so that a full disk is found before the first step. */
    code = memoi_spill_reserve(file->fd, n_bytes);
    if (code) {
        char size[32];
        return memo_error_set(
            error, MEMO_STATUS_IO,
            "spill_directory %s: no room for a file of %s (%s); a folder on another "
            "disk, or a lower disk_bytes of a session, would work",
            file->directory, memob_bytes_text(size, (double)n_bytes), strerror(code));
    }

    /* A trial shows whether the page cache can be bypassed with this memory and file system.  If
     * not, another one shows whether the file works. */
    memset(memory, 0, (size_t)trial_bytes);
    flags = fcntl(file->fd, F_GETFL);
#if defined(MEMOI_SPILL_DIRECT)
    is_direct = flags >= 0 && fcntl(file->fd, F_SETFL, flags | MEMOI_SPILL_DIRECT) == 0;
#elif defined(F_NOCACHE)
    (void)fcntl(file->fd, F_NOCACHE, 1);
#endif
    memob_spill_op_init(&trial[0], file, 1, memory, 0, trial_bytes);
    memob_spill_op_init(&trial[1], file, 0, memory, 0, trial_bytes);
    for (;; is_direct = 0) {
        memo_error* reported = is_direct ? NULL : error;
        memo_status status = memoi_spill_run_parts(&trial[0], reported);
        if (!status) status = memoi_spill_run_parts(&trial[1], reported);
        if (!status || !is_direct) return status;
        (void)fcntl(file->fd, F_SETFL, flags);
    }
}

#endif

MEMOI void memob_spill_destroy(memob_spill_file* file) {
    if (file->fd >= 0) close(file->fd);
    file->fd = -1;
}

/* Enqueues op on stream, and announces it to a recorder.  Errors: the device's. */
MEMOI memo_status memob_spill_launch(const memo_device* device, memo_stream stream,
                                     memob_spill_op* op, memo_error* error) {
    const memo_range on_host = memob_range_at(op->address, op->n_bytes);
    /* Files that are open at the same time need different names. */
    const uint64_t base = MEMOB_SPILL_FILE_BASE + ((uint64_t)(op->file->fd + 1) << 48);
    const memo_range in_file = {base + (uint64_t)op->offset,
                                base + (uint64_t)(op->offset + op->n_bytes)};
    memo_op_desc what = MEMO_ZERO(memo_op_desc);
    memo_status status;
    what.name = op->is_write ? "to file" : "from file";
    if (op->fetch.size_bytes) what.name = "fetch";
    what.link_bytes = op->n_bytes;
    what.reads = op->is_write ? &on_host : &in_file;
    what.writes = op->is_write ? &in_file : &on_host;
    what.n_reads = !op->fetch.size_bytes; /* the caller's bytes, to which nobody writes */
    what.n_writes = 1;
    status = memo_annotate(device, stream, &what, error);
    return status ? status : memo_launch_host(device, stream, &op->call, error);
}
