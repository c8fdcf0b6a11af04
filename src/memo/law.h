#pragma once
#include "memo/list.h"
#include "memo/waits.h"
/* ---- >>law --------------------------------------------------------------------------------------
 * Knows: which bytes travel when.  Knows nothing of devices, of times, and of what visits compute.
 *
 * An item is bytes, in slots, and the visits that use them.  A stay is consecutive uses of an item
 * at one address, until another item uses any of its bytes, or the item is used elsewhere.  A
 * transfer is a load or a store of a stay.  An operation is a visit, or transfers that are enqueued
 * together.
 * The law makes the operations of a sequence of lists:
 *
 * 1. A stay is loaded if its first use reads, and the item has a value: of the stay before, or of a
 *    list before.  It is not loaded if the first use writes all, or makes the bytes again.
 * 2. A stay is stored if it changed the item and the item's next stay is loaded, rewrites the item,
 *    or reads on the host.  A copy of another item's value is not stored if the store of that item
 *    is at the same place on the host.
 * 3. A store is enqueued behind the last visit that changes the stay.
 * 4. A load is enqueued behind the latest of three: the visit that last used its bytes, the visit
 *    behind which the item's store is, and the last use of the stay before.  First loads of the
 *    first list come before its visits; of another list, at the end of the list before.
 *    Transfers that would be behind one visit may be spread over the visits that follow, each at
 *    the latest in front of the visit that waits for it.
 * 5. Behind one visit come stores in the order in which a visit waits for them: it uses the item
 *    again, or the bytes for another item; ties by the bytes' last use, since that frees them, then
 *    by the item's next use.  Then come loads in the order of their first uses; of equal ones first
 *    those whose bytes no store must free.  Last ties go by the number of the item.
 * 6. Items without slots have no transfers.
 * 7. Transfers of one operation have the same visits before and after, so they share a wait and an
 *    event; and windows of their own in front of the file.
 *
 * Windows.  An item whose home is the file has a window on the host, which other items may share.
 * A write to the file follows a store, unless the window keeps the bytes until their last load.  A
 * read comes behind the transfer that frees the window.  An item that lives on is always written,
 * and read before each load, because another list may use the window in between. */

/* How a visit uses an item. */
typedef enum memob_use_how {
    MEMOB_USE_READ = 0,
    MEMOB_USE_CHANGE, /* reads and changes */
    MEMOB_USE_WRITE,  /* writes all bytes, reads none */
    MEMOB_USE_MAKE,   /* reads; as the first use of a stay, makes the bytes again (recomputes
                         them); not of items that live on */
    MEMOB_USE_REWRITE /* writes all bytes, but may be left out: then the value before stays.  Of
                          items that live on */
} memob_use_how;

/* The use needs the item's bytes. */
MEMOI int memoi_use_reads(int32_t how) { return how == MEMOB_USE_READ || how == MEMOB_USE_CHANGE; }

#define MEMOB_HOST_DEFAULT (-1)

typedef struct memob_use {
    int32_t visit, item;
    int32_t how;
    int32_t is_on_host; /* the visit uses the item's bytes on the host: an update there */
    int64_t at;         /* offset on the device */
    int64_t host;       /* CHANGE, WRITE: offset on the host where this version waits;
                           MEMOB_HOST_DEFAULT: the item's */
    int32_t n_slots;    /* on the device at this offset; 0: the item's */
} memob_use;

typedef struct memob_item {
    int32_t n_slots;  /* on the device; 0: it does not travel */
    int32_t n_host;   /* slots on the host, and in the file */
    int32_t lives_on; /* from list to list; its first value lies on the host, or in its file */
    int32_t copy_of;  /* -1, or the item whose value it has; see 2 */
    int64_t host;
    int64_t file; /* offset of its home in the file, of which host is a window; -1: none */
} memob_item;

/* What is enqueued. */
typedef enum memob_op_kind {
    MEMOB_OP_VISIT = 0, /* its parts: the items that the visit makes */
    MEMOB_OP_STORE,     /* device to host */
    MEMOB_OP_LOAD,      /* host to device */
    MEMOB_OP_WRITE,     /* host to file */
    MEMOB_OP_READ,      /* file to host */
    MEMOB_N_OP_KINDS
} memob_op_kind;

/* A copy of an item between device and host, or between its window and the file. */
typedef struct memob_part {
    int32_t item;
    int64_t at, away;        /* offsets in the nearer and the farther memory */
    int32_t n_slots, n_host; /* on the device, on the host or in the file */
    int32_t is_idle; /* 1: updates alone use the item from here to its next load; see >>step */
} memob_part;

