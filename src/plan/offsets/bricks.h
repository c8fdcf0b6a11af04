#pragma once
#include "plan/offsets/rounds.h"
/* --- >>bricks ---
 * Knows: lifetimes and sizes.  Knows nothing of offsets, or of what else lives at a time.
 *
 * Items become one *brick*, whose plan is theirs, if together they fill a rectangle:
 *   row      two of one size, the second from the end of the first on
 *   stack    some that live at the same time: the sizes add up
 *   pinwheel four around a fifth.  These are edges between four times: left and top from b, low and
 *            right to e, the fifth from the end of left, where low begins, to the end of top, where
 *            right begins; left = fifth + low, right = fifth + top
 * A plan that leaves no byte free often is such bricks of bricks, down to a single brick.
 *
 * If a single brick ends at a time, a brick of its size that begins there continues its row.  Two
 * rows may meet at one time by chance, and then sizes or lives that agree may mislead.  So a brick
 * that is as large as all that begins or ends at its time comes first.  Without such a brick a few
 * likely bricks are joined, in another order in each attempt: first the rows with the largest share
 * of what ends at their time, and the longest stacks. */

typedef struct memoi_join {
    int32_t kept, gone;
    int64_t above; /* offset of gone - that of kept */
} memoi_join;

typedef struct memoi_bricks {
    memoi_problem whole; /* with bricks in place of the first items of each */
    memob_arrays arrays;
    memob_map found; /* the last brick of a key */
    char* is_brick;
    int32_t* same;          /* the brick listed before that lives at the same time, or -1 */
    int64_t* sum;           /* of the sizes of a brick and of those in its chain `same` */
    int64_t *begins, *ends; /* of a section: the sizes of all that begin or end there */
    memoi_join* joins;
    int64_t n_joins;
    uint64_t random;
} memoi_bricks;

typedef enum memoi_brick_key {
    MEMOI_BRICK_LIFE, /* of begin and end */
    MEMOI_BRICK_FROM, /* of begin and size */
    MEMOI_BRICK_TO    /* of end and size */
} memoi_brick_key;

MEMOI int64_t memoi_brick_hash(memoi_brick_key kind, int64_t time, int64_t other) {
    uint64_t hash = ((uint64_t)other * 0xc2b2ae3d27d4eb4fu + (uint64_t)time) * 3 + (uint64_t)kind;
    return (int64_t)(hash * 0xff51afd7ed558ccdu);
}

/* The last brick of a key, unless it was joined since; -1: none. */
MEMOI int64_t memoi_brick_find(const memoi_bricks* b, memoi_brick_key kind, int64_t time,
                               int64_t other) {
    const int64_t i = memob_map_get(&b->found, memoi_brick_hash(kind, time, other));
    const memoi_item* item = i < 0 || !b->is_brick[i] ? NULL : &b->whole.items[i];
    if (!item || (kind == MEMOI_BRICK_TO ? item->end : item->begin) != time) return -1;
    return (kind == MEMOI_BRICK_LIFE ? item->end : item->size) == other ? i : -1;
}

/* Is a brick with this key the one to find?  Of several with one key any may be. */
MEMOI int memoi_brick_is_found(memoi_bricks* b, memoi_brick_key kind, int64_t time, int64_t size) {
    return memoi_brick_find(b, kind, time, size) < 0 || memoi_search_random(&b->random) % 2;
}

/* Lists all bricks.  0: no memory. */
MEMOI int memoi_bricks_list(memoi_bricks* b) {
    const int64_t n = b->whole.n_items, n_sections = b->whole.n_sections;
    memob_map* map = &b->found;
    int ok = 1;
    memob_map_free(map);
    memset(b->begins, 0, (size_t)(n_sections + 1) * sizeof(int64_t));
    memset(b->ends, 0, (size_t)(n_sections + 1) * sizeof(int64_t));
    for (int64_t i = 0; ok && i < n; i++) {
        const memoi_item* item = &b->whole.items[i];
        const int64_t life = memoi_brick_hash(MEMOI_BRICK_LIFE, item->begin, item->end);
        if (!b->is_brick[i]) continue;
        b->begins[item->begin] += item->size;
        b->ends[item->end] += item->size;
        b->same[i] = (int32_t)memoi_brick_find(b, MEMOI_BRICK_LIFE, item->begin, item->end);
        b->sum[i] = item->size + (b->same[i] < 0 ? 0 : b->sum[b->same[i]]);
        ok = memob_map_put(map, life, i);
        if (ok && memoi_brick_is_found(b, MEMOI_BRICK_FROM, item->begin, item->size))
            ok = memob_map_put(map, memoi_brick_hash(MEMOI_BRICK_FROM, item->begin, item->size), i);
        if (ok && memoi_brick_is_found(b, MEMOI_BRICK_TO, item->end, item->size))
            ok = memob_map_put(map, memoi_brick_hash(MEMOI_BRICK_TO, item->end, item->size), i);
    }
    return ok;
}

