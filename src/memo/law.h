#pragma once
#include "memo/list.h"
#include "memo/waits.h"
/* ---- >>law --------------------------------------------------------------------------------------
 * Knows: which bytes travel when.  Knows nothing of devices, of times, and of what visits compute.
 *
 * An item is bytes and the visits that use them.  A stay is consecutive uses of an item at one
 * address, until another item uses any of its bytes, or the item is used elsewhere.  A transfer is
 * a load or a store of a stay.  An operation is a visit, or transfers that are enqueued together.
 * The law makes the operations of a sequence of lists:
 *
 * 1. A stay is loaded if its first use reads, and the item has a value: of the stay before, or of a
 *    list before.  It is not loaded if the first use writes all, or makes the bytes again.
 * 2. A stay is stored if it changed the item and the item's next stay is loaded, or reads on the
 *    host.  A copy of another item's value is not stored if the store of that item is at the same
 *    place on the host.
 * 3. A store is enqueued behind the last visit that changes the stay.
 * 4. A load is enqueued behind the later of the visit that last used its bytes and the visit behind
 *    which the item's store is.  First loads of the first list come before its visits; of another
 *    list, at the end of the list before.
 * 5. Behind one visit come stores in the order in which a visit waits for them: it uses the item
 *    again, or the bytes for another item; ties by the item's next use.  Then come loads in the
 *    order of their first uses.  Last ties go by the number of the item.
 * 6. Items of 0 bytes and kept items have no transfers.
 * 7. Transfers of one operation have the same visits before and after, so they share a wait and an
 *    event; and windows of their own in front of the file.
 *
 * 8. Lists of `in_lists` follow each other in an order that the law does not know, so each knows
 *    the list before and the list behind alone, and all its items live on.  A stay that goes on
 *    into the next list is not loaded again there; it is stored in each list that changes it,
 *    unless the next list changes it further, a visit spends it, or nobody takes its bytes.  A load
 *    comes at the earliest with the list before that of its first use.
 *
 * Parcels.  Items without a host address of their own lie in a parcel; a parcel takes a place on
 * the host when its first item is stored, and frees the place with its last load.  If no place is
 * free, the parcel with the farthest next load goes to the file, right behind its last store; it
 * comes back as soon as a place is free, nearest load first. */

/* How a visit uses an item. */
typedef enum memob_use_how {
    MEMOB_USE_READ = 0,
    MEMOB_USE_CHANGE, /* reads and changes */
    MEMOB_USE_WRITE,  /* writes all bytes, reads none */
    MEMOB_USE_MAKE,   /* reads; as the first use of a stay, makes the bytes again (recomputes
                         them); not of items that live on */
    MEMOB_USE_SPEND   /* as CHANGE, and nobody reads the item before it is written; in_lists */
} memob_use_how;

#define MEMOB_HOST_DEFAULT (-1)

typedef struct memob_use {
    int32_t visit, item;
    int32_t how;
    int32_t is_on_host; /* the visit uses the item's bytes on the host: an update there */
    int64_t at;         /* offset on the device */
    int64_t host;       /* CHANGE, WRITE: offset on the host where this version waits;
                           MEMOB_HOST_DEFAULT: the item's */
} memob_use;

typedef struct memob_item {
    int64_t n_bytes;
    int32_t lives_on; /* from list to list; its first value lies on the host, or in its file; 2: no
                         other item uses its bytes on the device, so it stays there; in_lists */
    int32_t is_kept;  /* never leaves the device, shares its bytes with no other item */
    int32_t copy_of;  /* -1, or the item whose value it has; see 2 */
    int32_t parcel;   /* -1: host is an offset of its own; otherwise an offset in the parcel */
    int64_t host;
    int64_t file; /* offset of its home in the file, of which host is a window; -1: none */
} memob_item;

/* What is enqueued. */
typedef enum memob_op_kind {
    MEMOB_OP_VISIT = 0, /* its parts: the items that the visit makes */
    MEMOB_OP_STORE,     /* device to host */
    MEMOB_OP_LOAD,      /* host to device */
    MEMOB_OP_WRITE,     /* host to file */
    MEMOB_OP_READ       /* file to host */
} memob_op_kind;

/* A copy of an item, or of a parcel by the file.  Offsets in both memories. */
typedef struct memob_part {
    int32_t item; /* the parcel's first item */
    int64_t from, to, n_bytes;
} memob_part;

typedef struct memob_op {
    int32_t kind, stream;
    int32_t visit; /* the visit, or the one behind which it is enqueued; -1: before the list */
    int32_t list;
    int32_t is_awaited; /* an operation of another stream waits for it: record an event */
    int32_t may_be_empty;
    int32_t first_part, n_parts;
    int32_t first_touch, n_touches; /* see memoi_waits_add */
    int64_t n_bytes;                /* of the parts that travel */
} memob_op;

typedef struct memob_law_desc {
    const memob_visit* visits;
    int32_t n_visits;
    const memob_item* items;
    int32_t n_items;
    const memob_use* uses; /* in order of visits; each item once a visit; no two share a byte */
    int32_t n_uses;
    const int32_t* lists; /* (n_lists): memob_list_kind; NULL: EVERY */
    /* NULL, or (n_visits): the lists with the visit, bit k for number k in `lists`; see 8.  Visit 0
     * is in none. */
    const uint32_t* in_lists;
    int32_t n_lists;             /* 0: 1; the last ones may only say what comes, see n_tables */
    int32_t n_tables;            /* 0: n_lists; operations are made of so many lists */
    int32_t has_no_events;       /* 1: all operations are marked as awaited: quicker, for clocks */
    int32_t updates_on_host;     /* UPDATE visits run on the stream of the file, not on compute */
    int32_t n_parcels, n_places; /* 0 places: as many as parcels */
    /* Not 0: addresses are numbers of slots, below these on the device, on the host and in the
     * file.  Items are whole slots, which are the cells: quicker. */
    int32_t n_slots[3];
    int64_t places_at, place_bytes, parcels_at; /* first place on the host; first parcel in file */
    /* NULL, or memory that many laws share, one after the other: then each is made in the law
     * before, or in one that is all zero.  The caller frees it. */
    memob_arrays* work;
    /* NULL, or for each item whether a sink may leave out operations of such items alone, because
     * there are no bytes this time: what is awaited then is marked, too. */
    const char* may_be_empty;
} memob_law_desc;