typedef struct memob_op {
    int32_t kind, stream;
    int32_t visit; /* the visit, or the one behind which it is enqueued; -1: before the list */
    /* What is enqueued with a store (0) or a load (1), and how many visits that count come before
     * the one that waits for it.  Copies of two laws are enqueued in that order. */
    int32_t is_load, need;
    int32_t list;
    int32_t first_part, n_parts;
    int32_t first_touch, n_touches; /* see memob_cells_need */
} memob_op;

typedef struct memob_law_desc {
    int32_t n_visits;
    /* NULL, or (n_visits).  1: the visit runs on the stream of the file, not on compute. */
    const char* on_host;
    const memob_item* items;
    int32_t n_items;
    const memob_use* uses; /* in order of visits; each item once a visit; no two share a byte */
    int32_t n_uses;
    /* (n_lists): their numbers, 0 to 31; NULL: all are 0. */
    const int32_t* lists;
    /* (n_visits): the lists with the visit, bit k for number k; NULL: all lists have all visits */
    const uint32_t* in_lists;
    /* NULL, or (n_visits).  Transfers that are due behind the visit are spread over so many visits,
     * by bytes, each way for itself. */
    const int32_t* n_spread;
    const int64_t* item_bytes; /* (n_items) */
    const char* counts;        /* NULL, or (n_visits): 1: the visit counts for memob_op.need */
    int32_t n_lists;           /* 0: 1 */
    /* Addresses and sizes are slots, below these numbers on the device, on the host and in the
     * file.  A slot is bytes of the same items, and a cell of the law. */
    int32_t n_slots[MEMO_N_TIERS];
    /* NULL, or memory that many laws share, one after the other: then each is made in the law
     * before, or in one that is all zero.  The caller frees it. */
    memob_arrays* work;
} memob_law_desc;

typedef struct memob_law {
    int32_t n_lists, n_ops, n_cells, n_parts, n_touches;
    int32_t* begin; /* (n_lists + 1): operations of each list, in the order of enqueueing */
    memob_op* ops;
    memob_part* parts;
    int32_t* touches;
    int32_t* visit_ops; /* (n_lists, n_visits): the operation of a visit; -1: not in the list */
    int32_t* first_use; /* (n_visits + 1): of each visit, in desc.uses */
    int32_t n_visits;
    memob_arrays arrays;
} memob_law;

MEMOI void memob_law_free(memob_law* law) {
    memob_arrays_free(&law->arrays);
    memset(law, 0, sizeof *law);
}

/* --- stays --- */

#define MEMOI_ON_HOST ((int64_t)1 << 60)
#define MEMOI_IN_FILE ((int64_t)1 << 61)

/* Times are list * n_visits + visit; -1: none. */
typedef struct memoi_stay {
    int32_t item, how;            /* how: of the first use */
    int32_t first, last, changed; /* uses; changed: the latest change */
    int32_t before, after;  /* the latest use of its bytes before; the first after by others */
    int32_t previous, next; /* stays of the item */
    int32_t value;          /* the latest change of the item before */
    int32_t copied;         /* copy_of: the other item's stay then */
    int32_t is_on_host, is_loaded, is_stored;
    int64_t at, host;
    int32_t displaced; /* the stay of the use before; -1: none */
    int32_t n_slots;
} memoi_stay;

/* A transfer.  What has the same numbers, but for `item`, is one operation. */
typedef struct memoi_due {
    int32_t slot;  /* 0: before all lists; t + 1: behind the visit of time t */
    int32_t order; /* 0: store, 1: load */
    int32_t need;  /* first use of the stay that it is for */
    int32_t free_s
        [2]; /* store: last use of the bytes, next of the item; load: last use before, value */
    int32_t item;
    int64_t at, host;
    int32_t n_slots;
    int32_t is_behind; /* load: a store takes away what lies there */
} memoi_due;

/* A law in the making. */
typedef struct memoi_maker {
    const memob_law_desc* desc;
    memob_law* law;
    int32_t list, visit; /* of the operations that are added */
    memoi_stay* stays;
    int32_t n_stays;
    char* begins; /* (n_lists, n_uses): the use begins a stay on the device, anew */
    memoi_due* due;
    int32_t n_due;
    /* Loads of items with homes in the file: the first whose read comes behind each transfer, and
     * the next one behind the same; -1: none. */
    int32_t *first_read, *next_read;
    char* is_read;   /* stores of such items: what they bring to the window is read from the file */
    int32_t* latest; /* (n_items): the item's latest stay; -1 */
    int32_t *owners, *used; /* of a cell: the latest stay; the latest use */
    int64_t touches_most, parts_most, ops_most;
    int32_t* n_counted;  /* (n_visits + 1): visits before each that count */
    int32_t has_windows; /* items have homes in the file */
    memob_arrays arrays;
} memoi_maker;

