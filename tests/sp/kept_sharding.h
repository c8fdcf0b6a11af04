/* kept_sharding.h - shardings of documents whose memory stays until the program ends, so that tests
 * pass shardings by value.
 *
 * Include after memo_sp.h. */
#ifndef KEPT_SHARDING_H
#define KEPT_SHARDING_H

#include <stdlib.h>

typedef struct kept_sharding {
    memo_sharding_piece* pieces;
    struct kept_sharding* next;
} kept_sharding;

static memo_status keep_sharding(const memo_sharding_desc* desc, memo_sharding* sharding,
                                 memo_error* e) {
    static kept_sharding* all; /* leak checkers find it */
    const memo_status status = memo_sharding_make(desc, sharding, e);
    if (status || !sharding->pieces) return status;
    kept_sharding* latest = (kept_sharding*)malloc(sizeof *latest);
    if (!latest) abort();
    latest->pieces = sharding->pieces;
    latest->next = __atomic_load_n(&all, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&all, &latest->next, latest, 0, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED)) {
    }
    return MEMO_STATUS_OK;
}

#endif
