#pragma once
#include "memo/law.h"
/* ---- >>law operations ---------------------------------------------------------------------------
 * Knows: in which order visits and transfers are enqueued, and which cells they touch.  Knows
 * nothing of why bytes travel: that is >>law, whose numbers 7 and 8 are asserted here.  Also:
 *
 * 1. Operations, parts and touches fit into arrays that are sized by uses and transfers.
 * 2. A parcel is one of the desc's, fits into a place, and has one while it moves.
 * 3. In a list each store of a parcel's item comes before a load, each load behind a store.
 * 4. What goes to the file, or comes from there, has a room.
 * 5. A parcel that is away has a next load, which no search has passed. */

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
                              int32_t n_host) {
    const memob_part part = {item, at, away, n_host};
    MEMO_ASSERT(m->law->n_parts < m->parts_most); /* 1 */
    m->law->parts[m->law->n_parts++] = part;
    op->n_parts++;
}

/* Slots that an operation reads or writes.  A parcel's items share some. */
MEMOI void memoi_law_touch(memoi_maker* m, memob_op* op, int32_t writes, int64_t at, int32_t n) {
    memob_law* law = m->law;
    int32_t touch = 2 * (int32_t)memoi_cell_at(m->desc, at) + writes;
    for (int32_t k = 0; k < n; k++, touch += 2) {
        MEMO_ASSERT(law->n_touches < m->touches_most && touch < 2 * law->n_cells); /* 1 */
        if (op->n_touches && law->touches[law->n_touches - 1] == touch) continue;
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
                            tier ? part->n_host : m->desc->items[part->item].n_slots);
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
            memoi_law_add_part(m, op, use->item, use->at, use->at, item->n_host);
        memoi_law_touch(m, op, may_write || begins[u], memoi_use_at(item, use),
                        use->is_on_host ? item->n_host : item->n_slots);
    }
}

/* --- parcels --- */

/* A parcel's items lie behind each other in every place. */
MEMOI int64_t memoi_place_at(const memoi_maker* m, const memoi_parcel* parcel) {
    MEMO_ASSERT(parcel->place >= 0); /* 2 */
    return parcel->place * m->desc->place_slots;
}

/* The first place that is worth most, if one may be given away; -1: none. */
MEMOI int32_t memoi_place_farthest(const memoi_maker* m) {
    int32_t best = -1, most = -1;
    for (int32_t k = 0; k < m->desc->n_places && most < INT32_MAX; k++) {
        if (m->places_due[k] <= most) continue;
        most = m->places_due[k];
        best = k;
    }
    return best;
}

/* A place is worth giving away by the next load of its parcel; never while that is not whole. */
MEMOI void memoi_parcel_tell(const memoi_maker* m, const memoi_parcel* p) {
    int32_t next = INT32_MAX - 1;
    if (p->place < 0) return;
    if (p->n_stores)
        next = -1;
    else if (p->load >= 0)
        next = m->due[p->load].slot;
    m->places_due[p->place] = next;
}

MEMOI void memoi_parcel_copy(memoi_maker* m, int32_t kind, memoi_parcel* p) {
    const int64_t on_host = memoi_place_at(m, p);
    const int32_t room = m->law->rooms[p - m->parcels];
    memob_op* op = memoi_law_add_op(m, kind);
    MEMO_ASSERT(room >= 0); /* 4 */
    memoi_law_add_part(m, op, p->item, on_host, room * m->desc->place_slots, p->n_host);
    memoi_law_end_op(m, op);
}

MEMOI void memoi_parcel_write(memoi_maker* m, memoi_parcel* p) {
    int32_t* room = &m->law->rooms[p - m->parcels];
    if (p->is_in_file) return;
    if (*room < 0) *room = m->law->n_spilled++;
    memoi_parcel_copy(m, MEMOB_OP_WRITE, p);
    p->is_in_file = m->due[p->first].is_spilled = 1;
}

/* Gives a parcel a free place, or that of the parcel with the farthest next load, which goes to the
 * file.  Parcels that are not whole on the host yet stay.  Returns 0: there is none. */