/* Orders the copies due at the same slot. */
MEMOI int memoi_due_compare(const memoi_due* a, const memoi_due* b) {
    if (a->order != b->order) return memob_compare(a->order, b->order);
    if (a->need != b->need) return memob_compare(a->need, b->need);
    if (a->is_behind != b->is_behind) return memob_compare(a->is_behind, b->is_behind);
    for (int k = 0; k < 2 && !a->order; k++)
        if (a->free_s[k] != b->free_s[k]) return memob_compare(a->free_s[k], b->free_s[k]);
    return memob_compare(a->item, b->item);
}

MEMOI int memoi_due_together(const memoi_due* a, const memoi_due* b) {
    return a->slot == b->slot && a->order == b->order && a->need == b->need &&
           a->is_behind == b->is_behind && a->free_s[0] == b->free_s[0] &&
           a->free_s[1] == b->free_s[1];
}

/* Does the item's window in front of the file overlap that of one of n transfers? */
MEMOI int memoi_due_shares_window(const memob_law_desc* desc, const memoi_due* due, int32_t n,
                                  const memob_item* item) {
    for (int32_t k = 0; k < n && item->file >= 0; k++) {
        const memob_item* other = &desc->items[due[k].item];
        if (other->file >= 0 && other->host < item->host + item->n_host &&
            item->host < other->host + other->n_host)
            return 1;
    }
    return 0;
}

/* The number of a slot in all memories. */
MEMOI int64_t memoi_cell_at(const memob_law_desc* desc, int64_t at) {
    const int32_t* n_slots = desc->n_slots;
    if (at & MEMOI_IN_FILE) return n_slots[0] + n_slots[1] + (at ^ MEMOI_IN_FILE);
    return at & MEMOI_ON_HOST ? n_slots[0] + (at ^ MEMOI_ON_HOST) : at;
}

MEMOI int memoi_law_has(const memob_law_desc* desc, int32_t list, int32_t visit) {
    const int32_t number = desc->lists ? desc->lists[list] : 0;
    return !desc->in_lists || desc->in_lists[visit] >> number & 1;
}

/* Where a use finds its bytes. */
MEMOI int64_t memoi_use_at(const memob_item* item, const memob_use* use) {
    return use->is_on_host ? MEMOI_ON_HOST + item->host : use->at;
}

/* How many slots a use has where it finds its bytes. */
MEMOI int32_t memoi_use_slots(const memob_item* item, const memob_use* use) {
    if (use->is_on_host) return item->n_host;
    return use->n_slots ? use->n_slots : item->n_slots;
}

/* A use begins a stay at an address behind the item's stay k (-1: none).  before: the latest use of
 * its bytes, by stay `displaced`.  Returns the new stay. */
MEMOI int32_t memoi_law_begin_stay(memoi_maker* m, const memob_use* use, int32_t k, int64_t at,
                                   int32_t time, int32_t before, int32_t displaced) {
    const memob_item* item = &m->desc->items[use->item];
    const int32_t copied = item->copy_of < 0 ? -1 : m->latest[item->copy_of];
    memoi_stay fresh = {use->item, use->how, time, time, -1,        before,
                        -1,        k,        -1,   -1,   copied,    use->is_on_host,
                        0,         0,        at,   -1,   displaced, memoi_use_slots(item, use)};
    if (k >= 0) {
        memoi_stay* s = &m->stays[k];
        fresh.value = s->changed >= 0 ? s->changed : s->value;
        fresh.host = s->host;
        s->next = m->n_stays;
    }
    m->stays[m->n_stays] = fresh;
    m->latest[use->item] = m->n_stays;
    return m->n_stays++;
}

