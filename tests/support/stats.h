/* stats.h - getters of memo.h as values, so that a CHECK can use them in an expression, and a clock
 * that shares no code with memo.h. */
#ifndef STATS_H
#define STATS_H

#include "memo.h"
#include <time.h>

static MEMO_UNUSED double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static MEMO_UNUSED memo_arena_stats arena_stats(const memo_arena* arena) {
    const memo_arena_stats stats = memo_arena_get_stats(arena);
    return stats;
}

#ifndef MEMO_NO_HOST_DEVICE
static MEMO_UNUSED memo_host_device_stats host_device_stats(const memo_device* device) {
    const memo_host_device_stats stats = memo_host_device_get_stats(device);
    return stats;
}
#endif

#endif
