#pragma once
#include "memo/law.h"
/* ---- >>law operations ---------------------------------------------------------------------------
 * Knows: in which order visits and transfers are enqueued, and which cells they touch.  Knows
 * nothing of why bytes travel: that is >>law, whose numbers 7 and 8 are asserted here.  Also:
 *
 * 1. Operations, parts and touches fit into arrays that are sized by uses and transfers.
 * 2. What is read from the file was written there, in a transfer before. */

MEMOI memob_op* memoi_law_add_op(memoi_maker* m, int32_t kind) {
    static const int32_t streams[] = {MEMOB_STREAM_COMPUTE, MEMOB_STREAM_TO_HOST,
                                      MEMOB_STREAM_TO_DEVICE, MEMOB_STREAM_FILE, MEMOB_STREAM_FILE};
    MEMOB_TABLE_OF(MEMOB_N_OP_KINDS, streams);
    memob_op* op = &m->law->ops[m->law->n_ops++];
    MEMO_ASSERT(m->law->n_ops <= m->ops_most); /* 1 */
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->stream = streams[kind];
    op->list = m->list;
    op->visit = m->visit;
    op->first_part = m->law->n_parts;
    op->first_touch = m->law->n_touches;
    if (kind == MEMOB_OP_VISIT && m->desc->on_host && m->desc->on_host[op->visit])
        op->stream = MEMOB_STREAM_FILE;
    return op;
}

MEMOI void memoi_law_add_part(memoi_maker* m, memob_op* op, int32_t item, int64_t at, int64_t away,
                              int32_t n_slots) {
    const memob_part part = {item, at, away, n_slots, m->desc->items[item].n_host, 0};
    MEMO_ASSERT(m->law->n_parts < m->parts_most); /* 1 */
    m->law->parts[m->law->n_parts++] = part;
    op->n_parts++;
}

/* Slots that an operation reads or writes. */
MEMOI void memoi_law_touch(memoi_maker* m, memob_op* op, int32_t writes, int64_t at, int32_t n) {
    memob_law* law = m->law;
    int32_t touch = 2 * (int32_t)memoi_cell_at(m->desc, at) + writes;
    for (int32_t k = 0; k < n; k++, touch += 2) {
        MEMO_ASSERT(law->n_touches < m->touches_most && touch < 2 * law->n_cells); /* 1 */
        law->touches[law->n_touches++] = touch;
        op->n_touches++;
    }
}

/* The bytes of copies. */
MEMOI void memoi_law_end_op(memoi_maker* m, memob_op* op) {
    static const int64_t tiers[] = {0, MEMOI_ON_HOST, MEMOI_IN_FILE};
    MEMOB_TABLE_OF(MEMO_N_TIERS, tiers);
    const int is_file = op->kind == MEMOB_OP_WRITE || op->kind == MEMOB_OP_READ;
    const int leaves = op->kind == MEMOB_OP_STORE || op->kind == MEMOB_OP_WRITE;
    for (int32_t writes = 0; writes < 2; writes++) {
        const int is_away = writes == leaves;
        const int64_t tier = tiers[is_file + is_away];
        for (int32_t k = 0; k < op->n_parts; k++) {
            const memob_part* part = &m->law->parts[op->first_part + k];
            memoi_law_touch(m, op, writes, tier + (is_away ? part->away : part->at),
                            tier ? part->n_host : part->n_slots);
        }
    }
}

/* A visit: the items that it makes, and the bytes of its uses.  The first use of a stay writes,
 * even if it reads: rows that were not stored are made again there, and a load before it, for which
 * it would wait, may have no bytes in this micro-batch. */
MEMOI void memoi_law_add_visit(memoi_maker* m) {
    const memob_law_desc* d = m->desc;
    const char* begins = &m->begins[(int64_t)m->list * d->n_uses];
    memob_op* op = memoi_law_add_op(m, MEMOB_OP_VISIT);
    m->law->visit_ops[(int64_t)m->list * d->n_visits + m->visit] = (int32_t)(op - m->law->ops);
    for (int32_t u = m->law->first_use[m->visit]; u < m->law->first_use[m->visit + 1]; u++) {
        const memob_use* use = &d->uses[u];
        const memob_item* item = &d->items[use->item];
        const int may_write = use->how != MEMOB_USE_READ && use->how != MEMOB_USE_MAKE;
        if (!item->n_slots) continue;
        if (begins[u] && use->how == MEMOB_USE_MAKE)
            memoi_law_add_part(m, op, use->item, use->at, use->at, memoi_use_slots(item, use));
        memoi_law_touch(m, op, may_write || begins[u], memoi_use_at(item, use),
                        memoi_use_slots(item, use));
    }
}