typedef struct memob_law {
    int32_t n_lists, n_ops, n_cells, n_parts, n_touches;
    int32_t* begin; /* (n_lists + 1): operations of each list, in the order of enqueueing */
    memob_op* ops;
    memob_part* parts;
    int32_t* touches;
    int32_t* visit_ops; /* (n_lists, n_visits): the operation of a visit; -1: not in the list */
    int32_t n_visits;
    int32_t has_empty; /* some operations may be empty */
    int32_t n_spilled; /* parcels that go to the file in a list, of place_bytes each */
    int64_t n_kept[MEMOB_N_STREAMS];   /* for memob_waits_make */
    int32_t n_events[MEMOB_N_STREAMS]; /* for memob_records: waits then are exact */
    memob_arrays arrays;
} memob_law;

/* For sinks: adds operation k, as it is enqueued.  Returns its number in its stream, and the
 * operations to wait for; see memoi_waits_add. */
MEMOI int64_t memob_law_add(const memob_law* law, memob_waits* waits, int32_t k,
                            memob_numbers* wait) {
    const memob_op* op = &law->ops[k];
    return memoi_waits_add(waits, op->stream, law->touches + op->first_touch, op->n_touches, wait);
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
    int32_t is_there, is_spent; /* it goes on from the list before; its last use spends it */
    int64_t at, host;
} memoi_stay;

/* A transfer.  What has the same numbers, but for `item`, is one operation. */
typedef struct memoi_due {
    int32_t slot;  /* 0: before all lists; t + 1: behind the visit of time t */
    int32_t order; /* 0: store, 1: load */
    int32_t need;  /* first use of the stay that it is for */
    int32_t free_s
        [2]; /* store: last use of the bytes, next of the item; load: last use before, value */
    int32_t parcel;
    int32_t item;
    int64_t at, host; /* offsets; of a parcel's item: host is in the parcel */
} memoi_due;

typedef struct memoi_bytes {
    int64_t begin, end;
} memoi_bytes;

/* A parcel in a list. */
typedef struct memoi_parcel {
    int32_t place;           /* -1: none */
    int32_t n_stores;        /* left in this list */
    int32_t load, loads_end; /* its next load, in loads */
    int32_t is_in_file;      /* its bytes are */
    int32_t room;            /* in the file; -1: a first walk has not spilled it */
    int32_t item;            /* its first */
    int64_t n_bytes;
} memoi_parcel;

/* A law in the making. */
typedef struct memoi_maker {
    const memob_law_desc* desc;
    memob_law* law;
    int32_t n_lists;     /* all lists */
    int32_t list, visit; /* of the operations that are added */
    int64_t* borders;    /* sorted; cell k is [borders[k], borders[k + 1]) */
    int64_t n_borders;
    memoi_stay* stays;
    int32_t n_stays;
    char* makes; /* (n_lists, n_uses): the use makes the item */
    memoi_due* due;
    int32_t n_due;
    int32_t ahead; /* no transfer before it loads a parcel from the file, but those that passed */
    int32_t* first_use;     /* (n_visits + 1) */
    int32_t* latest;        /* (n_items): the item's latest stay; -1 */
    int32_t *owners, *used; /* of a cell: the latest stay; the latest use */
    memoi_bytes* ranges;    /* of each operation: reads, then writes */
    int32_t* first_range;   /* (n_ops, 2), + 1 */
    int64_t n_ranges, ranges_most, parts_most, ops_most;
    int32_t has_windows; /* items have homes in the file */
    memoi_parcel* parcels;
    int32_t *places,
        *places_due;     /* the parcel of each, -1: none; see memoi_place_set, free: most */
    int32_t* blocks_due; /* the most of each block of places */
    int32_t* loads;      /* of each parcel: indices of due */
    memob_arrays arrays;
} memoi_maker;

MEMOI int memoi_compare_int64(const void* left, const void* right) {
    int64_t a, b;
    memcpy(&a, left, sizeof a);
    memcpy(&b, right, sizeof b);
    return memob_compare(a, b);
}

/* Orders the copies due at the same slot. */
MEMOI int memoi_due_compare(const void* left, const void* right) {
    const memoi_due *a = (const memoi_due*)left, *b = (const memoi_due*)right;
    if (a->order != b->order) return memob_compare(a->order, b->order);
    if (a->need != b->need) return memob_compare(a->need, b->need);
    if (!a->order && a->free_s[1] != b->free_s[1]) return memob_compare(a->free_s[1], b->free_s[1]);
    return memob_compare(a->item, b->item);
}

MEMOI int memoi_due_together(const memoi_due* a, const memoi_due* b) {
    return a->slot == b->slot && a->order == b->order && a->need == b->need &&
           a->free_s[0] == b->free_s[0] && a->free_s[1] == b->free_s[1] && a->parcel == b->parcel;
}

/* Does the item's window in front of the file overlap that of one of n transfers? */
MEMOI int memoi_due_shares_window(const memob_law_desc* desc, const memoi_due* due, int32_t n,
                                  const memob_item* item) {
    for (int32_t k = 0; k < n && item->file >= 0; k++) {
        const memob_item* other = &desc->items[due[k].item];
        if (other->file >= 0 && other->host < item->host + item->n_bytes &&
            item->host < other->host + other->n_bytes)
            return 1;
    }
    return 0;
}

/* Sorts, and drops equal ones.  Returns how many are left.  Most are equal to a recent one, so a
 * small table drops these first. */
MEMOI int64_t memoi_sort_borders(int64_t* borders, int64_t n) {
    int64_t recent[4096], n_left = 0;
    int bits = 4;
    while (bits < 12 && ((int64_t)1 << bits) < n) bits++;
    for (int64_t k = 0; k < (int64_t)1 << bits; k++) recent[k] = INT64_MIN;
    for (int64_t k = 0; k < n; k++) {
        int64_t* seen = &recent[((uint64_t)borders[k] * 0x9e3779b97f4a7c15u) >> (64 - bits)];
        if (*seen == borders[k]) continue;
        *seen = borders[k];
        borders[n_left++] = borders[k];
    }
    n = n_left;
    n_left = 0;
    qsort(borders, (size_t)n, sizeof *borders, memoi_compare_int64);
    for (int64_t k = 0; k < n; k++)
        if (!n_left || borders[n_left - 1] != borders[k]) borders[n_left++] = borders[k];
    return n_left;
}

MEMOI int64_t memoi_cell_at(const int64_t* borders, int64_t n, int64_t at) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (borders[middle] < at)
            low = middle + 1;
        else
            high = middle;
    }
    MEMO_ASSERT(n && borders[low] == at);
    return low;
}

/* The piece that begins at an address: a slot, or bytes between two borders. */
MEMOI int64_t memoi_piece_at(const memoi_maker* m, int64_t at) {
    const int32_t* n_slots = m->desc->n_slots;
    if (!n_slots[0]) return memoi_cell_at(m->borders, m->n_borders, at);
    if (at & MEMOI_IN_FILE) return n_slots[0] + n_slots[1] + (at ^ MEMOI_IN_FILE);
    return at & MEMOI_ON_HOST ? n_slots[0] + (at ^ MEMOI_ON_HOST) : at;
}