MEMOI void memoi_brick_join(memoi_bricks* b, int64_t kept, int64_t gone, int64_t above) {
    memoi_join* join = &b->joins[b->n_joins++];
    join->kept = (int32_t)kept;
    join->gone = (int32_t)gone;
    join->above = above;
    b->is_brick[gone] = 0;
}

/* Joins i with all bricks that live at the same time, if i is the last of these. */
MEMOI void memoi_brick_stack(memoi_bricks* b, int64_t i, int is_sure) {
    memoi_item* item = &b->whole.items[i];
    int64_t k = b->same[i];
    if (k < 0 || memoi_brick_find(b, MEMOI_BRICK_LIFE, item->begin, item->end) != i) return;
    if (is_sure && memoi_brick_find(b, MEMOI_BRICK_TO, item->begin, b->sum[i]) < 0 &&
        memoi_brick_find(b, MEMOI_BRICK_FROM, item->end, b->sum[i]) < 0)
        return;
    for (; k >= 0; k = b->same[k]) {
        memoi_brick_join(b, i, k, item->size);
        item->size += b->whole.items[k].size;
    }
}

/* Is a brick that begins at the end of i with the same size surely the next in its row?  Large
 * sizes agree by chance so rarely that any brick will do. */
MEMOI int memoi_brick_is_sure(const memoi_bricks* b, int64_t i) {
    enum { LARGE = 1 << 20 };
    const memoi_item* item = &b->whole.items[i];
    return item->size >= LARGE || item->size == b->ends[item->end];
}

/* Joins i with the next brick of its row. */
MEMOI void memoi_brick_row(memoi_bricks* b, int64_t i, int is_sure) {
    memoi_item* item = &b->whole.items[i];
    const int64_t next = memoi_brick_find(b, MEMOI_BRICK_FROM, item->end, item->size);
    if (next < 0 || (is_sure && !memoi_brick_is_sure(b, i))) return;
    memoi_brick_join(b, i, next, 0);
    item->end = b->whole.items[next].end;
    item->lifetime += b->whole.items[next].lifetime;
}

/* Joins i, the fifth of a pinwheel, with the four around it. */
MEMOI void memoi_brick_pinwheel(memoi_bricks* b, int64_t i, int is_sure) {
    memoi_item* items = b->whole.items;
    const memoi_item* item = &items[i];
    int64_t left, top, right, low = i;
    while (low > 0 && items[low - 1].begin == item->begin) low--;
    for (; low < b->whole.n_items && items[low].begin == item->begin; low++) {
        if (low == i || !b->is_brick[low]) continue;
        left = memoi_brick_find(b, MEMOI_BRICK_TO, item->begin, item->size + items[low].size);
        if (left < 0 || (is_sure && !memoi_brick_is_sure(b, left))) continue;
        top = memoi_brick_find(b, MEMOI_BRICK_LIFE, items[left].begin, item->end);
        if (top < 0) continue;
        right = memoi_brick_find(b, MEMOI_BRICK_FROM, item->end, item->size + items[top].size);
        if (right < 0 || items[right].end != items[low].end) continue;
        memoi_brick_join(b, left, top, items[left].size);
        memoi_brick_join(b, left, low, 0);
        memoi_brick_join(b, left, i, items[low].size);
        memoi_brick_join(b, left, right, items[low].size);
        items[left].size += items[top].size;
        items[left].end = items[right].end;
        items[left].lifetime += items[right].lifetime;
        return;
    }
}

/* Joins bricks until none is left to join.  Returns how many bricks remain; 0: no memory, or time
 * is up. */
MEMOI int64_t memoi_bricks_join(memoi_bricks* b, double deadline) {
    enum { LEVELS = 63, SOME = 64 };
    const int64_t n = b->whole.n_items;
    const memoi_item* items = b->whole.items;
    int64_t level = 0, before = -1, most;
    while (level < LEVELS) {
        if (memob_now_s() > deadline || (b->n_joins > before && !memoi_bricks_list(b))) return 0;
        before = b->n_joins;
        for (int64_t i = 0; i < n; i++)
            if (b->is_brick[i]) memoi_brick_row(b, i, 1);
        for (int64_t i = 0; i < n; i++)
            if (b->is_brick[i]) memoi_brick_pinwheel(b, i, 1);
        if (b->n_joins > before) continue;
        for (int64_t i = 0; i < n; i++)
            if (b->is_brick[i]) memoi_brick_stack(b, i, 1);

        /* If no brick is surely the next, some likely bricks.  No tiling has so few sure bricks. */
        if (b->n_joins == before && b->n_joins < n / SOME) break;
        most = b->n_joins > before ? 0 : before + (n - before) / SOME + 1;
        for (int64_t i = 0; i < n && b->n_joins < most; i++) {
            if (!b->is_brick[i] || memoi_search_random(&b->random) % 2 == 0) continue;
            if (items[i].size >= b->ends[items[i].end] >> level) memoi_brick_row(b, i, 0);
            if (b->n_joins == before) memoi_brick_pinwheel(b, i, 0);
        }
        if (b->n_joins > before) most = 0;
        for (int64_t i = 0; i < n && b->n_joins < most; i++)
            if (b->is_brick[i] && memoi_search_random(&b->random) % 2 == 0 &&
                items[i].end - items[i].begin >= b->whole.n_sections >> level)
                memoi_brick_stack(b, i, 0);
        level += b->n_joins == before;
    }
    return n - b->n_joins;
}