/* --- transfers --- */

/* Visits before a time that count. */
MEMOI int32_t memoi_law_count(const memoi_maker* m, int32_t time) {
    const int32_t n = m->desc->n_visits;
    return time / n * m->n_counted[n] + m->n_counted[time % n];
}

/* An operation that a transfer is, or that comes with it. */
MEMOI memob_op* memoi_law_add_transfer(memoi_maker* m, int32_t kind, const memoi_due* due) {
    memob_op* op = memoi_law_add_op(m, kind);
    op->is_load = due->order;
    op->need = due->need;
    if (due->need < INT32_MAX)
        op->need = memoi_law_count(m, due->need) - memoi_law_count(m, due->slot);
    return op;
}

/* An operation of transfers, or of copies between windows and their homes in the file. */
MEMOI void memoi_law_copy(memoi_maker* m, int32_t kind, const memoi_due* due, int32_t n) {
    const int is_file = kind == MEMOB_OP_WRITE || kind == MEMOB_OP_READ;
    memob_op* op = NULL;
    for (int32_t k = 0; k < n; k++) {
        const memob_item* item = &m->desc->items[due[k].item];
        MEMO_ASSERT(memoi_due_together(due, &due[k])); /* 7 */
        if (is_file && item->file < 0) continue;
        if (is_file && !item->lives_on && !(kind == MEMOB_OP_WRITE && m->is_read[&due[k] - m->due]))
            continue; /* reads: memoi_law_read_behind */
        if (!op) op = memoi_law_add_transfer(m, kind, due);
        memoi_law_add_part(m, op, due[k].item, is_file ? due[k].host : due[k].at,
                           is_file ? item->file : due[k].host, due[k].n_slots);
    }
    if (op) memoi_law_end_op(m, op);
}

/* Finds behind which transfer each load is read from the file: the latest that uses its window. */
MEMOI memo_status memoi_law_find_reads(memoi_maker* m, memo_error* error) {
    int32_t* latest = MEMOB_ARRAY(&m->arrays, int32_t, m->desc->n_slots[1]); /* 1 + a transfer */
    int32_t* stored = MEMOB_ARRAY(&m->arrays, int32_t, m->desc->n_items);    /* 1 + its latest */
    m->first_read = MEMOB_ARRAY_OF_ANY(&m->arrays, int32_t, m->n_due);
    m->next_read = MEMOB_ARRAY_OF_ANY(&m->arrays, int32_t, m->n_due);
    m->is_read = MEMOB_ARRAY(&m->arrays, char, m->n_due);
    if (m->arrays.failed) return memob_no_memory(error, "the windows of a step");
    for (int32_t k = 0; k < m->n_due; k++) {
        const memob_item* item = &m->desc->items[m->due[k].item];
        int32_t before = -1, is_there = 1;
        m->first_read[k] = m->next_read[k] = -1;
        if (item->file < 0) continue;
        for (int64_t h = item->host; h < item->host + item->n_host; h++) {
            before = (int32_t)memob_max(before, latest[h] - 1);
            is_there &= latest[h] > 0 && m->due[latest[h] - 1].item == m->due[k].item;
            latest[h] = k + 1;
        }
        if (item->lives_on) continue; /* memoi_law_copy reads before each load */
        if (!m->due[k].order) stored[m->due[k].item] = k + 1;
        if (!m->due[k].order || is_there) continue;
        MEMO_ASSERT(before >= 0 && stored[m->due[k].item]); /* 2 */
        m->is_read[stored[m->due[k].item] - 1] = 1;
        m->next_read[k] = m->first_read[before];
        m->first_read[before] = k;
    }
    return MEMO_STATUS_OK;
}

/* Reads what comes into the windows that n transfers have freed. */
MEMOI void memoi_law_read_behind(memoi_maker* m, const memoi_due* due, int32_t n) {
    memob_op* op = NULL;
    for (int32_t k = 0; k < n; k++)
        for (int32_t r = m->first_read[due + k - m->due]; r >= 0; r = m->next_read[r]) {
            const memob_item* item = &m->desc->items[m->due[r].item];
            if (!op) op = memoi_law_add_transfer(m, MEMOB_OP_READ, due);
            memoi_law_add_part(m, op, m->due[r].item, item->host, item->file, m->due[r].n_slots);
        }
    if (op) memoi_law_end_op(m, op);
}