MEMOI int memoi_item_moves(const memob_item* item) { return item->n_bytes > 0 && !item->is_kept; }

/* Is the visit in the list? */
MEMOI int memoi_law_has(const memob_law_desc* desc, int32_t list, int32_t visit) {
    const int32_t kind = desc->lists ? desc->lists[list] : MEMOB_LIST_EVERY;
    if (desc->in_lists) return (int)(desc->in_lists[visit] >> kind & 1);
    return memoi_list_has(&desc->visits[visit], kind);
}

/* Where a use finds its bytes. */
MEMOI int64_t memoi_use_at(const memob_item* item, const memob_use* use) {
    return use->is_on_host ? MEMOI_ON_HOST + item->host : use->at;
}

MEMOI int memoi_use_changes(const memob_use* use) {
    return use->how == MEMOB_USE_CHANGE || use->how == MEMOB_USE_WRITE ||
           use->how == MEMOB_USE_SPEND;
}

/* A use begins a stay, or the item's latest stay goes on.  list_time: of the list's first visit. */
MEMOI void memoi_law_use(memoi_maker* m, int32_t use_number, int32_t time, int32_t list_time,
                         char* makes) {
    const memob_use* use = &m->desc->uses[use_number];
    const memob_item* item = &m->desc->items[use->item];
    const int64_t at = memoi_use_at(item, use);
    const int64_t begin = memoi_piece_at(m, at);
    const int64_t end =
        m->desc->n_slots[0] ? begin + item->n_bytes : memoi_piece_at(m, at + item->n_bytes);
    int32_t k = m->latest[use->item], before = -1;
    int goes_on, is_of_list;

    /* What does not live on ends with its list. */
    if (k >= 0 && !item->lives_on && m->stays[k].first < list_time) k = -1;
    is_of_list = !m->desc->in_lists || k < 0 || m->stays[k].first >= list_time;
    goes_on = k >= 0 && m->stays[k].at == at;
    if (!is_of_list) goes_on &= m->stays[k].first >= list_time - m->desc->n_visits;
    for (int64_t c = begin; c < end; c++) {
        MEMO_ASSERT(m->used[c] < time); /* no two items of a visit share a byte */
        goes_on &= m->owners[c] == k;
        before = (int32_t)memob_max(before, m->used[c]);
    }
    if (!goes_on || !is_of_list) {
        const int32_t copied = item->copy_of < 0 ? -1 : m->latest[item->copy_of];
        const memoi_stay* s = k < 0 ? NULL : &m->stays[k];
        const int32_t latest = s && s->changed >= 0 ? s->changed : -1;
        const int32_t value = s && latest < 0 ? s->value : latest;
        const memoi_stay fresh = {use->item, use->how, time,    time,  -1,     before,
                                  -1,        k,        -1,      value, copied, use->is_on_host,
                                  0,         0,        goes_on, 0,     at,     s ? s->host : -1};
        if (k >= 0) m->stays[k].next = m->n_stays;
        k = m->n_stays++;
        m->stays[k] = fresh;
        m->latest[use->item] = k;
        makes[use_number] = use->how == MEMOB_USE_MAKE;
    }

    for (int64_t c = begin; c < end; c++) {
        const int32_t owner = m->owners[c];
        if (owner >= 0 && owner != k && m->stays[owner].after < 0) m->stays[owner].after = time;
        m->owners[c] = k;
        m->used[c] = time;
    }
    m->stays[k].last = time;
    m->stays[k].is_spent = use->how == MEMOB_USE_SPEND;
    if (memoi_use_changes(use)) m->stays[k].host = use->host;
    if (memoi_use_changes(use) || (use->how == MEMOB_USE_MAKE && !goes_on))
        m->stays[k].changed = time;
}

/* All stays, in order of their first uses. */
MEMOI memo_status memoi_law_find_stays(memoi_maker* m, memo_error* error) {
    const memob_law_desc* d = m->desc;
    const int64_t n_uses = d->n_uses, has_slots = d->n_slots[0];
    const int64_t n_cells = has_slots ? (int64_t)d->n_slots[0] + d->n_slots[1] : 2 * n_uses;
    int64_t n = 0;
    m->borders = MEMOB_ARRAY(&m->arrays, int64_t, has_slots ? 0 : 2 * n_uses);
    m->first_use = MEMOB_ARRAY(&m->arrays, int32_t, (int64_t)d->n_visits + 1);
    m->latest = MEMOB_ARRAY(&m->arrays, int32_t, d->n_items);
    m->stays = MEMOB_ARRAY_OF_ANY(&m->arrays, memoi_stay, m->n_lists * n_uses);
    m->makes = MEMOB_ARRAY(&m->arrays, char, m->n_lists* n_uses);
    m->owners = MEMOB_ARRAY(&m->arrays, int32_t, n_cells);
    m->used = MEMOB_ARRAY(&m->arrays, int32_t, n_cells);
    if (m->arrays.failed) return memob_no_memory(error, "the stays of a step");

    /* Cells of the device, and of what is updated on the host. */
    for (int32_t u = 0; u < d->n_uses; u++) {
        const memob_use* use = &d->uses[u];
        const memob_item* item = &d->items[use->item];
        MEMO_ASSERT(use->visit >= 0 && use->visit < d->n_visits &&
                    (!u || use->visit >= d->uses[u - 1].visit));
        MEMO_ASSERT(!use->is_on_host || (item->lives_on && item->file < 0));
        MEMO_ASSERT(!item->lives_on || (item->parcel < 0 && use->how != MEMOB_USE_MAKE));
        m->first_use[use->visit + 1] = u + 1;
        if (has_slots || !memoi_item_moves(item)) continue;
        m->borders[n++] = memoi_use_at(item, use);
        m->borders[n++] = memoi_use_at(item, use) + item->n_bytes;
    }
    for (int32_t v = 0; v < d->n_visits; v++)
        if (m->first_use[v + 1] < m->first_use[v]) m->first_use[v + 1] = m->first_use[v];
    m->n_borders = has_slots ? n_cells : memoi_sort_borders(m->borders, n);
    for (int32_t i = 0; i < d->n_items; i++) m->latest[i] = -1;
    for (int64_t c = 0; c < m->n_borders; c++) m->owners[c] = m->used[c] = -1;

    for (int32_t list = 0; list < m->n_lists; list++) {
        const int32_t begin = list * d->n_visits;
        char* makes = m->makes + list * n_uses;
        for (int32_t v = 0; v < d->n_visits; v++)
            for (int32_t u = m->first_use[v], end = m->first_use[v + 1];
                 u < end && memoi_law_has(d, list, v); u++)
                if (memoi_item_moves(&d->items[d->uses[u].item]))
                    memoi_law_use(m, u, begin + v, begin, makes);
    }
    return MEMO_STATUS_OK;
}