/* A use begins a stay, or the item's latest stay goes on.  list_time: of the list's first visit. */
MEMOI void memoi_law_use(memoi_maker* m, int32_t use_number, int32_t time, int32_t list_time,
                         char* begins) {
    const memob_use* use = &m->desc->uses[use_number];
    const memob_item* item = &m->desc->items[use->item];
    const int64_t at = memoi_use_at(item, use);
    const int64_t begin = memoi_cell_at(m->desc, at);
    const int64_t end = begin + memoi_use_slots(item, use);
    int32_t k = m->latest[use->item], before = -1, displaced = -1;
    int goes_on;

    /* What does not live on ends with its list. */
    if (k >= 0 && !item->lives_on && m->stays[k].first < list_time) k = -1;
    goes_on = k >= 0 && m->stays[k].at == at;
    for (int64_t c = begin; c < end; c++) {
        MEMO_ASSERT(m->used[c] < time); /* no two items of a visit share a byte */
        goes_on &= m->owners[c] == k;
        if (m->used[c] <= before) continue;
        before = m->used[c];
        displaced = m->owners[c];
    }
    if (!goes_on) {
        k = memoi_law_begin_stay(m, use, k, at, time, before, displaced);
        begins[use_number] = !use->is_on_host;
    }

    for (int64_t c = begin; c < end; c++) {
        const int32_t owner = m->owners[c];
        if (owner >= 0 && owner != k && m->stays[owner].after < 0) m->stays[owner].after = time;
        m->owners[c] = k;
        m->used[c] = time;
    }
    m->stays[k].last = time;
    if (use->how == MEMOB_USE_READ || (use->how == MEMOB_USE_MAKE && goes_on)) return;
    m->stays[k].changed = time;
    if (use->how == MEMOB_USE_WRITE && item->copy_of >= 0) /* it has another value from here on */
        m->stays[k].copied = m->latest[item->copy_of];
    if (use->how != MEMOB_USE_MAKE) m->stays[k].host = use->host;
}

/* All stays, in order of their first uses. */
MEMOI memo_status memoi_law_find_stays(memoi_maker* m, memo_error* error) {
    const memob_law_desc* d = m->desc;
    const int64_t n_uses = d->n_uses, n_cells = (int64_t)d->n_slots[0] + d->n_slots[1];
    int32_t* first_use = MEMOB_ARRAY(&m->law->arrays, int32_t, (int64_t)d->n_visits + 1);
    m->latest = MEMOB_ARRAY(&m->arrays, int32_t, d->n_items);
    m->stays = MEMOB_ARRAY_OF_ANY(&m->arrays, memoi_stay, m->law->n_lists * n_uses);
    m->begins = MEMOB_ARRAY(&m->arrays, char, m->law->n_lists* n_uses);
    m->owners = MEMOB_ARRAY(&m->arrays, int32_t, n_cells);
    m->used = MEMOB_ARRAY(&m->arrays, int32_t, n_cells);
    m->law->first_use = first_use;
    if (m->arrays.failed || !first_use) return memob_no_memory(error, "the stays of a step");

    /* Slots of the device, and of what is updated on the host. */
    for (int32_t u = 0; u < d->n_uses; u++) {
        const memob_use* use = &d->uses[u];
        const memob_item* item MEMO_UNUSED = &d->items[use->item];
        MEMO_ASSERT(use->visit >= 0 && use->visit < d->n_visits &&
                    (!u || use->visit >= d->uses[u - 1].visit));
        MEMO_ASSERT(!use->is_on_host || (item->lives_on && item->file < 0));
        MEMO_ASSERT(!item->lives_on || use->how != MEMOB_USE_MAKE);
        MEMO_ASSERT(use->at >= 0 &&
                    (use->is_on_host || use->at + memoi_use_slots(item, use) <= d->n_slots[0]));
        MEMO_ASSERT(item->host >= 0 && item->host + item->n_host <= d->n_slots[1]);
        first_use[use->visit + 1] = u + 1;
    }
    for (int32_t v = 0; v < d->n_visits; v++)
        if (first_use[v + 1] < first_use[v]) first_use[v + 1] = first_use[v];
    for (int32_t i = 0; i < d->n_items; i++) m->latest[i] = -1;
    for (int64_t c = 0; c < n_cells; c++) m->owners[c] = m->used[c] = -1;

    for (int32_t list = 0; list < m->law->n_lists; list++) {
        const int32_t begin = list * d->n_visits;
        char* begins = m->begins + list * n_uses;
        for (int32_t v = 0; v < d->n_visits; v++)
            for (int32_t u = first_use[v], end = first_use[v + 1];
                 u < end && memoi_law_has(d, list, v); u++)
                if (d->items[d->uses[u].item].n_slots)
                    memoi_law_use(m, u, begin + v, begin, begins);
    }
    return MEMO_STATUS_OK;
}