MEMOI int memoi_parcel_place(memoi_maker* m, int32_t parcel) {
    const int32_t best = memoi_place_farthest(m);
    int32_t old;
    if (best < 0) return 0;
    old = m->places[best];
    if (old >= 0) {
        memoi_parcel_write(m, &m->parcels[old]);
        m->parcels[old].place = -1;
        m->ahead = (int32_t)memob_min(m->ahead, m->parcels[old].load);
        m->n_away++;
    }
    m->places[best] = parcel;
    m->parcels[parcel].place = best;
    memoi_parcel_tell(m, &m->parcels[parcel]);
    return 1;
}

MEMOI int memoi_parcel_read(memoi_maker* m, int32_t parcel) {
    if (!memoi_parcel_place(m, parcel)) return 0;
    m->n_away--;
    memoi_parcel_copy(m, MEMOB_OP_READ, &m->parcels[parcel]);
    return 1;
}

/* A place is free: the parcel in the file with the nearest load comes back. */
MEMOI int memoi_parcel_leave(memoi_maker* m, memoi_parcel* p) {
    m->places[p->place] = -1;
    m->places_due[p->place] = INT32_MAX;
    p->place = -1;
    for (; m->n_away; m->ahead++) {
        int32_t parcel;
        MEMO_ASSERT(m->ahead < m->n_due); /* 5 */
        parcel = m->due[m->ahead].parcel;
        if (parcel >= 0 && m->parcels[parcel].place < 0 && m->parcels[parcel].load == m->ahead)
            return memoi_parcel_read(m, parcel);
    }
    return 1;
}

/* --- transfers --- */

MEMOI int64_t memoi_due_host(const memoi_maker* m, const memoi_due* due) {
    return due->host + (due->parcel < 0 ? 0 : memoi_place_at(m, &m->parcels[due->parcel]));
}

/* An operation of transfers, or of copies between the host's window of states and their homes in
 * the file. */
MEMOI void memoi_law_copy(memoi_maker* m, int32_t kind, const memoi_due* due, int32_t n) {
    const int is_file = kind == MEMOB_OP_WRITE || kind == MEMOB_OP_READ;
    memob_op* op = NULL;
    for (int32_t k = 0; k < n; k++) {
        const memob_item* item = &m->desc->items[due[k].item];
        int64_t host;
        MEMO_ASSERT(memoi_due_together(due, &due[k])); /* 7 */
        if (is_file && item->file < 0) continue;
        if (!op) op = memoi_law_add_op(m, kind);
        host = memoi_due_host(m, &due[k]);
        memoi_law_add_part(m, op, due[k].item, is_file ? host : due[k].at,
                           is_file ? item->file : host, item->n_host);
    }
    if (op) memoi_law_end_op(m, op);
}

/* Transfers that are enqueued together.  Returns 0: they find no place. */
MEMOI int memoi_law_transfer(memoi_maker* m, const memoi_due* due, int32_t n) {
    const int is_load = due->order;
    memoi_parcel* p = due->parcel < 0 ? NULL : &m->parcels[due->parcel];
    if (p && p->place < 0) {
        if (!is_load) { /* an episode begins */
            p->first = (int32_t)(due - m->due);
            p->n_stores = due->n_stores + 1;
            p->load = due->next;
        }
        if (!(is_load ? memoi_parcel_read(m, due->parcel) : memoi_parcel_place(m, due->parcel)))
            return 0;
    }
    if (is_load && m->has_windows) memoi_law_copy(m, MEMOB_OP_READ, due, n);
    memoi_law_copy(m, is_load ? MEMOB_OP_LOAD : MEMOB_OP_STORE, due, n);
    if (!is_load && m->has_windows) memoi_law_copy(m, MEMOB_OP_WRITE, due, n);
    if (!p) return 1;
    p->n_stores = due[n - 1].n_stores;
    p->load = due[n - 1].next;
    memoi_parcel_tell(m, p);
    if (!is_load) {
        p->is_in_file = 0;
        if (!p->n_stores && m->due[p->first].is_spilled) memoi_parcel_write(m, p);
        return 1;
    }
    return p->load >= 0 || p->n_stores || memoi_parcel_leave(m, p);
}

