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

/* The stretch whose step is the last one in rows [begin, end), which meet stretch i; or one that is
 * not below `most`. */
MEMOI memoi_pool_stretch memoi_pool_look(const memoi_pool* pool, int32_t i, int64_t begin,
                                         int64_t end, int32_t most) {
    const memoi_pool_stretch* s = pool->stretches;
    memoi_pool_stretch last = {begin, begin, 0};
    for (int32_t k = i; k >= 0 && s[k].end > begin && last.step < most; k--)
        if (s[k].begin < end && s[k].step > last.step) last = s[k];
    for (int32_t k = i + 1; k < pool->n && s[k].begin < end && last.step < most; k++)
        if (s[k].end > begin && s[k].step > last.step) last = s[k];
    return last;
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
        /* Rows from `next` on, and up to `low`, leave room for the next step. */
        const int64_t low = (n_rows - next) / unit * unit - n, last = n_rows - n;
        int64_t behind[2] = {0, 0}; /* rows before it meet a step that is not earlier */
        int32_t cost = INT32_MAX;
        rooms[s].row = rooms[s].after = 0;
        if (!n || memoi_pool_take_new(pool, n, next, s, &rooms[s])) continue;

        /* Rows begin where a stretch begins, or end where it ends. */
        for (int32_t i = 0; i < pool->n && cost; i++) {
            const memoi_pool_stretch* at = &pool->stretches[i];
            if (at->step >= cost && at->end - at->begin >= unit) continue;
            for (int k = 0; k < 2; k++) {
                const int64_t row =
                    k ? memob_max(at->end - n, 0) / unit * unit : memob_align_up(at->begin, unit);
                const int32_t least = row >= next || row <= low ? 0 : s - 1;
                memoi_pool_stretch place;
                if (row < behind[k] || row > last || least >= cost) continue;
                place = memoi_pool_look(pool, i, row, row + n, cost);
                if (place.step < cost) {
                    cost = (int32_t)memob_max(place.step, least);
                    rooms[s].row = row;
                    rooms[s].after = place.step;
                }
                if (place.step >= cost) behind[k] = place.end;
            }
        }
        MEMO_ASSERT(cost < INT32_MAX); /* 2 */
        memoi_pool_take(pool, rooms[s].row, rooms[s].row + n, s);
    }
}