/* Transfers that are enqueued together. */
MEMOI void memoi_law_transfer(memoi_maker* m, const memoi_due* due, int32_t n) {
    if (due->order && m->has_windows) memoi_law_copy(m, MEMOB_OP_READ, due, n);
    memoi_law_copy(m, due->order ? MEMOB_OP_LOAD : MEMOB_OP_STORE, due, n);
    if (!due->order && m->has_windows) memoi_law_copy(m, MEMOB_OP_WRITE, due, n);
    if (m->has_windows) memoi_law_read_behind(m, due, n);
}

/* All operations in the order of enqueueing. */
MEMOI void memoi_law_walk(memoi_maker* m) {
    const int32_t n = m->desc->n_visits;
    int32_t k = 0;
    m->law->n_ops = m->law->n_parts = m->law->n_touches = 0;
    m->list = 0;
    m->visit = -1;

    for (int32_t slot = 0; slot <= m->law->n_lists * n; slot++, m->visit++) {
        if (m->visit == n) { /* the list before has ended */
            m->visit = 0;
            m->law->begin[++m->list] = m->law->n_ops;
        }
        if (slot) m->law->visit_ops[slot - 1] = -1;
        if (slot && memoi_law_has(m->desc, m->list, m->visit)) memoi_law_add_visit(m);
        while (k < m->n_due && m->due[k].slot == slot) {
            int32_t end = k + 1;
            while (end < m->n_due && memoi_due_together(&m->due[k], &m->due[end]) &&
                   !memoi_due_shares_window(m->desc, &m->due[k], end - k,
                                            &m->desc->items[m->due[end].item]))
                end++;
            memoi_law_transfer(m, &m->due[k], end - k);
            k = end;
        }
    }
    m->law->begin[m->law->n_lists] = m->law->n_ops;
}

MEMOI memo_status memoi_law_find_ops(memoi_maker* m, memo_error* error) {
    const memob_law_desc* d = m->desc;
    memob_law* law = m->law;
    const int64_t n_times = (int64_t)law->n_lists * d->n_visits;
    const int64_t n_refs = (int64_t)law->n_lists * d->n_uses;
    int64_t n_each; /* operations of a transfer, at most */
    for (int32_t i = 0; i < d->n_items; i++) m->has_windows |= d->items[i].file >= 0;
    n_each = 1 + m->has_windows;

    m->ops_most = n_times + n_each * m->n_due;
    m->parts_most = n_refs + n_each * m->n_due;
    law->ops = MEMOB_ARRAY_OF_ANY(&law->arrays, memob_op, m->ops_most);
    law->parts = MEMOB_ARRAY_OF_ANY(&law->arrays, memob_part, m->parts_most);
    for (int32_t u = 0; u < d->n_uses; u++)
        m->touches_most +=
            (int64_t)law->n_lists * memoi_use_slots(&d->items[d->uses[u].item], &d->uses[u]);
    for (int32_t k = 0; k < m->n_due; k++)
        m->touches_most +=
            2 * n_each * memob_max(m->due[k].n_slots, d->items[m->due[k].item].n_host);
    law->n_cells = d->n_slots[0] + d->n_slots[1] + d->n_slots[2];
    law->touches = MEMOB_ARRAY_OF_ANY(&law->arrays, int32_t, m->touches_most);
    law->begin = MEMOB_ARRAY(&law->arrays, int32_t, law->n_lists + 1);
    law->visit_ops = MEMOB_ARRAY(&law->arrays, int32_t, n_times);
    m->n_counted = MEMOB_ARRAY(&m->arrays, int32_t, (int64_t)d->n_visits + 1);

    if (m->arrays.failed || law->arrays.failed) return memob_no_memory(error, "the law of a step");
    if (m->has_windows && memoi_law_find_reads(m, error)) return MEMO_STATUS_OUT_OF_HOST_MEMORY;
    for (int32_t v = 0; v < d->n_visits; v++)
        m->n_counted[v + 1] = m->n_counted[v] + (!d->counts || d->counts[v]);
    memoi_law_walk(m);
    return MEMO_STATUS_OK;
}

/* Makes the operations of all lists.  Arrays of desc are not used afterwards.  Errors:
 * INVALID_ARGUMENT (an item is read before it is written), OUT_OF_HOST_MEMORY. */