/* What lies behind each transfer of a parcel in its episode.  Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_law_find_episodes(memoi_maker* m, memo_error* error) {
    /* The items that are still to be loaded. */
    char* is_open = MEMOB_ARRAY(&m->arrays, char, m->desc->n_items);
    if (m->arrays.failed) return memob_no_memory(error, "the parcels of a step");
    for (int32_t k = m->n_due - 1; k >= 0; k--) {
        memoi_due* due = &m->due[k];
        memoi_parcel* p = due->parcel < 0 ? NULL : &m->parcels[due->parcel];
        if (!p) continue;
        due->next = p->load;
        due->n_stores = p->n_stores;
        MEMO_ASSERT(due->order || is_open[due->item]); /* 3 */
        p->n_open += due->order - is_open[due->item];
        is_open[due->item] = (char)due->order;
        if (due->order)
            p->load = k;
        else
            p->n_stores++;
        if (!p->n_open) { /* with this store an episode begins */
            p->load = -1;
            p->n_stores = 0;
        }
    }
    for (int32_t k = 0; k < m->desc->n_parcels; k++) MEMO_ASSERT(!m->parcels[k].n_open); /* 3 */
    return MEMO_STATUS_OK;
}

/* All operations in the order of enqueueing.  Errors: INVALID_ARGUMENT. */
MEMOI memo_status memoi_law_walk(memoi_maker* m, memo_error* error) {
    const int32_t n = m->desc->n_visits;
    int32_t k = 0;
    m->law->n_ops = m->law->n_parts = m->law->n_touches = 0;
    m->list = m->ahead = 0;
    m->visit = -1;

    for (int32_t slot = 0; slot <= m->law->n_lists * n; slot++, m->visit++) {
        if (m->visit == n) { /* the list before has ended */
            m->visit = 0;
            m->law->begin[++m->list] = m->law->n_ops;
        }
        for (int32_t p = 0; p < m->desc->n_parcels && m->visit == 0; p++)
            MEMO_ASSERT(m->parcels[p].place < 0); /* what lies in parcels does not live on */
        if (slot) m->law->visit_ops[slot - 1] = -1;
        if (m->desc->lists && m->desc->lists[m->list] & MEMOB_LIST_AHEAD) {
            while (k < m->n_due && m->due[k].slot == slot) k++;
            continue;
        }
        if (slot && memoi_law_has(m->desc, m->list, m->visit)) memoi_law_add_visit(m);
        while (k < m->n_due && m->due[k].slot == slot) {
            int32_t end = k + 1;
            while (end < m->n_due && memoi_due_together(&m->due[k], &m->due[end]) &&
                   !memoi_due_shares_window(m->desc, &m->due[k], end - k,
                                            &m->desc->items[m->due[end].item]))
                end++;
            if (!memoi_law_transfer(m, &m->due[k], end - k))
                return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                                      "memob_law_desc.n_places: %d are taken by parcels whose "
                                      "stores are not over; more places would work",
                                      (int)m->desc->n_places);
            k = end;
        }
    }
    m->law->begin[m->law->n_lists] = m->law->n_ops;
    return MEMO_STATUS_OK;
}

/* The slots that one side of a transfer, or of its parcel, takes at most. */
MEMOI int64_t memoi_item_slots(const memob_law_desc* desc, int32_t item) {
    const int64_t n = memob_max(desc->items[item].n_slots, desc->items[item].n_host);
    return desc->items[item].parcel < 0 ? n : memob_max(n, desc->place_slots);
}