/* Where the version that a stay leaves waits on the host. */
MEMOI int64_t memoi_stay_host(const memoi_maker* m, const memoi_stay* stay) {
    return stay->host >= 0 ? stay->host : m->desc->items[stay->item].host;
}

/* Is the stay a copy of a value that another stay stores at the same place? */
MEMOI int memoi_stay_is_served(const memoi_maker* m, const memoi_stay* stay) {
    const memoi_stay* other = stay->copied < 0 ? NULL : &m->stays[stay->copied];
    if (other && other->first == stay->changed) /* the value is that of the stay before */
        other = other->previous < 0 ? NULL : &m->stays[other->previous];
    return other && other->last < stay->changed && other->is_stored &&
           other->first / m->desc->n_visits == stay->changed / m->desc->n_visits &&
           memoi_stay_host(m, other) == memoi_stay_host(m, stay);
}

MEMOI void memoi_law_add_due(memoi_maker* m, int32_t order, const memoi_stay* stay, int32_t time,
                             int32_t need, int32_t free_0, int32_t free_1) {
    const memob_item* item MEMO_UNUSED = &m->desc->items[stay->item];
    const int32_t n_visits MEMO_UNUSED = m->desc->n_visits;
    const memoi_stay* version = order && stay->previous >= 0 ? &m->stays[stay->previous] : stay;
    const memoi_due due = {time + 1,
                           order,
                           need,
                           {free_0, free_1},
                           stay->item,
                           stay->at,
                           memoi_stay_host(m, version),
                           stay->n_slots,
                           order && stay->displaced >= 0 && m->stays[stay->displaced].is_stored};
    MEMO_ASSERT(time < m->law->n_lists * n_visits);
    MEMO_ASSERT(!order || memoi_use_reads(stay->how));                        /* 1 */
    MEMO_ASSERT(order || stay->changed >= 0);                                 /* 2 */
    MEMO_ASSERT(order || (time >= stay->first && time <= stay->last));        /* 3 */
    MEMO_ASSERT(!order || time < stay->first);                                /* 4 */
    MEMO_ASSERT(item->n_slots > 0);                                           /* 6 */
    MEMO_ASSERT(item->file < 0 || memoi_stay_host(m, version) == item->host); /* its window */
    MEMO_ASSERT(m->n_due < 2 * m->n_stays); /* a store and a load of each */
    m->due[m->n_due++] = due;
}

/* Sorts by slot, then by memoi_due_compare: few are of one slot. */
MEMOI memo_status memoi_law_sort_dues(memoi_maker* m, memo_error* error) {
    const int32_t n_slots = m->law->n_lists * m->desc->n_visits + 1;
    const memoi_due* dues = m->due;
    memoi_due* sorted = MEMOB_ARRAY_OF_ANY(&m->arrays, memoi_due, m->n_due);
    int32_t* first = MEMOB_ARRAY(&m->arrays, int32_t, (int64_t)n_slots + 1);
    if (m->arrays.failed) return memob_no_memory(error, "the transfers of a step");
    for (int32_t k = 0; k < m->n_due; k++) first[dues[k].slot + 1]++;
    for (int32_t slot = 0; slot < n_slots; slot++) first[slot + 1] += first[slot];
    for (int32_t k = 0; k < m->n_due; k++) sorted[first[dues[k].slot]++] = dues[k];

    /* Now first is the end of each slot. */
    for (int32_t slot = 0, begin = 0; slot < n_slots; begin = first[slot++]) {
        for (int32_t k = begin + 1; k < first[slot]; k++) {
            const memoi_due due = sorted[k];
            int32_t to = k;
            while (to > begin && memoi_due_compare(&due, &sorted[to - 1]) < 0) {
                sorted[to] = sorted[to - 1];
                to--;
            }
            sorted[to] = due;
        }
        for (int32_t k = begin + 1; k < first[slot]; k++)
            MEMO_ASSERT(memoi_due_compare(&sorted[k - 1], &sorted[k]) <= 0); /* 5 */
    }
    m->due = sorted;
    return MEMO_STATUS_OK;
}

/* A store comes at its slot, and a load behind the stores that free its bytes, and that of its
 * value, `later` visits later, if it can.  stored: of each slot of the device and the host, the
 * slot of the latest store. */
