#pragma once
#include "sp/attention/shape.h"
/* ---- >>pools of rows ----------------------------------------------------------------------------
 * Knows: how many rows come one after another, and where there is room for them.  Knows nothing of
 * what they are.
 *
 * 1. The stretches of a pool ascend without gaps from its first row to its last.
 * 2. Every step finds room: two sets of a rank's rows hold any step beside the one before. */

/* Rows of keys that arrive, and contributions to gradients that leave, lie in pools, where there is
 * room.  Contributions that arrive are added at once, and share a place behind those that leave.
 * Keys that a rank holds for its node have pools of their own, and so have the sums of their
 * gradients; both have the same rooms. */
enum { MEMOI_POOL_KEYS = 0, MEMOI_POOL_GRADIENTS, MEMOI_POOL_HELD, MEMOI_POOL_SUMS, MEMOI_N_POOLS };

/* Where rows lie in a pool, and the last earlier step whose rows lay there; 0: none. */
typedef struct memoi_exchange_room {
    int64_t row;
    int32_t after;
} memoi_exchange_room;

#ifndef MEMOI_POOL_ALIGNMENT /* tests set it */
#define MEMOI_POOL_ALIGNMENT                                                                       \
    8 /* rows of a step begin at a multiple, so that kernels can load them */
#endif

/* Rows [begin, end) of a pool, where the rows of a step were last; 0: none. */
typedef struct memoi_pool_stretch {
    int64_t begin, end;
    int32_t step;
} memoi_pool_stretch;

typedef struct memoi_pool {
    int64_t n_rows;
    memoi_pool_stretch* stretches; /* ascending, without gaps */
    int32_t n;
} memoi_pool;

/* Rows of a pool.  Two sets of a rank's rows always leave room for the next step beside the present
 * one.  Rounded contributions are computed elsewhere. */
MEMOI int64_t memoi_pool_rows(const memoi_shape* shape, int pool) {
    const int64_t n = shape->n_batch * shape->key_sharding.ring_tokens;
    const int n_sets = 2 + (pool == MEMOI_POOL_GRADIENTS && shape->carried_type == MEMO_TYPE_F32);
    return n_sets * memob_align_up(n, MEMOI_POOL_ALIGNMENT);
}

/* The last step whose rows lie in [begin, end), which meets stretch i. */
MEMOI int32_t memoi_pool_last_step(const memoi_pool* pool, int32_t i, int64_t begin, int64_t end) {
    const memoi_pool_stretch* s = pool->stretches;
    int32_t step = 0;
    while (i > 0 && s[i - 1].end > begin) i--;
    for (; i < pool->n && s[i].begin < end; i++)
        if (s[i].end > begin && s[i].step > step) step = s[i].step;
    return step;
}

/* Cuts the stretch that a row is in; returns the index of the one that begins there. */
MEMOI int32_t memoi_pool_cut(memoi_pool* pool, int64_t row) {
    memoi_pool_stretch* s = pool->stretches;
    while (s - pool->stretches < pool->n && s->end <= row) s++;
    if (s - pool->stretches < pool->n && s->begin < row) {
        memmove(s + 1, s, (size_t)(pool->stretches + pool->n++ - s) * sizeof *s);
        s->end = row;
        (++s)->begin = row;
    }
    return (int32_t)(s - pool->stretches);
}

MEMOI void memoi_pool_take(memoi_pool* pool, int64_t begin, int64_t end, int32_t step) {
    const int32_t first = memoi_pool_cut(pool, begin), next = memoi_pool_cut(pool, end);
    memoi_pool_stretch* s = pool->stretches + first;
    s->end = end;
    s->step = step;
    memmove(s + 1, pool->stretches + next, (size_t)(pool->n - next) * sizeof *s);
    pool->n -= next - first - 1;
    s = pool->stretches;
    for (int32_t i = first; i < pool->n && i < first + 2; i++) /* 1 */
        MEMO_ASSERT(s[i].begin < s[i].end && s[i].begin == (i ? s[i - 1].end : 0));
    MEMO_ASSERT(s[pool->n - 1].end == pool->n_rows); /* 1 */
}

/* Do `next` rows lie before [row, row + n) of a pool of n_rows, or behind? */
MEMOI int memoi_pool_has_beside(int64_t n_rows, int64_t row, int64_t n, int64_t next) {
    const int64_t unit = MEMOI_POOL_ALIGNMENT;
    return row >= next || (n_rows - next) / unit * unit >= row + n;
}

/* Takes n rows that no step has had yet, behind those that one had; 0: there are too few. */
MEMOI int memoi_pool_take_new(memoi_pool* pool, int64_t n, int64_t next, int32_t step,
                              memoi_exchange_room* room) {
    memoi_pool_stretch* s = &pool->stretches[pool->n - 1];
    const int64_t row = memob_align_up(s->begin, MEMOI_POOL_ALIGNMENT);
    const int has_room = memoi_pool_has_beside(pool->n_rows, row, n, next);
    const memoi_pool_stretch taken = {row, row + n, step}, rest = {row + n, pool->n_rows, 0};
    if (s->step || row + n > pool->n_rows || !has_room) return 0;
    room->row = row;
    room->after = 0;
    if (s->begin < row) {
        (s++)->end = row;
        pool->n++;
    }
    *s++ = taken;
    if (rest.begin < rest.end) {
        *s = rest;
        pool->n++;
    }
    return 1;
}

/* Finds rooms for sizes[1 .. n_steps - 1] rows: each where the last user is as early as possible,
 * and the next step has room beside it. */
MEMOI void memoi_pool_lay(memoi_pool* pool, int64_t n_rows, const int64_t* sizes, int32_t n_steps,
                          memoi_exchange_room* rooms) {
    const int64_t unit = MEMOI_POOL_ALIGNMENT;
    const memoi_pool_stretch all = {0, n_rows, 0};
    pool->n_rows = n_rows;
    pool->n = 1;
    pool->stretches[0] = all;

    for (int32_t s = 1; s < n_steps; s++) {
        const int64_t n = sizes[s], next = s + 1 < n_steps ? sizes[s + 1] : 0;
        int32_t cost = INT32_MAX;
        rooms[s].row = rooms[s].after = 0;
        if (!n || memoi_pool_take_new(pool, n, next, s, &rooms[s])) continue;
        for (int32_t i = 0; i < 2 * pool->n && cost; i++) {
            const memoi_pool_stretch* at = &pool->stretches[i / 2];
            const int64_t row =
                i % 2 ? memob_max(at->end - n, 0) / unit * unit : memob_align_up(at->begin, unit);
            const int has_room = memoi_pool_has_beside(n_rows, row, n, next);
            const int32_t after =
                row + n > n_rows ? 0 : memoi_pool_last_step(pool, i / 2, row, row + n);
            const int32_t cost_here = has_room ? after : (int32_t)memob_max(after, s - 1);
            if (row + n > n_rows || cost_here >= cost) continue;
            cost = cost_here;
            rooms[s].row = row;
            rooms[s].after = after;
        }
        MEMO_ASSERT(cost < INT32_MAX); /* 2 */
        memoi_pool_take(pool, rooms[s].row, rooms[s].row + n, s);
    }
}