/* Where the version that a stay leaves waits on the host; of a parcel's item: in the parcel. */
MEMOI int64_t memoi_stay_host(const memoi_maker* m, const memoi_stay* stay) {
    return stay->host >= 0 ? stay->host : m->desc->items[stay->item].host;
}

/* Is the stay a copy of a value that another stay stores at the same place? */
MEMOI int memoi_stay_is_served(const memoi_maker* m, const memoi_stay* stay) {
    const memoi_stay* other = stay->copied < 0 ? NULL : &m->stays[stay->copied];
    if (other && other->first == stay->first) /* the value is that of the stay before */
        other = other->previous < 0 ? NULL : &m->stays[other->previous];
    return other && other->last < stay->first && other->is_stored &&
           other->first / m->desc->n_visits == stay->first / m->desc->n_visits &&
           memoi_stay_host(m, other) == memoi_stay_host(m, stay);
}

MEMOI void memoi_law_add_due(memoi_maker* m, int32_t order, const memoi_stay* stay, int32_t time,
                             int32_t need, int32_t free_0, int32_t free_1) {
    const memob_item* item = &m->desc->items[stay->item];
    const memoi_stay* version = order && stay->previous >= 0 ? &m->stays[stay->previous] : stay;
    const memoi_due due = {
        time + 1,     order,
        need,         {free_0, free_1},
        item->parcel, stay->item,
        stay->at,     item->parcel < 0 ? memoi_stay_host(m, version) : item->host};
    if (time < m->law->n_lists * m->desc->n_visits) m->due[m->n_due++] = due;
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
        if (first[slot] - begin > 16)
            qsort(sorted + begin, (size_t)(first[slot] - begin), sizeof *sorted, memoi_due_compare);
        for (int32_t k = begin + 1; k < first[slot] && first[slot] - begin <= 16; k++) {
            const memoi_due due = sorted[k];
            int32_t to = k;
            while (to > begin && memoi_due_compare(&due, &sorted[to - 1]) < 0) {
                sorted[to] = sorted[to - 1];
                to--;
            }
            sorted[to] = due;
        }
    }
    m->due = sorted;
    return MEMO_STATUS_OK;
}

/* 8: is what the stay changes stored in its list? */
MEMOI int memoi_stay_leaves(const memoi_maker* m, const memoi_stay* stay) {
    const int32_t n = m->desc->n_visits;
    const memoi_stay* next = stay->next < 0 ? NULL : &m->stays[stay->next];
    if (stay->changed < 0 || stay->is_on_host || stay->is_spent) return 0;
    if (m->desc->items[stay->item].lives_on == 2) return 0;
    if (!next || next->first / n > stay->first / n + 1) return 1;
    return next->is_there ? next->changed < 0 && !next->is_spent : next->how != MEMOB_USE_WRITE;
}

/* Which stays are loaded and stored, and behind which visit.  Errors: INVALID_ARGUMENT. */
MEMOI memo_status memoi_law_find_transfers(memoi_maker* m, memo_error* error) {
    m->due = MEMOB_ARRAY_OF_ANY(&m->arrays, memoi_due, 2 * (int64_t)m->n_stays);
    if (m->arrays.failed) return memob_no_memory(error, "the transfers of a step");
    for (int32_t k = 0; k < m->n_stays; k++) {
        memoi_stay* s = &m->stays[k];
        const int reads =
            s->how == MEMOB_USE_READ || s->how == MEMOB_USE_CHANGE || s->how == MEMOB_USE_SPEND;
        if (reads && s->previous < 0 && !m->desc->items[s->item].lives_on)
            return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                                  "memob_law_desc.uses: visit %d reads item %d, which no visit has "
                                  "written; let its first use be WRITE",
                                  (int)(s->first % m->desc->n_visits), (int)s->item);
        s->is_loaded = reads && !s->is_on_host && !s->is_there;
        if (m->desc->in_lists)
            s->is_stored = memoi_stay_leaves(m, s);
        else if (reads && s->previous >= 0 && !m->stays[s->previous].is_on_host)
            m->stays[s->previous].is_stored = m->stays[s->previous].changed >= 0;
    }

    for (int32_t k = 0; k < m->n_stays; k++) {
        memoi_stay* s = &m->stays[k];
        const int32_t next = s->next < 0 ? INT32_MAX : m->stays[s->next].first;
        int32_t before = s->before, value = s->value;
        if (s->is_stored && memoi_stay_is_served(m, s)) s->is_stored = 0;
        if (s->is_stored)
            memoi_law_add_due(m, 0, s, s->changed,
                              (int32_t)memob_min(next, s->after < 0 ? INT32_MAX : s->after),
                              s->last, next);
        if (s->is_loaded && m->desc->in_lists) { /* behind visit 0 of the list before */
            const int32_t list = (int32_t)memob_max(s->first / m->desc->n_visits - 1, 0);
            before = (int32_t)memob_max(before, list * m->desc->n_visits);
            value = (int32_t)memob_max(value, list * m->desc->n_visits);
        }
        if (s->is_loaded)
            memoi_law_add_due(m, 1, s, (int32_t)memob_max(before, value), s->first, before, value);
    }
    return memoi_law_sort_dues(m, error);
}

/* --- operations --- */

MEMOI memob_op* memoi_law_add_op(memoi_maker* m, int32_t kind) {
    static const int32_t streams[] = {MEMOB_STREAM_COMPUTE, MEMOB_STREAM_TO_HOST,
                                      MEMOB_STREAM_TO_DEVICE, MEMOB_STREAM_FILE, MEMOB_STREAM_FILE};
    memob_op* op = &m->law->ops[m->law->n_ops++];
    MEMO_ASSERT(m->law->n_ops <= m->ops_most);
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->stream = streams[kind];
    op->list = m->list;
    op->visit = m->visit;
    op->first_part = m->law->n_parts;
    op->first_touch = m->law->n_touches;
    if (kind == MEMOB_OP_VISIT && m->desc->updates_on_host &&
        m->desc->visits[op->visit].pass == MEMOB_UPDATE)
        op->stream = MEMOB_STREAM_FILE;
    return op;
}

MEMOI void memoi_law_add_part(memoi_maker* m, memob_op* op, int32_t item, int64_t from, int64_t to,
                              int64_t n_bytes) {
    const memob_part part = {item, from, to, n_bytes};
    MEMO_ASSERT(m->law->n_parts < m->parts_most);
    m->law->parts[m->law->n_parts++] = part;
    if (op->kind != MEMOB_OP_VISIT) {
        op->may_be_empty = m->desc->may_be_empty && m->desc->may_be_empty[item] &&
                           (!op->n_parts || op->may_be_empty);
        m->law->has_empty |= op->may_be_empty;
        op->n_bytes += n_bytes;
    }
    op->n_parts++;
}