MEMOI void memoi_law_follow_stores(const memob_law_desc* d, memoi_due* due, int later,
                                   int32_t* stored) {
    const memob_item* item = &d->items[due->item];
    const int64_t begin[] = {due->at, d->n_slots[0] + due->host};
    const int64_t end[] = {begin[0] + due->n_slots, begin[1] + item->n_host};
    for (int k = 0; k < 2; k++)
        for (int64_t c = begin[k]; c < end[k]; c++) {
            if (due->order)
                due->slot = (int32_t)memob_max(due->slot, memob_min(stored[c] + later, due->need));
            else
                stored[c] = (int32_t)memob_max(due->slot, stored[c]);
        }
}

/* Spreads the transfers of each slot, stores and loads in their order.  Stores through windows are
 * not spread. */
MEMOI memo_status memoi_law_spread(memoi_maker* m, memo_error* error) {
    const memob_law_desc* d = m->desc;
    int32_t* stored;
    if (!d->n_spread) return MEMO_STATUS_OK;
    stored = MEMOB_ARRAY(&m->arrays, int32_t, (int64_t)d->n_slots[0] + d->n_slots[1]);
    if (m->arrays.failed) return memob_no_memory(error, "the transfers of a step");
    for (int32_t first = 0, end; first < m->n_due; first = end) {
        const int32_t slot = m->due[first].slot;
        const int32_t n_spread = slot ? d->n_spread[(slot - 1) % d->n_visits] : 0;
        double all_bytes[2] = {1e-9, 1e-9}, n_bytes[2] = {0, 0};
        for (end = first; end < m->n_due && m->due[end].slot == slot; end++)
            all_bytes[m->due[end].order] += (double)d->item_bytes[m->due[end].item];
        for (int32_t k = first; k < end; k++) {
            memoi_due* due = &m->due[k];
            const int32_t order = due->order;
            if (order || d->items[due->item].file < 0)
                due->slot += (int32_t)(n_spread * (n_bytes[order] / all_bytes[order]));
            due->slot = (int32_t)memob_min(due->slot, due->need);
            n_bytes[order] += (double)d->item_bytes[due->item];
            memoi_law_follow_stores(d, due, n_spread > 0, stored);
            MEMO_ASSERT(due->slot <= due->need); /* 3, 4 */
        }
    }
    return memoi_law_sort_dues(m, error);
}

/* Which stays are loaded and stored, and behind which visit.  Errors: INVALID_ARGUMENT. */
MEMOI memo_status memoi_law_find_transfers(memoi_maker* m, memo_error* error) {
    m->due = MEMOB_ARRAY_OF_ANY(&m->arrays, memoi_due, 2 * (int64_t)m->n_stays);
    if (m->arrays.failed) return memob_no_memory(error, "the transfers of a step");
    for (int32_t k = 0; k < m->n_stays; k++) {
        memoi_stay* s = &m->stays[k];
        const int reads = memoi_use_reads(s->how);
        if (reads && s->previous < 0 && !m->desc->items[s->item].lives_on)
            return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                                  "memob_law_desc.uses: visit %d reads item %d, which no visit has "
                                  "written; let its first use be WRITE",
                                  (int)(s->first % m->desc->n_visits), (int)s->item);
        s->is_loaded = reads && !s->is_on_host;
        if ((reads || s->how == MEMOB_USE_REWRITE) && s->previous >= 0 &&
            !m->stays[s->previous].is_on_host)
            m->stays[s->previous].is_stored = m->stays[s->previous].changed >= 0;
    }

    /* Stays that are displaced come before, so it is known whether they are stored. */
    for (int32_t k = 0; k < m->n_stays; k++) {
        memoi_stay* s = &m->stays[k];
        const int32_t next = s->next < 0 ? INT32_MAX : m->stays[s->next].first;
        const memoi_stay* previous = s->previous < 0 ? NULL : &m->stays[s->previous];
        int32_t behind = (int32_t)memob_max(s->before, s->value); /* a load */
        if (previous && m->desc->items[s->item].lives_on)
            behind = (int32_t)memob_max(behind, previous->last);
        if (s->is_stored && memoi_stay_is_served(m, s)) s->is_stored = 0;
        if (s->is_stored)
            memoi_law_add_due(m, 0, s, s->changed,
                              (int32_t)memob_min(next, s->after < 0 ? INT32_MAX : s->after),
                              s->last, next);
        if (s->is_loaded) memoi_law_add_due(m, 1, s, behind, s->first, s->before, s->value);
    }
    if (memoi_law_sort_dues(m, error)) return MEMO_STATUS_OUT_OF_HOST_MEMORY;
    return memoi_law_spread(m, error);
}