MEMOI memo_status memob_law_make(const memob_law_desc* desc, memob_law* law, memo_error* error) {
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memoi_maker maker;
    memo_status status;
    memset(&maker, 0, sizeof maker);
    if (desc->work) {
        arrays = law->arrays;
        memoi_arrays_rewind(&arrays);
        memoi_arrays_rewind(desc->work);
        maker.arrays = *desc->work;
    }
    memset(law, 0, sizeof *law);
    law->arrays = arrays;
    maker.desc = desc;
    maker.law = law;
    law->n_lists = (int32_t)memob_max(desc->n_lists, 1);
    law->n_visits = desc->n_visits;
    MEMO_ASSERT(desc->n_visits > 0);

    status = memoi_law_find_stays(&maker, error);
    if (!status) status = memoi_law_find_transfers(&maker, error);
    if (!status) status = memoi_law_find_ops(&maker, error);
    if (desc->work)
        *desc->work = maker.arrays;
    else
        memob_arrays_free(&maker.arrays);
    if (status) memob_law_free(law);
    return status;
}

/* --- for laws that are made once --- */

/* The touches of a cell so far, as a node of a tree; its next touch leads to another node. */
typedef struct memoi_cell_path {
    int32_t ops[2], next[2]; /* by an operation that reads, or writes: the latest, and its node */
} memoi_cell_path;

/* The node behind a path's next touch.  Nodes are numbered as they are made. */
MEMOI int32_t memoi_cell_follow(memoi_cell_path* paths, int32_t path, int32_t op, int32_t writes,
                                int32_t* n_paths) {
    memoi_cell_path* p = &paths[path];
    if (p->ops[writes] != op) {
        p->ops[writes] = op;
        p->next[writes] = (*n_paths)++;
    }
    return p->next[writes];
}

/* Cells that the same operations touch in the same way become one, and those that one stream alone
 * uses are left out; waits and times stay the same.  Only operations [from, to) are enqueued, and
 * keep their touches.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_law_join_cells(memob_law* law, int32_t from, int32_t to,
                                       memo_error* error) {
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memoi_cell_path* paths = MEMOB_ARRAY(&arrays, memoi_cell_path, (int64_t)law->n_touches + 1);
    int32_t* path_of = MEMOB_ARRAY(&arrays, int32_t, law->n_cells);
    uint8_t* streams = MEMOB_ARRAY(&arrays, uint8_t, law->n_cells); /* bit s: stream s uses it */
    int32_t n_paths = 1, n_cells = 0, n_touches = 0;
    memo_status status = MEMO_STATUS_OK;
    const int32_t n_ops = arrays.failed ? 0 : law->n_ops;
    for (int32_t k = 0; k < n_ops; k++) {
        if (k < from || k >= to) law->ops[k].n_touches = 0;
        for (int32_t i = 0; i < law->ops[k].n_touches; i++) {
            const int32_t touch = law->touches[law->ops[k].first_touch + i];
            path_of[touch >> 1] =
                memoi_cell_follow(paths, path_of[touch >> 1], k + 1, touch & 1, &n_paths);
            streams[touch >> 1] |= (uint8_t)(1 << law->ops[k].stream);
        }
    }

    /* The first cell of each path stays, and path_of becomes its new number, from 1 on.  The others
     * have 0. */
    for (int32_t c = 0; c < law->n_cells && n_ops; c++) {
        memoi_cell_path* path = &paths[path_of[c]];
        const int is_shared = (streams[c] & (streams[c] - 1)) != 0;
        path_of[c] = is_shared && path->ops[0] >= 0 ? ++n_cells : 0;
        path->ops[0] = -1;
    }
    for (int32_t k = 0; k < n_ops; k++) {
        memob_op* op = &law->ops[k];
        const int32_t *touch = law->touches + op->first_touch, *end = touch + op->n_touches;
        op->first_touch = n_touches;
        for (; touch < end; touch++)
            if (path_of[*touch >> 1])
                law->touches[n_touches++] = 2 * (path_of[*touch >> 1] - 1) + (*touch & 1);
        op->n_touches = n_touches - op->first_touch;
    }
    law->n_touches = n_touches;
    law->n_cells = n_cells;
    if (arrays.failed) status = memob_no_memory(error, "the cells of a step");
    memob_arrays_free(&arrays);
    return status;
}