/* Bytes that an operation reads or writes.  A slot is a cell; a parcel's items share one. */
MEMOI void memoi_law_add_range(memoi_maker* m, memob_op* op, int32_t writes, int64_t begin,
                               int64_t n_bytes) {
    memob_law* law = m->law;
    MEMO_ASSERT(m->n_ranges < m->ranges_most && law->n_touches < m->ranges_most);
    if (m->desc->n_slots[0]) {
        const int32_t touch = 2 * (int32_t)memoi_piece_at(m, begin) + writes;
        MEMO_ASSERT(n_bytes == 1 && touch < 2 * law->n_cells);
        if (op->n_touches && law->touches[law->n_touches - 1] == touch) return;
        law->touches[law->n_touches++] = touch;
        op->n_touches++;
        return;
    }
    m->ranges[m->n_ranges].begin = begin;
    m->ranges[m->n_ranges++].end = begin + n_bytes;
}

/* The bytes of copies. */
MEMOI void memoi_law_end_op(memoi_maker* m, memob_op* op) {
    static const int64_t tiers[][2] = {{0, 0},
                                       {0, MEMOI_ON_HOST},
                                       {MEMOI_ON_HOST, 0},
                                       {MEMOI_ON_HOST, MEMOI_IN_FILE},
                                       {MEMOI_IN_FILE, MEMOI_ON_HOST}};
    const memob_part* parts = &m->law->parts[op->first_part];
    int32_t* first = &m->first_range[2 * (op - m->law->ops)];
    for (int32_t writes = 0; writes < 2; writes++) {
        first[writes] = (int32_t)m->n_ranges;
        for (int32_t k = 0; k < op->n_parts; k++)
            memoi_law_add_range(m, op, writes,
                                tiers[op->kind][writes] + (writes ? parts[k].to : parts[k].from),
                                parts[k].n_bytes);
    }
    first[2] = (int32_t)m->n_ranges;
}

/* A visit: the items that it makes, and the bytes of its uses. */
MEMOI void memoi_law_add_visit(memoi_maker* m) {
    const memob_law_desc* d = m->desc;
    const int32_t visit = m->visit;
    const char* makes = &m->makes[(int64_t)m->list * d->n_uses];
    memob_op* op = memoi_law_add_op(m, MEMOB_OP_VISIT);
    int32_t* first = &m->first_range[2 * (op - m->law->ops)];
    m->law->visit_ops[(int64_t)m->list * d->n_visits + visit] = (int32_t)(op - m->law->ops);
    for (int32_t writes = 0; writes < 2; writes++) {
        first[writes] = (int32_t)m->n_ranges;
        for (int32_t u = m->first_use[visit]; u < m->first_use[visit + 1]; u++) {
            const memob_use* use = &d->uses[u];
            const memob_item* item = &d->items[use->item];
            const int is_read =
                use->how == MEMOB_USE_READ || (use->how == MEMOB_USE_MAKE && !makes[u]);
            if (!memoi_item_moves(item)) continue;
            if (writes && makes[u])
                memoi_law_add_part(m, op, use->item, use->at, use->at, item->n_bytes);
            if (writes != is_read)
                memoi_law_add_range(m, op, writes, memoi_use_at(item, use), item->n_bytes);
        }
    }
    first[2] = (int32_t)m->n_ranges;
}

/* --- parcels --- */

/* A parcel's items lie behind each other in every place. */
MEMOI int64_t memoi_place_at(const memoi_maker* m, const memoi_parcel* parcel) {
    MEMO_ASSERT(parcel->place >= 0);
    return m->desc->places_at + parcel->place * m->desc->place_bytes;
}

/* Notes when a place is worth giving away.  The farthest is found by the blocks. */
#define MEMOI_PLACES_OF_BLOCK 32
MEMOI void memoi_place_set(const memoi_maker* m, int32_t place, int32_t due) {
    const int32_t block = place / MEMOI_PLACES_OF_BLOCK, first = block * MEMOI_PLACES_OF_BLOCK;
    const int32_t end = (int32_t)memob_min(first + MEMOI_PLACES_OF_BLOCK, m->desc->n_places);
    int32_t most = -1;
    m->places_due[place] = due;
    for (int32_t k = first; k < end; k++) most = m->places_due[k] > most ? m->places_due[k] : most;
    m->blocks_due[block] = most;
}

/* The first place that is worth most, if one may be given away; -1: none. */
MEMOI int32_t memoi_place_farthest(const memoi_maker* m) {
    const int32_t n_blocks = (m->desc->n_places - 1) / MEMOI_PLACES_OF_BLOCK + 1;
    int32_t best = 0, place;
    for (int32_t k = 1; k < n_blocks; k++)
        if (m->blocks_due[k] > m->blocks_due[best]) best = k;
    if (!m->desc->n_places || m->blocks_due[best] < 0) return -1;
    for (place = best * MEMOI_PLACES_OF_BLOCK; m->places_due[place] != m->blocks_due[best];)
        place++;
    return place;
}

/* With the next load of its parcel; never while the parcel is not whole. */
MEMOI void memoi_parcel_tell(const memoi_maker* m, const memoi_parcel* p) {
    int32_t next = INT32_MAX - 1;
    if (p->place < 0) return;
    if (p->n_stores)
        next = -1;
    else if (p->load < p->loads_end)
        next = m->due[m->loads[p->load]].slot;
    memoi_place_set(m, p->place, next);
}

MEMOI void memoi_parcel_copy(memoi_maker* m, int32_t kind, memoi_parcel* p) {
    const int64_t on_host = memoi_place_at(m, p);
    const int64_t in_file = m->desc->parcels_at + memob_max(p->room, 0) * m->desc->place_bytes;
    memob_op* op = memoi_law_add_op(m, kind);
    memoi_law_add_part(m, op, p->item, kind == MEMOB_OP_READ ? in_file : on_host,
                       kind == MEMOB_OP_READ ? on_host : in_file, p->n_bytes);
    memoi_law_end_op(m, op);
}

MEMOI void memoi_parcel_write(memoi_maker* m, memoi_parcel* p) {
    if (p->is_in_file) return;
    if (p->room < 0) p->room = m->law->n_spilled++;
    memoi_parcel_copy(m, MEMOB_OP_WRITE, p);
    p->is_in_file = 1;
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
        if (m->parcels[old].load < m->parcels[old].loads_end)
            m->ahead = (int32_t)memob_min(m->ahead, m->loads[m->parcels[old].load]);
    }
    m->places[best] = parcel;
    m->parcels[parcel].place = best;
    memoi_parcel_tell(m, &m->parcels[parcel]);
    return 1;
}

