#pragma once
#include "memo/base.h"
/* ---- >>bulk -------------------------------------------------------------------------------------
 * Knows: that several threads copy and clear host memory faster than one, and touch its pages.
 * Knows nothing of what the memory is for.
 *
 * 1. Parts follow each other and cover all bytes. */

#define MEMOB_BULK_THREADS 16
#ifndef MEMOB_BULK_PART_BYTES
#define MEMOB_BULK_PART_BYTES ((int64_t)32 << 20) /* the least that is worth a thread */
#endif

typedef struct memoi_bulk {
    char* to;
    const char* from; /* NULL: zero bytes */
    int64_t n_bytes;
} memoi_bulk;

MEMOI void* memoi_bulk_run(void* argument) {
    const memoi_bulk* part = (const memoi_bulk*)argument;
    if (part->from)
        memcpy(part->to, part->from, (size_t)part->n_bytes);
    else
        memset(part->to, 0, (size_t)part->n_bytes);
    return NULL;
}

/* Copies bytes, or with from NULL sets them to zero. */
MEMOI void memob_bulk_copy(char* to, const char* from, int64_t n_bytes) {
    const int64_t most_bytes =
        memob_max(memob_align_up((n_bytes + MEMOB_BULK_THREADS - 1) / MEMOB_BULK_THREADS, 4096),
                  MEMOB_BULK_PART_BYTES);
    memoi_bulk parts[MEMOB_BULK_THREADS];
    int32_t n = 0, is_started[MEMOB_BULK_THREADS] = {0};
#ifndef MEMO_NO_HOST_DEVICE
    pthread_t threads[MEMOB_BULK_THREADS];
#endif
    for (int64_t at = 0; at < n_bytes; at += most_bytes) {
        const memoi_bulk part = {to + at, from ? from + at : NULL,
                                 memob_min(most_bytes, n_bytes - at)};
        MEMO_ASSERT(n < MEMOB_BULK_THREADS); /* 1 */
        parts[n++] = part;
    }

    /* The first part, and any without a thread, on this thread. */
    for (int32_t k = n - 1; k >= 0; k--) {
#ifndef MEMO_NO_HOST_DEVICE
        is_started[k] = k && !memob_thread_create(&threads[k], 0, memoi_bulk_run, &parts[k]);
#endif
        if (!is_started[k]) (void)memoi_bulk_run(&parts[k]);
    }
#ifndef MEMO_NO_HOST_DEVICE
    for (int32_t k = 1; k < n; k++)
        if (is_started[k]) pthread_join(threads[k], NULL);
#endif
}
