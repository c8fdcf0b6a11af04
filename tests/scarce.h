/* scarce.h - memory for memo's bookkeeping that runs out when a test says so, on whatever thread.
 * Included before memo.h, so it must not include what would settle the feature macros. */
#ifndef SCARCE_H
#define SCARCE_H

#include <stddef.h>

void* malloc(size_t size_bytes); /* stdlib.h's */

#define MEMO_MALLOC(size_bytes) scarce_malloc(size_bytes)
#define MEMO_FREE(address)      free(address)

/* After so many allocations there is none; below 0: it never runs out. */
static long long mallocs_left = -1;

static void* scarce_malloc(size_t size_bytes) {
    if (__atomic_load_n(&mallocs_left, __ATOMIC_RELAXED) >= 0 &&
        __atomic_fetch_sub(&mallocs_left, 1, __ATOMIC_RELAXED) <= 0) {
        __atomic_store_n(&mallocs_left, 0, __ATOMIC_RELAXED);
        return NULL;
    }
    return malloc(size_bytes);
}

#endif