MEMOI int memoi_parcel_read(memoi_maker* m, int32_t parcel) {
    if (!memoi_parcel_place(m, parcel)) return 0;
    memoi_parcel_copy(m, MEMOB_OP_READ, &m->parcels[parcel]);
    return 1;
}

/* A place is free: the parcel in the file with the nearest load comes back. */
MEMOI int memoi_parcel_leave(memoi_maker* m, memoi_parcel* p) {
    m->places[p->place] = -1;
    memoi_place_set(m, p->place, INT32_MAX);
    p->place = -1;
    for (; m->ahead < m->n_due; m->ahead++) {
        const memoi_due* due = &m->due[m->ahead];
        const memoi_parcel* next = due->order && due->parcel >= 0 ? &m->parcels[due->parcel] : NULL;
        if (next && next->place < 0 && next->is_in_file && next->load < next->loads_end &&
            m->loads[next->load] == m->ahead)
            return memoi_parcel_read(m, due->parcel);
    }
    return 1;
}

/* --- transfers --- */

/* The offset on the host of a transfer's item. */
MEMOI int64_t memoi_due_host(const memoi_maker* m, const memoi_due* due) {
    return due->host + (due->parcel < 0 ? 0 : memoi_place_at(m, &m->parcels[due->parcel]));
}

/* Copies between the host's window of states and their homes in the file. */
MEMOI void memoi_law_pass_file(memoi_maker* m, const memoi_due* due, int32_t n, int32_t kind) {
    memob_op* op = NULL;
    for (int32_t k = 0; k < n; k++) {
        const memob_item* item = &m->desc->items[due[k].item];
        const int64_t host = item->file < 0 ? 0 : memoi_due_host(m, &due[k]);
        if (item->file < 0) continue;
        if (!op) op = memoi_law_add_op(m, kind);
        memoi_law_add_part(m, op, due[k].item, kind == MEMOB_OP_READ ? item->file : host,
                           kind == MEMOB_OP_READ ? host : item->file, item->n_bytes);
    }
    if (op) memoi_law_end_op(m, op);
}

/* One operation.  Returns 0: it finds no place. */
MEMOI int memoi_law_transfer(memoi_maker* m, const memoi_due* due, int32_t n) {
    const int is_load = due->order;
    memoi_parcel* p = due->parcel < 0 ? NULL : &m->parcels[due->parcel];
    memob_op* op;
    if (p && p->place < 0 &&
        !(is_load ? memoi_parcel_read(m, due->parcel) : memoi_parcel_place(m, due->parcel)))
        return 0;
    if (is_load && m->has_windows) memoi_law_pass_file(m, due, n, MEMOB_OP_READ);

    op = memoi_law_add_op(m, is_load ? MEMOB_OP_LOAD : MEMOB_OP_STORE);
    for (int32_t k = 0; k < n; k++) {
        const int64_t host = memoi_due_host(m, &due[k]), at = due[k].at;
        memoi_law_add_part(m, op, due[k].item, is_load ? host : at, is_load ? at : host,
                           m->desc->items[due[k].item].n_bytes);
    }
    memoi_law_end_op(m, op);

    if (!is_load && m->has_windows) memoi_law_pass_file(m, due, n, MEMOB_OP_WRITE);
    if (!p) return 1;
    if (!is_load) {
        p->n_stores -= n;
        p->is_in_file = 0;
        memoi_parcel_tell(m, p);
        if (!p->n_stores && p->room >= 0) memoi_parcel_write(m, p);
        return 1;
    }
    p->load += n;
    memoi_parcel_tell(m, p);
    return p->load < p->loads_end || p->n_stores || memoi_parcel_leave(m, p);
}

/* Counts what the parcels store and load in a list. */
MEMOI void memoi_law_begin_parcels(memoi_maker* m, int32_t list) {
    const int32_t before = list * m->desc->n_visits, end = before + m->desc->n_visits;
    int32_t n_loads = 0;
    if (!m->desc->n_parcels) return;
    for (int32_t k = 0; k < m->desc->n_parcels; k++) {
        memoi_parcel* p = &m->parcels[k];
        MEMO_ASSERT(p->place < 0); /* what lies in parcels does not live on */
        p->n_stores = p->load = p->loads_end = p->is_in_file = 0;
        p->place = -1;
    }

    /* loads_end counts first; then each parcel has its part of loads. */
    for (int32_t k = 0; k < m->n_due; k++) {
        const memoi_due* due = &m->due[k];
        if (due->parcel < 0 || due->slot <= before || due->slot > end) continue;
        *(due->order ? &m->parcels[due->parcel].loads_end : &m->parcels[due->parcel].n_stores) += 1;
    }
    m->ahead = 0;
    for (int32_t k = 0; k < m->desc->n_parcels; k++) {
        memoi_parcel* p = &m->parcels[k];
        p->load = n_loads;
        n_loads += p->loads_end;
        p->loads_end = p->load;
    }
    for (int32_t k = 0; k < m->n_due; k++) {
        const memoi_due* due = &m->due[k];
        if (due->parcel >= 0 && due->order && due->slot > before && due->slot <= end)
            m->loads[m->parcels[due->parcel].loads_end++] = k;
    }
}