/* Lowers the best plan of a plain problem by bricks: joins them in several orders, and plans what
 * is left, with a share of the effort.  Errors: no memory. */
MEMOI memo_status memoi_bricks_solve(const memoi_problem* problem, int64_t target,
                                     memoi_effort* effort, memoi_solution* best,
                                     memo_error* error) {
    const int64_t n = problem->n_items;
    memo_status status = MEMO_STATUS_OK;
    memoi_effort own = memoi_effort_take(effort, 1.0 / (int)MEMOI_SHARE), turn;
    int64_t bound = 0, n_left;
    int64_t* offsets;
    memoi_bricks b;
    memset(&b, 0, sizeof b);
    b.whole = *problem;
    b.whole.items = MEMOB_ARRAY(&b.arrays, memoi_item, n);
    b.whole.ranges = MEMOB_ARRAY(&b.arrays, memoi_range, n);
    b.is_brick = (char*)memob_arrays_add(&b.arrays, n, 1);
    b.same = MEMOB_ARRAY(&b.arrays, int32_t, n);
    b.sum = MEMOB_ARRAY(&b.arrays, int64_t, n);
    b.begins = MEMOB_ARRAY(&b.arrays, int64_t, problem->n_sections + 1);
    b.ends = MEMOB_ARRAY(&b.arrays, int64_t, problem->n_sections + 1);
    b.joins = MEMOB_ARRAY(&b.arrays, memoi_join, n);
    offsets = MEMOB_ARRAY(&b.arrays, int64_t, n);
    if (b.arrays.failed) status = memob_no_memory(error, "the bricks of the plan");

    for (int64_t attempt = 0; !status && attempt < MEMOI_TRIES && best->peak > target; attempt++) {
        memoi_problem part;
        memoi_solution inner;
        memcpy(b.whole.items, problem->items, (size_t)n * sizeof(memoi_item));
        memset(b.is_brick, 1, (size_t)n);
        b.n_joins = 0;
        b.random = (uint64_t)attempt;
        n_left = memoi_bricks_join(&b, own.deadline);
        if (n_left == 0 || n_left > n / 2) break; /* far from one brick in any order */
        for (int64_t i = 0; i < n; i++) {
            b.whole.items[i].first_range = i;
            b.whole.ranges[i].begin = b.whole.items[i].begin;
            b.whole.ranges[i].end = b.whole.items[i].end;
        }
        if (!memoi_problem_pick(&b.whole, 0, n, b.is_brick, NULL, 0, &part)) {
            status = memob_no_memory(error, "the bricks of the plan");
            break;
        }

        /* Plan what is left. */
        memoi_solution_begin(&inner, (int64_t*)memob_calloc(part.n_items, sizeof(int64_t)));
        status = inner.offsets
                     ? memoi_greedy_solve(&part, target, own.deadline, own.deadline, &inner, error)
                     : memob_no_memory(error, "the bricks of the plan");
        bound = part.lower_bound;
        turn = memoi_effort_take(&own, 1.0 / (int)MEMOI_SHARE);
        if (!status && inner.peak > target &&
            !memoi_search_minimize(&part, target, &turn, &inner, &bound))
            status = memob_no_memory(error, "the search");
        own.nodes_left += turn.nodes_left;

        /* From bricks to items: those that are gone lie above those that were kept. */
        for (int64_t i = 0; !status && i < part.n_items; i++)
            offsets[part.items[i].buffer] = inner.offsets[i];
        for (int64_t i = b.n_joins - 1; !status && i >= 0; i--)
            offsets[b.joins[i].gone] = offsets[b.joins[i].kept] + b.joins[i].above;
        if (!status) memoi_solution_offer(problem, offsets, best);
        MEMO_FREE(inner.offsets);
        memoi_problem_free(&part);
    }

    effort->nodes_left += own.nodes_left;
    memob_map_free(&b.found);
    memob_arrays_free(&b.arrays);
    return status;
}