MEMOI memo_status memoi_law_find_ops(memoi_maker* m, memo_error* error) {
    const memob_law_desc* d = m->desc;
    memob_law* law = m->law;
    const int64_t n_times = (int64_t)law->n_lists * d->n_visits;
    const int64_t n_refs = (int64_t)law->n_lists * d->n_uses;
    int64_t n_each; /* operations of a transfer, at most */
    memo_status status;
    for (int32_t i = 0; i < d->n_items; i++) m->has_windows |= d->items[i].file >= 0;
    n_each = d->n_parcels || m->has_windows ? 5 : 1;
    m->ops_most = n_times + n_each * m->n_due;
    m->parts_most = n_refs + n_each * m->n_due;
    law->ops = MEMOB_ARRAY_OF_ANY(&law->arrays, memob_op, m->ops_most);
    law->parts = MEMOB_ARRAY_OF_ANY(&law->arrays, memob_part, m->parts_most);
    for (int32_t u = 0; u < d->n_uses; u++)
        m->touches_most += law->n_lists * memoi_item_slots(d, d->uses[u].item);
    for (int32_t k = 0; k < m->n_due; k++)
        m->touches_most += 2 * n_each * memoi_item_slots(d, m->due[k].item);
    law->n_cells = d->n_slots[0] + d->n_slots[1] + d->n_slots[2];
    law->touches = MEMOB_ARRAY_OF_ANY(&law->arrays, int32_t, m->touches_most);
    law->begin = MEMOB_ARRAY(&law->arrays, int32_t, law->n_lists + 1);
    law->visit_ops = MEMOB_ARRAY(&law->arrays, int32_t, n_times);
    law->rooms = MEMOB_ARRAY(&law->arrays, int32_t, d->n_parcels);
    m->parcels = MEMOB_ARRAY(&m->arrays, memoi_parcel, d->n_parcels);
    m->places = MEMOB_ARRAY(&m->arrays, int32_t, d->n_places);
    m->places_due = MEMOB_ARRAY(&m->arrays, int32_t, d->n_places);
    if (m->arrays.failed || law->arrays.failed) return memob_no_memory(error, "the law of a step");

    for (int32_t k = 0; k < d->n_places; k++) m->places[k] = -1, m->places_due[k] = INT32_MAX;
    for (int32_t k = 0; k < d->n_parcels; k++)
        m->parcels[k].place = m->parcels[k].load = law->rooms[k] = -1;
    for (int32_t i = d->n_items - 1; i >= 0; i--) {
        memoi_parcel* p = d->items[i].parcel < 0 ? NULL : &m->parcels[d->items[i].parcel];
        if (!p || !d->items[i].n_slots) continue;
        MEMO_ASSERT(d->items[i].parcel < d->n_parcels); /* 2 */
        p->item = i;
        p->n_host = (int32_t)memob_max(p->n_host, d->items[i].host + d->items[i].n_host);
        MEMO_ASSERT(p->n_host <= d->place_slots); /* 2 */
    }

    /* The first walk tells which parcels go to the file, and in which episodes. */
    status = d->n_parcels ? memoi_law_find_episodes(m, error) : MEMO_STATUS_OK;
    if (!status) status = memoi_law_walk(m, error);
    if (!status && law->n_spilled) status = memoi_law_walk(m, error);
    return status;
}

/* Makes the operations of all lists.  Arrays of desc are not used afterwards.  Errors:
 * INVALID_ARGUMENT (an item is read before it is written; too few places), OUT_OF_HOST_MEMORY. */
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
    MEMO_ASSERT(!desc->is_any_order || !desc->in_lists[0]); /* 8 */

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

/* Cells that the same operations touch in the same way become one; waits and times stay the same.
 * Errors: OUT_OF_HOST_MEMORY. */
MEMOI memo_status memoi_law_join_cells(memob_law* law, memo_error* error) {
    memob_arrays arrays = MEMO_ZERO(memob_arrays);
    memoi_cell_path* paths = MEMOB_ARRAY(&arrays, memoi_cell_path, (int64_t)law->n_touches + 1);
    int32_t* path_of = MEMOB_ARRAY(&arrays, int32_t, law->n_cells);
    int32_t n_paths = 1, n_cells = 0, n_touches = 0;
    memo_status status = MEMO_STATUS_OK;
    const int32_t n_ops = arrays.failed ? 0 : law->n_ops;
    for (int32_t k = 1; k <= n_ops; k++)
        for (int32_t i = 0; i < law->ops[k - 1].n_touches; i++) {
            const int32_t touch = law->touches[law->ops[k - 1].first_touch + i];
            path_of[touch >> 1] =
                memoi_cell_follow(paths, path_of[touch >> 1], k, touch & 1, &n_paths);
        }

    /* The first cell of each path stays, and path_of becomes its new number, from 1 on.  The others
     * have 0. */
    for (int32_t c = 0; c < law->n_cells && n_ops; c++) {
        memoi_cell_path* path = &paths[path_of[c]];
        path_of[c] = path_of[c] && path->ops[0] >= 0 ? ++n_cells : 0;
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