/* All operations in the order of enqueueing.  Errors: INVALID_ARGUMENT. */
MEMOI memo_status memoi_law_walk(memoi_maker* m, memo_error* error) {
    const int32_t n = m->desc->n_visits;
    int32_t k = 0;
    m->law->n_ops = m->law->n_parts = m->law->n_touches = 0;
    m->n_ranges = 0;
    m->list = 0;
    m->visit = -1;

    for (int32_t slot = 0; slot <= m->law->n_lists * n; slot++, m->visit++) {
        if (m->visit == n) { /* the list before has ended */
            m->visit = 0;
            m->law->begin[++m->list] = m->law->n_ops;
        }
        if (m->visit == 0) memoi_law_begin_parcels(m, m->list);
        if (slot) m->law->visit_ops[slot - 1] = -1;
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
    m->first_range[2 * m->law->n_ops] = (int32_t)m->n_ranges;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_law_find_ops(memoi_maker* m, memo_error* error) {
    const memob_law_desc* d = m->desc;
    memob_law* law = m->law;
    const int64_t n_times = (int64_t)law->n_lists * d->n_visits;
    const int64_t n_refs = (int64_t)law->n_lists * d->n_uses;
    const int has_slots = d->n_slots[0] > 0;
    int64_t n_each = d->n_parcels ? 5 : 1; /* operations of a transfer, at most */
    memo_status status;
    for (int32_t i = 0; i < d->n_items; i++) m->has_windows |= d->items[i].file >= 0;
    if (m->has_windows) n_each = 5;
    m->ops_most = n_times + n_each * m->n_due;
    m->parts_most = n_refs + n_each * m->n_due;
    m->ranges_most = n_refs + 2 * n_each * m->n_due;
    law->ops = MEMOB_ARRAY_OF_ANY(&law->arrays, memob_op, m->ops_most);
    law->parts = MEMOB_ARRAY_OF_ANY(&law->arrays, memob_part, m->parts_most);
    if (has_slots) {
        law->n_cells = d->n_slots[0] + d->n_slots[1] + d->n_slots[2];
        law->touches = MEMOB_ARRAY_OF_ANY(&law->arrays, int32_t, m->ranges_most);
    }
    law->begin = MEMOB_ARRAY(&law->arrays, int32_t, law->n_lists + 1);
    law->visit_ops = MEMOB_ARRAY(&law->arrays, int32_t, n_times);
    m->first_range = MEMOB_ARRAY_OF_ANY(&m->arrays, int32_t, 2 * m->ops_most + 1);
    m->ranges = MEMOB_ARRAY_OF_ANY(&m->arrays, memoi_bytes, has_slots ? 0 : m->ranges_most);
    m->parcels = MEMOB_ARRAY(&m->arrays, memoi_parcel, d->n_parcels);
    m->places = MEMOB_ARRAY(&m->arrays, int32_t, d->n_places);
    m->places_due = MEMOB_ARRAY(&m->arrays, int32_t, d->n_places);
    m->blocks_due = MEMOB_ARRAY(&m->arrays, int32_t, d->n_places / MEMOI_PLACES_OF_BLOCK + 1);
    m->loads = MEMOB_ARRAY(&m->arrays, int32_t, m->n_due);
    if (m->arrays.failed || law->arrays.failed) return memob_no_memory(error, "the law of a step");

    for (int32_t k = 0; k < d->n_places; k++) m->places[k] = -1, m->places_due[k] = INT32_MAX;
    for (int32_t k = 0; k <= d->n_places / MEMOI_PLACES_OF_BLOCK; k++) m->blocks_due[k] = INT32_MAX;
    for (int32_t k = 0; k < d->n_parcels; k++) m->parcels[k].place = m->parcels[k].room = -1;
    for (int32_t i = d->n_items - 1; i >= 0; i--) {
        memoi_parcel* p = d->items[i].parcel < 0 ? NULL : &m->parcels[d->items[i].parcel];
        if (!p || !memoi_item_moves(&d->items[i])) continue;
        MEMO_ASSERT(d->items[i].parcel < d->n_parcels);
        p->item = i;
        p->n_bytes = memob_max(p->n_bytes, d->items[i].host + d->items[i].n_bytes);
        MEMO_ASSERT(p->n_bytes <= d->place_bytes);
    }

    /* The first walk tells which parcels go to the file. */
    status = memoi_law_walk(m, error);
    if (!status && law->n_spilled) status = memoi_law_walk(m, error);
    return status;
}

/* --- cells --- */

/* Bytes that the same operations touch are one cell: each operation splits the cells of which it
 * touches a part. */
typedef struct memoi_split {
    int32_t* cell;         /* of each piece of bytes between two borders */
    int32_t* size;         /* pieces of each cell */
    int32_t *hits, *fresh; /* of each cell: pieces in the set; the cell that takes them, or -1 */
    int32_t* stamp;        /* of each piece: 1 + the latest operation that touched it */
    int32_t *set, n_set;   /* pieces that an operation writes, or reads */
    int32_t *touched, n_touched; /* their cells */
    int32_t n_cells;
} memoi_split;

/* The pieces that the operation writes; or, taken after these, the others that it reads. */
MEMOI void memoi_split_take(memoi_split* p, const memoi_maker* m, int32_t op, int32_t writes) {
    const int32_t* first = &m->first_range[2 * op + writes];
    p->n_set = p->n_touched = 0;
    for (int32_t r = first[0]; r < first[1]; r++) {
        for (int64_t piece = m->ranges[r].begin; piece < m->ranges[r].end; piece++) {
            if (p->stamp[piece] == op + 1) continue;
            p->stamp[piece] = op + 1;
            p->set[p->n_set++] = (int32_t)piece;
            if (!p->hits[p->cell[piece]]++) p->touched[p->n_touched++] = p->cell[piece];
        }
    }
}

MEMOI void memoi_split_cells(memoi_split* p) {
    for (int32_t k = 0; k < p->n_touched; k++) {
        const int32_t cell = p->touched[k], hits = p->hits[cell];
        p->hits[cell] = 0;
        p->fresh[cell] = -1;
        if (hits == p->size[cell]) continue;
        p->fresh[cell] = p->n_cells;
        p->size[cell] -= hits;
        p->size[p->n_cells++] = hits;
    }
    for (int32_t k = 0; k < p->n_set; k++) {
        const int32_t fresh = p->fresh[p->cell[p->set[k]]];
        if (fresh >= 0) p->cell[p->set[k]] = fresh;
    }
}

/* The cells of all operations. */
MEMOI void memoi_split_touches(memoi_split* p, const memoi_maker* m) {
    memob_law* law = m->law;
    law->n_touches = 0;
    memset(p->stamp, 0, (size_t)m->n_borders * sizeof *p->stamp);
    for (int32_t op = 0; op < law->n_ops; op++) {
        law->ops[op].first_touch = law->n_touches;
        for (int32_t writes = 1; writes >= 0; writes--) {
            memoi_split_take(p, m, op, writes);
            for (int32_t k = 0; k < p->n_touched; k++) {
                if (law->touches) law->touches[law->n_touches] = 2 * p->touched[k] + writes;
                p->hits[p->touched[k]] = 0;
                law->n_touches++;
            }
        }
        law->ops[op].n_touches = law->n_touches - law->ops[op].first_touch;
    }
}

MEMOI memo_status memoi_law_find_cells(memoi_maker* m, memo_error* error) {
    memob_law* law = m->law;
    memoi_split p = MEMO_ZERO(memoi_split);
    m->borders = MEMOB_ARRAY(&m->arrays, int64_t, 2 * m->n_ranges);
    if (m->arrays.failed) return memob_no_memory(error, "the cells of a step");
    for (int64_t r = 0; r < m->n_ranges; r++) {
        m->borders[2 * r] = m->ranges[r].begin;
        m->borders[2 * r + 1] = m->ranges[r].end;
    }
    m->n_borders = memoi_sort_borders(m->borders, 2 * m->n_ranges);
    for (int64_t r = 0; r < m->n_ranges; r++) { /* from now on ranges of pieces */
        int64_t end = memoi_cell_at(m->borders, m->n_borders, m->ranges[r].begin);
        const int64_t begin = end;
        while (m->borders[end] < m->ranges[r].end) end++;
        m->ranges[r].begin = begin;
        m->ranges[r].end = end;
    }
    p.cell = MEMOB_ARRAY(&m->arrays, int32_t, m->n_borders);
    p.size = MEMOB_ARRAY(&m->arrays, int32_t, m->n_borders + 1);
    p.hits = MEMOB_ARRAY(&m->arrays, int32_t, m->n_borders + 1);
    p.fresh = MEMOB_ARRAY(&m->arrays, int32_t, m->n_borders + 1);
    p.stamp = MEMOB_ARRAY(&m->arrays, int32_t, m->n_borders);
    p.set = MEMOB_ARRAY(&m->arrays, int32_t, m->n_borders);
    p.touched = MEMOB_ARRAY(&m->arrays, int32_t, m->n_borders);
    if (m->arrays.failed) return memob_no_memory(error, "the cells of a step");

    p.n_cells = 1;
    p.size[0] = (int32_t)m->n_borders;
    for (int32_t op = 0; op < law->n_ops; op++)
        for (int32_t writes = 1; writes >= 0; writes--) {
            memoi_split_take(&p, m, op, writes);
            memoi_split_cells(&p);
        }
    law->n_cells = p.n_cells;

    /* Count, then fill. */
    memoi_split_touches(&p, m);
    law->touches = MEMOB_ARRAY(&law->arrays, int32_t, law->n_touches);
    if (law->arrays.failed) return memob_no_memory(error, "the cells of a step");
    memoi_split_touches(&p, m);
    return MEMO_STATUS_OK;
}

/* --- what is awaited --- */

/* A sink that only counts. */
typedef struct memoi_counter {
    memob_waits waits;
    int32_t* ops[MEMOB_N_STREAMS];     /* of each kept number: the operation */
    int64_t* records[MEMOB_N_STREAMS]; /* and the records before its end */
    int64_t n_records[MEMOB_N_STREAMS];
    memob_arrays arrays;
} memoi_counter;

/* Adds a list, with what may be empty or without.  The first time marks what is awaited, then
 * counts the records that a wait looks back. */
MEMOI void memoi_law_count(memob_law* law, int32_t list, memoi_counter* c, int is_marked,
                           int is_empty) {
    for (int32_t k = law->begin[list]; k < law->begin[list + 1]; k++) {
        const int32_t stream = law->ops[k].stream;
        memob_numbers wait;
        int64_t number;
        if (is_empty && law->ops[k].may_be_empty) continue;
        number = memob_law_add(law, &c->waits, k, &wait);
        c->ops[stream][number & c->waits.mask[stream]] = k;
        c->records[stream][number & c->waits.mask[stream]] = c->n_records[stream];
        c->n_records[stream] += law->ops[k].is_awaited;
        for (int32_t s = 0; s < MEMOB_N_STREAMS; s++) {
            const int64_t at = wait.of[s] & c->waits.mask[s];
            if (!wait.of[s]) continue;
            law->ops[c->ops[s][at]].is_awaited = 1;
            if (is_marked)
                law->n_events[s] = (int32_t)memob_min(
                    MEMOB_RECORDS_MAX,
                    memob_max(law->n_events[s], c->n_records[s] - c->records[s][at]));
        }
    }
}

MEMOI memo_status memoi_law_find_awaited(memob_law* law, int has_no_events, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++) law->n_events[s] = 1;
    for (int32_t list = 0; list < law->n_lists; list++) {
        int64_t n[MEMOB_N_STREAMS] = {0, 0, 0, 0};
        for (int32_t k = law->begin[list]; k < law->begin[list + 1]; k++) n[law->ops[k].stream]++;
        for (int32_t s = 0; s < MEMOB_N_STREAMS; s++)
            law->n_kept[s] = memob_max(law->n_kept[s], 2 * n[s]);
    }

    for (int32_t s = 0; s < MEMOB_N_STREAMS && has_no_events; s++)
        law->n_events[s] = MEMOB_RECORDS_MAX;
    for (int32_t k = 0; k < law->n_ops && has_no_events; k++) law->ops[k].is_awaited = 1;

    /* A list may follow itself; the waits of the last one repeat from its third time on. */
    for (int pass = 0; pass < 4 && !status && !has_no_events; pass++) {
        const int is_marked = pass / 2, is_empty = pass % 2;
        memoi_counter c;
        if (is_empty && !law->has_empty) continue;
        memset(&c, 0, sizeof c);
        status = memob_waits_make(&c.waits, law->n_cells, law->n_kept, error);
        for (int32_t s = 0; s < MEMOB_N_STREAMS && !status; s++) {
            c.ops[s] = MEMOB_ARRAY(&c.arrays, int32_t, c.waits.mask[s] + 1);
            c.records[s] = MEMOB_ARRAY(&c.arrays, int64_t, c.waits.mask[s] + 1);
        }
        if (!status && c.arrays.failed) status = memob_no_memory(error, "the waits of a step");
        for (int32_t k = 0; k < 2 * law->n_lists + 1 && !status; k++)
            memoi_law_count(law, (int32_t)memob_min(k / 2, law->n_lists - 1), &c, is_marked,
                            is_empty);
        memob_arrays_free(&c.arrays);
        memob_waits_free(&c.waits);
    }
    return status;
}

MEMOI void memob_law_free(memob_law* law) {
    memob_arrays_free(&law->arrays);
    memset(law, 0, sizeof *law);
}

/* Makes the operations of desc->n_tables lists.  Arrays of desc are not used afterwards.  Errors:
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
    maker.n_lists = (int32_t)memob_max(desc->n_lists, 1);
    law->n_lists = desc->n_tables ? desc->n_tables : maker.n_lists;
    law->n_visits = desc->n_visits;
    MEMO_ASSERT(desc->n_visits > 0 && law->n_lists <= maker.n_lists);
    MEMO_ASSERT(!desc->in_lists || !desc->in_lists[0]); /* 8 */

    status = memoi_law_find_stays(&maker, error);
    if (!status) status = memoi_law_find_transfers(&maker, error);
    if (!status) status = memoi_law_find_ops(&maker, error);
    if (!status && !desc->n_slots[0]) status = memoi_law_find_cells(&maker, error);
    if (!status) status = memoi_law_find_awaited(law, desc->has_no_events, error);
    if (desc->work)
        *desc->work = maker.arrays;
    else
        memob_arrays_free(&maker.arrays);
    if (status) memob_law_free(law);
    return status;
}
