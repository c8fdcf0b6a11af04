/* test_law.c - the operations of random lists against a reference that knows uses, bytes and the
 * definition of a race, and nothing of stays, cells and clocks.
 *
 * A random problem runs through a few lists.  Its visits and copies are played on bytes that hold
 * values, in the order of enqueueing and in random orders that streams and waits allow.  Every byte
 * that a visit reads must hold the item's value.  Any two operations that touch a byte, one writing
 * it, must have a path between them; without any of the waits some pair must not.  Without any of
 * the copies some visit must read a wrong value. */
#define MEMO_IMPLEMENTATION
#include "memo.h"
#include "memo_test.h"
#include "step_list.h"

enum {
    DEVICE = 40,
    ITEMS_MAX = 60,
    USES_MAX = 1200,
    VISITS_MAX = 120,
    OPS_MAX = 2000,
    RANGES_MAX = 40,
    SEQUENCE_MAX = 8,
    TIER = 4096 /* bytes of each memory, at most */
};

typedef struct problem {
    step_list list;
    memob_item items[ITEMS_MAX];
    memob_use uses[USES_MAX];
    memob_law_desc desc;
    int32_t lists[SEQUENCE_MAX]; /* desc.lists: list_kind */
    uint32_t in_lists[VISITS_MAX];
    char on_host[VISITS_MAX];
    int64_t item_bytes[ITEMS_MAX];
    int32_t n_spread[VISITS_MAX];
    int updates_on_host;
    int32_t n_lists;
    int32_t sequence[SEQUENCE_MAX]; /* tables that run */
    int32_t n_sequence;
} problem;

typedef struct range {
    int64_t begin, end, expected, left; /* expected -1: not read; left -1: not written */
} range;

typedef struct operation {
    int stream, n_ranges, n_waits, list, kind;
    range ranges[RANGES_MAX];
    int waits[MEMOB_N_STREAMS];
} operation;

static problem p;
static operation ops[OPS_MAX];
static int n_ops;
static int64_t n_waits_all, n_ops_all, n_copies_dropped, n_same;
static memo_error error;

static int pick(int low, int high) { return (int)memo_test_int(low, high); }

/* ---- random problems ---- */

static void random_list(void) {
    static list_turn turns[64];
    list_desc desc;
    int32_t n_turns = 0;
    memset(&desc, 0, sizeof desc);
    desc.n_layers = pick(1, 4);
    desc.n_slices = pick(0, 2) ? 1 : pick(2, 3);
    desc.n_micro_batches = pick(1, 3);
    desc.has_ends = pick(0, 1);
    desc.order = pick(0, 2);
    desc.update = pick(0, 3);
    desc.is_forward_only = desc.order != LIST_TURNS && pick(0, 9) == 0;
    if (desc.is_forward_only) desc.update = 0;
    if (desc.order == LIST_TURNS) { /* 1F1B */
        const int ahead = pick(0, desc.n_micro_batches - 1);
        for (int32_t m = 0; m < desc.n_micro_batches + ahead; m++) {
            const list_turn forward = {MEMOB_FORWARD, m, 0};
            const list_turn backward = {MEMOB_BACKWARD, m - ahead, 0};
            if (m < desc.n_micro_batches) turns[n_turns++] = forward;
            if (m >= ahead) turns[n_turns++] = backward;
        }
        desc.turns = turns;
        desc.n_turns = n_turns;
    }
    CHECK(list_make(&desc, &p.list, &error) == MEMO_STATUS_OK);
}

static int compare_uses(const void* left, const void* right) {
    const memob_use *a = (const memob_use*)left, *b = (const memob_use*)right;
    return a->visit != b->visit ? memob_compare(a->visit, b->visit)
                                : memob_compare(a->item, b->item);
}

static memob_use* add_use(int32_t visit, int32_t how, int64_t at) {
    const memob_use use = {visit, p.desc.n_items, how, 0, at, -1, 0};
    p.uses[p.desc.n_uses] = use;
    return &p.uses[p.desc.n_uses++];
}

/* Items of every life at random addresses, used by random visits. */
static void random_items(void) {
    static char taken[VISITS_MAX][DEVICE];
    const int n_items = pick(1, 14), n_windows = pick(1, 3);
    int64_t windows[3], host = 0, file = 0; /* of items of every life */
    memset(taken, 0, sizeof taken);
    for (int w = 0; w < n_windows; w++, host += 6) windows[w] = host;

    for (int i = 0; i < n_items; i++) {
        memob_item* item = &p.items[p.desc.n_items];
        const int32_t lives_on = pick(0, 1), share = pick(10, 70);
        const int32_t stays_put = pick(0, 2) ? 90 : 50;
        const int first_use = p.desc.n_uses;
        int32_t begins_in_evaluation = 0;
        int64_t at = pick(0, DEVICE - 6);
        memset(item, 0, sizeof *item);
        item->n_slots = item->n_host = pick(0, 9) ? pick(1, 6) : 0;
        item->lives_on = lives_on;
        item->copy_of = -1;
        item->file = -1;
        if (pick(0, 2) == 0) {
            item->host = windows[pick(0, n_windows - 1)];
            item->file = file;
            file += item->n_slots;
        } else {
            item->host = host;
            host += item->n_slots;
        }

        for (int32_t v = 0; v < p.list.n_visits; v++) {
            const list_visit* visit = &p.list.visits[v];
            const int is_evaluated = visit->pass == MEMOB_FORWARD && !visit->micro_batch;
            const int is_first = p.desc.n_uses == first_use;
            int is_free = 1;
            int32_t how = pick(0, 9);
            memob_use* use;
            if (pick(0, 99) >= share) continue;
            if (!lives_on && visit->pass == MEMOB_UPDATE) continue;
            if (!lives_on && is_evaluated && !is_first && !begins_in_evaluation) continue;
            if (pick(0, 99) >= stays_put) at = pick(0, DEVICE - 6);
            for (int64_t b = at; b < at + item->n_slots; b++) is_free &= !taken[v][b];
            if (!is_free || p.desc.n_uses >= USES_MAX) continue;
            if (is_first) begins_in_evaluation = is_evaluated;
            how = how < 4    ? MEMOB_USE_READ
                  : how < 7  ? MEMOB_USE_CHANGE
                  : how < 9  ? MEMOB_USE_WRITE
                  : lives_on ? MEMOB_USE_READ
                             : MEMOB_USE_MAKE;
            if (is_first && !lives_on) how = pick(0, 3) ? MEMOB_USE_WRITE : MEMOB_USE_MAKE;
            use = add_use(v, how, at);
            if (visit->pass == MEMOB_UPDATE && p.updates_on_host && lives_on && item->file < 0) {
                use->is_on_host = 1;
                continue;
            }
            memset(&taken[v][at], 1, (size_t)item->n_slots);
        }
        p.desc.n_items++;
    }

    /* Updates on the host use nothing on the device. */
    for (int k = 0; k < p.desc.n_uses; k++) {
        const int is_update = p.list.visits[p.uses[k].visit].pass == MEMOB_UPDATE;
        if (is_update && p.updates_on_host && !p.uses[k].is_on_host)
            p.uses[k--] = p.uses[--p.desc.n_uses];
    }
    p.desc.n_slots[1] = (int32_t)host;
    p.desc.n_slots[2] = (int32_t)file;
}

/* A hidden state that layers hand on slice by slice, and each layer's copy of its input. */
static void random_slices(void) {
    const list_desc* d = &p.list.desc;
    const int n = d->n_layers, n_slices = d->n_slices, bytes = pick(1, 3);
    const int has_copies = pick(0, 2);
    int64_t host = 0;
    for (int m = 0; m < d->n_micro_batches; m++)
        for (int s = 0; s < n_slices; s++) {
            const int handed = p.desc.n_items;
            const memob_item hidden = {bytes, bytes, 0, -1, host, -1};
            p.items[p.desc.n_items] = hidden;
            host += bytes;
            for (int32_t v = 0; v < p.list.n_visits; v++) {
                const list_visit* visit = &p.list.visits[v];
                const int is_back = visit->pass == MEMOB_BACKWARD, l = visit->layer;
                const int64_t next = host + (l + 1) * bytes;
                if (visit->micro_batch != m || visit->slice != s || l < 0 || l >= n) continue;
                if (visit->pass > MEMOB_BACKWARD) continue;
                add_use(v, l == (is_back ? n - 1 : 0) ? MEMOB_USE_WRITE : MEMOB_USE_CHANGE,
                        (l * n_slices + s) % 2 * bytes)
                    ->host = has_copies && !is_back && l + 1 < n ? next : -1;
            }
            p.desc.n_items++;
            for (int l = 0; l < n && has_copies && p.desc.n_items < ITEMS_MAX; l++) {
                const memob_item input = {bytes, bytes, 0, handed, host + l * bytes, -1};
                p.items[p.desc.n_items] = input;
                for (int32_t v = 0; v < p.list.n_visits; v++) {
                    const list_visit* visit = &p.list.visits[v];
                    if (visit->micro_batch != m || visit->slice != s || visit->layer != l ||
                        visit->pass > MEMOB_BACKWARD)
                        continue;
                    add_use(v, visit->pass ? MEMOB_USE_READ : MEMOB_USE_WRITE,
                            2 * bytes + (l * n_slices + s) % 2 * bytes);
                }
                p.desc.n_items++;
            }
            host += n * bytes;
        }
    p.desc.n_slots[1] = (int32_t)host;
}

/* The rows of layers, which leave behind their forward and come back before their backward.  A
 * micro-batch has the items of a place of micro-batches, which another takes when it is over.  Some
 * layers go to the file, through windows that they share. */
static void random_rows(void) {
    enum { PLACES_MAX = 3 };
    const list_desc* d = &p.list.desc;
    const int n_of_place = d->n_layers * d->n_slices, n_passes = d->is_forward_only ? 1 : 2;
    const int is_small = 2 * d->n_micro_batches * n_of_place <= ITEMS_MAX;
    const int n_classes = pick(1, 1 + is_small), bytes = pick(1, 3);
    const int n_windows = pick(1, 3), share = pick(0, 100);
    int place_of[PLACES_MAX] = {0, 0, 0}, left[PLACES_MAX], is_there[PLACES_MAX] = {0, 0, 0};
    int64_t host = (int64_t)n_windows * n_classes * bytes, file = 0;
    for (int m = 0; m < d->n_micro_batches; m++) left[m] = n_passes * n_of_place;
    for (int32_t v = 0; v < p.list.n_visits; v++) {
        const list_visit* visit = &p.list.visits[v];
        const int m = visit->micro_batch, l = visit->layer, odd = (l + visit->slice) & 1;
        int row;
        if (visit->pass > MEMOB_BACKWARD || l < 0 || l >= d->n_layers) continue;
        if (left[m] == n_passes * n_of_place) {
            for (place_of[m] = 0; is_there[place_of[m]];) place_of[m]++;
            is_there[place_of[m]] = 1;
        }
        row = place_of[m] * n_of_place + l * d->n_slices + visit->slice;
        for (int c = 0; c < n_classes; c++) {
            p.desc.n_items = row * n_classes + c;
            add_use(v, visit->pass == MEMOB_FORWARD ? MEMOB_USE_WRITE : MEMOB_USE_READ,
                    (2 * c + odd) * bytes);
        }
        if (--left[m] == 0) is_there[place_of[m]] = 0;
    }

    p.desc.n_items = d->n_micro_batches * n_of_place * n_classes;
    for (int i = 0, window = 0; i < p.desc.n_items; i++) {
        const int c = i % n_classes;
        memob_item item = {bytes, bytes, 0, -1, host, -1};
        if (!c) window = pick(0, 99) < share ? pick(0, n_windows - 1) : -1;
        if (window >= 0) {
            item.host = (window * n_classes + c) * bytes;
            item.file = file;
            file += bytes;
        } else
            host += bytes;
        p.items[i] = item;
    }
    p.desc.n_slots[1] = (int32_t)host;
    p.desc.n_slots[2] = (int32_t)file;
}

/* Returns 0: too large. */
static int random_problem(void) {
    const int is_steady = pick(0, 1);
    list_free(&p.list);
    memset(&p, 0, sizeof p);
    random_list();
    if (p.list.n_visits > 40) return 0;
    p.updates_on_host = pick(0, 3) == 0;
    switch (pick(0, 4)) {
    case 0: random_slices(); break;
    case 1: random_rows(); break;
    default: random_items();
    }
    qsort(p.uses, (size_t)p.desc.n_uses, sizeof *p.uses, compare_uses);

    /* A step and those behind it, or any sequence. */
    p.n_lists = 0;
    p.lists[p.n_lists++] = LIST_FIRST;
    for (int k = 0; k < 2; k++)
        p.lists[p.n_lists++] = is_steady ? (int32_t)LIST_EVERY : pick(0, LIST_N_KINDS - 1);
    if (!is_steady) p.lists[p.n_lists++] = LIST_EVERY;
    for (int k = 0; k < p.n_lists - 1; k++) p.sequence[p.n_sequence++] = k;
    for (int k = 0; k < 2 && is_steady; k++) p.sequence[p.n_sequence++] = 1;
    p.desc.lists = p.lists;
    p.desc.n_lists = p.n_lists;
    for (int v = 0; v < p.list.n_visits; v++) {
        p.on_host[v] = p.updates_on_host && p.list.visits[v].pass == MEMOB_UPDATE;
        for (int k = 0; k < LIST_N_KINDS; k++)
            p.in_lists[v] |= (uint32_t)list_has(&p.list.visits[v], k) << k;
    }
    p.desc.in_lists = p.in_lists;
    p.desc.on_host = p.on_host;
    p.desc.n_visits = p.list.n_visits;
    p.desc.items = p.items;
    p.desc.n_slots[0] = DEVICE;
    p.desc.uses = p.uses;
    if (pick(0, 2)) return 1;
    for (int i = 0; i < p.desc.n_items; i++) p.item_bytes[i] = pick(0, 1000);
    p.desc.item_bytes = p.item_bytes;
    for (int v = 0; v < p.desc.n_visits; v++) p.n_spread[v] = pick(0, 5);
    p.desc.n_spread = p.n_spread;
    return 1;
}

/* ---- the reference ---- */

static int64_t owner[TIER], latest_at[ITEMS_MAX]; /* the item that used a byte last */
static int64_t value[ITEMS_MAX], fresh, memory[3 * TIER], start[3 * TIER];

static void add_range(operation* o, int64_t begin, int64_t n_bytes, int64_t expected,
                      int64_t left) {
    const range r = {begin, begin + n_bytes, expected, left};
    CHECK(o->n_ranges < RANGES_MAX && begin >= 0 && begin + n_bytes <= 3 * TIER);
    o->ranges[o->n_ranges++] = r;
}

/* What a visit reads and leaves, from its uses alone.  Bytes of a MAKE are there if nothing has
 * touched them since the item's latest use, which was at the same address. */
static void play_visit(operation* o, const memob_op* op, int list) {
    const int64_t entry_list = list + 1;
    int64_t before[ITEMS_MAX];
    int n_made = 0;
    memcpy(before, value, sizeof before);
    for (int u = 0; u < p.desc.n_uses; u++) {
        const memob_use* use = &p.uses[u];
        const memob_item* item = &p.items[use->item];
        const int64_t at = use->is_on_host ? TIER + item->host : use->at;
        const int64_t name = use->item + 1 + (item->lives_on ? 0 : entry_list * 1000);
        int64_t left = -1;
        int is_there = latest_at[use->item] == at, is_made;
        if (use->visit != op->visit || !item->n_slots) continue;
        for (int64_t b = 0; b < item->n_slots && !use->is_on_host; b++)
            is_there &= owner[use->at + b] == name;
        is_made = use->how == MEMOB_USE_MAKE && !is_there;
        for (int64_t b = 0; b < item->n_slots && !use->is_on_host; b++) owner[use->at + b] = name;
        latest_at[use->item] = at;
        n_made += is_made;
        if (use->how == MEMOB_USE_WRITE || use->how == MEMOB_USE_CHANGE)
            left =
                item->copy_of >= 0 && before[item->copy_of] >= 0 ? before[item->copy_of] : ++fresh;
        if (is_made) left = value[use->item] > 0 ? value[use->item] : ++fresh;
        add_range(o, at, item->n_slots,
                  use->how == MEMOB_USE_WRITE || is_made ? -1 : value[use->item], left);
        if (left >= 0) value[use->item] = left;
    }
    CHECK(n_made == op->n_parts);
}

static void play_copy(operation* o, const memob_law* law, const memob_op* op) {
    static const int tiers[5][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 2}, {2, 1}};
    for (int k = 0; k < op->n_parts; k++) {
        const memob_part* part = &law->parts[op->first_part + k];
        const int reads = tiers[op->kind][0], writes = tiers[op->kind][1];
        add_range(o, reads * TIER + (reads < writes ? part->at : part->away), part->n_host, 0, -1);
        add_range(o, writes * TIER + (reads < writes ? part->away : part->at), part->n_host, -1, 0);
    }
}

/* As a sink: operation k is enqueued.  Returns its number in its stream, and the operations to wait
 * for. */
static int64_t enqueue(const memob_law* law, memob_cell* cells, memob_waits* waits, int32_t k,
                       memob_numbers* wait) {
    const memob_op* op = &law->ops[k];
    const int32_t* touches = law->touches + op->first_touch;
    memob_numbers need = MEMO_ZERO(memob_numbers);
    memob_cells_need(cells, touches, op->n_touches, &need);
    *wait = need;
    (void)memob_waits_reduce(waits, op->stream, wait);
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++)
        if (wait->of[s]) memob_waits_raise(waits, op->stream, s, wait->of[s]);
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++)
        CHECK_IS(need.of[s], <=, waits->now[op->stream].of[s]);
    const int64_t number = memob_waits_end(waits, op->stream);
    memob_cells_mark(cells, touches, op->n_touches, op->stream, number);
    return number;
}

/* All operations of the sequence, with the waits that sinks see. */
static void play(const memob_law* law) {
    static memob_waits waits;
    static int ring[MEMOB_N_STREAMS][1 << 12];
    memob_cell* cells = (memob_cell*)calloc((size_t)law->n_cells, sizeof *cells);
    memset(&waits, 0, sizeof waits);
    n_ops = 0;
    fresh = 1000;
    memset(owner, 0, sizeof owner);
    memset(latest_at, 0, sizeof latest_at);
    for (int64_t b = 0; b < 3 * TIER; b++) start[b] = 0;
    for (int i = 0; i < p.desc.n_items; i++) {
        const int64_t at =
            p.items[i].file >= 0 ? 2 * TIER + p.items[i].file : TIER + p.items[i].host;
        value[i] = p.items[i].lives_on ? i + 1 : -1;
        for (int64_t b = at; b < at + p.items[i].n_slots && p.items[i].lives_on; b++)
            start[b] = i + 1;
    }
    for (int s = 0; s < p.n_sequence; s++) {
        const int table = p.sequence[s];
        for (int i = 0; i < p.desc.n_items; i++)
            if (!p.items[i].lives_on) value[i] = -1;
        for (int k = law->begin[table]; k < law->begin[table + 1]; k++) {
            const memob_op* op = &law->ops[k];
            operation* o = &ops[n_ops];
            memob_numbers wait;
            const int64_t number = enqueue(law, cells, &waits, k, &wait);
            memset(o, 0, sizeof *o);
            o->stream = op->stream;
            o->kind = op->kind;
            o->list = s;
            if (op->kind == MEMOB_OP_VISIT)
                play_visit(o, op, s);
            else
                play_copy(o, law, op);
            for (int q = 0; q < MEMOB_N_STREAMS; q++)
                if (wait.of[q]) o->waits[o->n_waits++] = ring[q][wait.of[q] & 4095];
            ring[op->stream][number & 4095] = n_ops++;
            CHECK(n_ops < OPS_MAX);
            n_waits_all += o->n_waits;
        }
    }
    n_ops_all += n_ops;
    free(cells);
}

/* Runs an operation; returns 0: a visit read a wrong value. */
static int run(const operation* o) {
    int is_right = 1;
    for (int k = 0; k < o->n_ranges; k++) {
        const range* r = &o->ranges[k];
        for (int64_t b = r->begin; b < r->end && o->kind == MEMOB_OP_VISIT; b++)
            is_right &= r->expected < 0 || memory[b] == r->expected;
    }
    for (int k = 0; k < o->n_ranges; k++) {
        const range* r = &o->ranges[k];
        for (int64_t b = r->begin; b < r->end && o->kind == MEMOB_OP_VISIT && r->left >= 0; b++)
            memory[b] = r->left;
        if (o->kind == MEMOB_OP_VISIT || !(k & 1)) continue;
        memcpy(&memory[r->begin], &memory[o->ranges[k - 1].begin],
               (size_t)(r->end - r->begin) * sizeof *memory);
    }
    return is_right;
}

/* In the order of enqueueing, without copy `range` of operation `without`; -1: with all.  Returns
 * the number of visits with a wrong value; -1: the copy changes no byte. */
static int run_in_order(int without, int copy) {
    int n_wrong = 0;
    memcpy(memory, start, sizeof memory);
    for (int i = 0; i < n_ops; i++) {
        operation o = ops[i];
        if (i == without) {
            const range *from = &o.ranges[2 * copy], *to = from + 1;
            if (!memcmp(&memory[from->begin], &memory[to->begin],
                        (size_t)(to->end - to->begin) * sizeof *memory))
                return -1;
            o.ranges[2 * copy].end = o.ranges[2 * copy].begin;
            o.ranges[2 * copy + 1].end = o.ranges[2 * copy + 1].begin;
        }
        n_wrong += !run(&o);
    }
    return n_wrong;
}

/* In a random order that streams and waits allow. */
static int run_in_random_order(void) {
    static char is_done[OPS_MAX];
    int next[MEMOB_N_STREAMS], n_left = n_ops, n_wrong = 0;
    memcpy(memory, start, sizeof memory);
    memset(is_done, 0, sizeof is_done);
    for (int s = 0; s < MEMOB_N_STREAMS; s++)
        for (next[s] = 0; next[s] < n_ops && ops[next[s]].stream != s;) next[s]++;
    while (n_left) {
        const int s = pick(0, MEMOB_N_STREAMS - 1);
        int is_ready = next[s] < n_ops;
        for (int k = 0; is_ready && k < ops[next[s]].n_waits; k++)
            if (!is_done[ops[next[s]].waits[k]]) is_ready = 0;
        if (!is_ready) continue;
        n_wrong += !run(&ops[next[s]]);
        is_done[next[s]++] = 1;
        n_left--;
        while (next[s] < n_ops && ops[next[s]].stream != s) next[s]++;
    }
    return n_wrong;
}

static int conflict(const operation* a, const operation* b) {
    for (int i = 0; i < a->n_ranges; i++)
        for (int k = 0; k < b->n_ranges; k++)
            if (a->ranges[i].begin < b->ranges[k].end && b->ranges[k].begin < a->ranges[i].end &&
                (a->ranges[i].left >= 0 || b->ranges[k].left >= 0))
                return 1;
    return 0;
}

/* Pairs without a path between them; without a wait of an operation (-1: with all). */
static int count_races(int without, int wait) {
    static uint64_t before[OPS_MAX][OPS_MAX / 64];
    static char is_known, pairs[OPS_MAX][OPS_MAX];
    int latest[MEMOB_N_STREAMS], n_races = 0;
    for (int s = 0; s < MEMOB_N_STREAMS; s++) latest[s] = -1;
    if (without < 0) is_known = 0;
    for (int i = 0; i < n_ops; i++) {
        const int n_words = n_ops / 64 + 1;
        memset(before[i], 0, sizeof before[i]);
        for (int k = -1; k < ops[i].n_waits; k++) {
            const int from = k < 0 ? latest[ops[i].stream] : ops[i].waits[k];
            if (from < 0 || (i == without && k == wait)) continue;
            for (int w = 0; w < n_words; w++) before[i][w] |= before[from][w];
            before[i][from / 64] |= (uint64_t)1 << from % 64;
        }
        latest[ops[i].stream] = i;
        for (int k = 0; k < i; k++) {
            if (!is_known)
                pairs[i][k] = ops[i].stream != ops[k].stream && conflict(&ops[i], &ops[k]);
            n_races += pairs[i][k] && !(before[i][k / 64] >> k % 64 & 1);
        }
    }
    is_known = 1;
    return n_races;
}

/* Each wait alone is needed, and each copy. */
static void check_all_needed(void) {
    for (int i = 0; i < n_ops; i++)
        for (int w = 0; w < ops[i].n_waits; w++) CHECK(count_races(i, w) > 0);
    for (int i = 0; i < n_ops && p.n_lists == 3; i++)
        for (int c = 0; ops[i].kind != MEMOB_OP_VISIT && c < ops[i].n_ranges / 2; c++) {
            int n_wrong;
            if (ops[i].list >= p.n_sequence - 2) continue; /* what follows may lie behind the end */
            n_wrong = run_in_order(i, c);
            n_copies_dropped += n_wrong > 0;
            n_same += n_wrong == -1;
            CHECK(n_wrong != 0);
        }
}

/* ---- windows ---- */

static int64_t n_reads, n_left_out; /* of items that end with their list; loads without a read */

/* A load of an item with a home in the file finds the item's bytes in its window: the latest copy
 * there, of the file too, was of the item.  A read is not made if they were there, and comes right
 * behind the copy that frees the window. */
static void check_windows(const memob_law* law, int list) {
    static int32_t has[TIER], freed[TIER]; /* of the host: 1 + item; the operation */
    memset(has, 0, sizeof has);
    memset(freed, 0, sizeof freed);
    for (int k = law->begin[list]; k < law->begin[list + 1]; k++) {
        const memob_op* op = &law->ops[k];
        for (int i = 0; i < op->n_parts && op->kind != MEMOB_OP_VISIT; i++) {
            const memob_part* part = &law->parts[op->first_part + i];
            const memob_item* item = &p.items[part->item];
            const int is_file = op->kind == MEMOB_OP_WRITE || op->kind == MEMOB_OP_READ;
            const int64_t host = is_file ? part->at : part->away;
            int is_there = 1, free_at = 0;
            if (item->file < 0) continue;
            for (int64_t h = host; h < host + item->n_host; h++) {
                is_there &= has[h] == part->item + 1;
                free_at = freed[h] > free_at ? freed[h] : free_at;
                has[h] = part->item + 1;
                if (op->kind != MEMOB_OP_READ || item->lives_on) freed[h] = k;
            }
            if (item->lives_on) continue; /* read before each load */
            if (op->kind == MEMOB_OP_READ) {
                CHECK(!is_there);
                for (int q = free_at + 1; q < k; q++) CHECK(law->ops[q].kind >= MEMOB_OP_WRITE);
                n_reads++;
            }
            if (op->kind == MEMOB_OP_LOAD) {
                CHECK(is_there);
                n_left_out++;
            }
        }
    }
}

/* ---- the clock ---- */

static double ends_s[OPS_MAX];

/* Ends of operations on the clock, against sums along streams and waits. */
static void check_clock(const memob_law* law) {
    memob_clock clock;
    memob_clock_cell* cells =
        (memob_clock_cell*)calloc((size_t)law->n_cells + 1, sizeof(memob_clock_cell));
    double now_s[MEMOB_N_STREAMS] = {0}, stall_s = 0;
    memset(&clock, 0, sizeof clock);
    for (int i = 0, at = 0; i < n_ops; i++) {
        const double span_s = pick(0, 8) / 4.0;
        const memob_op* op;
        double begin_s = now_s[ops[i].stream];
        if (!i || ops[i].list != ops[i - 1].list) at = law->begin[p.sequence[ops[i].list]];
        op = &law->ops[at++];
        for (int w = 0; w < ops[i].n_waits; w++)
            if (ends_s[ops[i].waits[w]] > begin_s) begin_s = ends_s[ops[i].waits[w]];
        if (op->stream == MEMOB_STREAM_COMPUTE) stall_s += begin_s - now_s[op->stream];
        ends_s[i] = now_s[op->stream] = begin_s + span_s;

        memob_clock_begin(&clock, cells, law, op);
        memob_clock_add(&clock, op->stream, span_s);
        memob_clock_end(&clock, cells, law, op);
        CHECK(fabs(clock.time_s[op->stream] - ends_s[i]) < 1e-9);
    }
    CHECK(fabs(clock.stall_s - stall_s) < 1e-9);
    free(cells);
}

/* The law of a few visits. */
static memob_law law_of(int32_t n_visits, const memob_item* items, int32_t n_items,
                        const memob_use* uses, int32_t n_uses, int32_t on_device, int32_t on_host,
                        const char* counts) {
    memob_law_desc desc;
    memob_law law;
    memset(&desc, 0, sizeof desc);
    desc.n_visits = n_visits;
    desc.items = items;
    desc.n_items = n_items;
    desc.uses = uses;
    desc.n_uses = n_uses;
    desc.n_slots[0] = on_device;
    desc.n_slots[1] = on_host;
    desc.counts = counts;
    CHECK(memob_law_make(&desc, &law, &error) == MEMO_STATUS_OK);
    return law;
}

/* Stores behind one visit.  Items whose bytes another item takes at once leave first, though item 0
 * is used again before them; of these two, item 2 is used again first. */
TEST(stores_go_in_the_order_in_which_they_are_awaited) {
    static const memob_item items[] = {
        {8, 8, 0, -1, 0, -1}, {8, 8, 0, -1, 8, -1}, {8, 8, 0, -1, 16, -1}, {16, 16, 0, -1, 24, -1}};
    static const memob_use uses[] = {
        {0, 0, MEMOB_USE_WRITE, 0, 0, -1, 0}, /* read elsewhere by visit 2; nobody takes its bytes */
        {0, 1, MEMOB_USE_WRITE, 0, 8, -1, 0}, {0, 2, MEMOB_USE_WRITE, 0, 16, -1, 0},
        {1, 3, MEMOB_USE_WRITE, 0, 8, -1, 0}, /* takes the bytes of both */
        {2, 0, MEMOB_USE_READ, 0, 32, -1, 0}, {3, 2, MEMOB_USE_READ, 0, 16, -1, 0},
        {4, 1, MEMOB_USE_READ, 0, 8, -1, 0}};
    memob_law law = law_of(5, items, 4, uses, 7, 40, 40, NULL);
    for (int k = 0; k < 3; k++) {
        static const int32_t order[] = {2, 1, 0};
        CHECK(law.ops[1 + k].kind == MEMOB_OP_STORE &&
              law.parts[law.ops[1 + k].first_part].item == order[k]);
    }

    /* How many visits come before the one that waits: 1 and 2 are taken at once, 0 is read behind
     * visit 1.  Then visit 1 does not count. */
    for (int counts = 1; counts >= 0; counts--) {
        const char counted[] = {1, (char)counts, 1, 1, 1};
        memob_law_free(&law);
        law = law_of(5, items, 4, uses, 7, 40, 40, counted);
        for (int k = 0; k < 3; k++)
            CHECK(law.ops[1 + k].need == (k == 2 ? counts : 0) && !law.ops[1 + k].is_load);
    }
    memob_law_free(&law);
}

/* Copies behind an update.  The moment (1) leaves before the weights (0), which a forward still
 * uses, though these come back first.  The next layer's gradient (4) comes before its moment (3) and
 * apart from it: the gradient (2) there is spent, so no store must free its bytes. */
TEST(copies_that_free_bytes_or_need_none_freed_go_first) {
    static const struct {
        int kind, item;
    } behind[] = {{MEMOB_OP_STORE, 1}, {MEMOB_OP_STORE, 0}, {MEMOB_OP_LOAD, 4}, {MEMOB_OP_LOAD, 3}};
    static const memob_use uses[] = {
        {0, 0, MEMOB_USE_CHANGE, 0, 0, -1, 0}, {0, 1, MEMOB_USE_CHANGE, 0, 8, -1, 0},
        {0, 2, MEMOB_USE_READ, 0, 16, -1, 0},  {1, 0, MEMOB_USE_READ, 0, 0, -1, 0},
        {2, 3, MEMOB_USE_CHANGE, 0, 8, -1, 0}, {2, 4, MEMOB_USE_READ, 0, 16, -1, 0},
        {2, 5, MEMOB_USE_CHANGE, 0, 0, -1, 0}, {3, 0, MEMOB_USE_READ, 0, 0, -1, 0},
        {4, 1, MEMOB_USE_READ, 0, 8, -1, 0}};
    memob_item items[6];
    for (int i = 0; i < 6; i++) {
        const memob_item item = {8, 8, 1, -1, 8 * i, -1};
        items[i] = item;
    }
    memob_law law = law_of(5, items, 6, uses, 9, 24, 48, NULL);
    for (int k = 0; k < 4; k++) {
        const memob_op* op = &law.ops[law.visit_ops[0] + 1 + k];
        CHECK(op->kind == behind[k].kind && op->n_parts == 1 &&
              law.parts[op->first_part].item == behind[k].item);
    }
    memob_law_free(&law);
}

/* A hidden state (0) leaves to where the next layer's copy of it (1) waits: one store is both. */
TEST(a_store_serves_a_copy_of_its_value) {
    static const memob_item items[] = {
        {8, 8, 0, -1, 0, -1}, {8, 8, 0, 0, 8, -1}, {8, 8, 0, -1, 16, -1}, {8, 8, 0, -1, 24, -1}};
    for (int is_elsewhere = 0; is_elsewhere < 2; is_elsewhere++) {
        const memob_use uses[] = {{0, 0, MEMOB_USE_WRITE, 0, 0, is_elsewhere ? -1 : 8, 0},
                                  {1, 3, MEMOB_USE_WRITE, 0, 0, -1, 0}, /* takes its bytes */
                                  {2, 0, MEMOB_USE_CHANGE, 0, 0, -1, 0},
                                  {2, 1, MEMOB_USE_WRITE, 0, 8, -1, 0},
                                  {3, 2, MEMOB_USE_WRITE, 0, 8, -1, 0}, /* takes the copy's */
                                  {4, 1, MEMOB_USE_READ, 0, 8, -1, 0}};
        memob_law law = law_of(5, items, 4, uses, 6, 16, 32, NULL);
        int n_stores = 0, n_loads = 0;
        for (int k = law.begin[0]; k < law.begin[1]; k++) {
            const memob_op* op = &law.ops[k];
            const memob_part* part = &law.parts[op->first_part];
            n_stores += op->kind == MEMOB_OP_STORE;
            n_loads += op->kind == MEMOB_OP_LOAD;
            CHECK(op->kind != MEMOB_OP_LOAD || is_elsewhere || part->away == 8);
        }
        CHECK(n_stores == 1 + is_elsewhere && n_loads == 2);
        memob_law_free(&law);
    }
}

/* A list's operations are those of the list before if that one and the one before it have all
 * visits: transfers may share an operation behind a first list that has no deferred updates. */
static void check_repeats(void) {
    memob_law law;
    const memob_op *a, *b;
    int n, first = 1;
    for (int v = 0; v < p.list.n_visits; v++)
        if (p.list.visits[v].is_deferred) first = 2;
    p.lists[3] = p.lists[4] = LIST_EVERY;
    p.desc.n_lists = first + 3;
    CHECK(memob_law_make(&p.desc, &law, &error) == MEMO_STATUS_OK);
    n = law.begin[first + 1] - law.begin[first];
    CHECK(law.begin[first + 2] - law.begin[first + 1] == n);
    for (int k = 0; k < n; k++) {
        a = &law.ops[law.begin[first] + k];
        b = &law.ops[law.begin[first + 1] + k];
        CHECK(a->kind == b->kind && a->visit == b->visit && a->n_parts == b->n_parts &&
              a->n_touches == b->n_touches && a->list == first && b->list == first + 1);
        for (int i = 0; i < a->n_parts && i < b->n_parts; i++)
            CHECK(law.parts[a->first_part + i].item == law.parts[b->first_part + i].item &&
                  law.parts[a->first_part + i].at == law.parts[b->first_part + i].at &&
                  law.parts[a->first_part + i].away == law.parts[b->first_part + i].away);
    }
    memob_law_free(&law);
}

/* Each visit of a step once, in an order that training allows. */
TEST(lists) {
    for (int round = 0; round < 500; round++) {
        const list_desc* d = &p.list.desc;
        static int16_t at[3][8][4][4]; /* pass, layer + 1, slice, micro-batch: 1 + visit */
        int n = 0;
        list_free(&p.list);
        random_list();
        memset(at, 0, sizeof at);
        for (int v = 0; v < p.list.n_visits; v++) {
            const list_visit* x = &p.list.visits[v];
            int16_t* seen = &at[x->pass][x->layer + 1][x->slice][x->micro_batch];
            CHECK(x->layer >= -d->has_ends && x->layer < d->n_layers + d->has_ends && !*seen);
            CHECK(x->is_deferred == (x->pass == MEMOB_UPDATE && d->update == MEMO_UPDATE_DEFERRED));
            *seen = (int16_t)(v + 1);
        }
        for (int l = d->has_ends ? -1 : 0; l < d->n_layers + d->has_ends; l++) {
            const int n_slices = l < 0 || l == d->n_layers ? 1 : d->n_slices;
            const int update = at[MEMOB_UPDATE][l + 1][0][0];
            int first = INT_MAX, last = 0;
            for (int m = 0; m < d->n_micro_batches; m++)
                for (int s = 0; s < n_slices; s++) {
                    const int forward = at[MEMOB_FORWARD][l + 1][s][m];
                    const int backward = at[MEMOB_BACKWARD][l + 1][s][m];
                    n += 1 + !d->is_forward_only;
                    CHECK(forward && (backward == 0) == d->is_forward_only);
                    CHECK(d->is_forward_only || forward < backward);
                    if (forward < first) first = forward;
                    last = backward > last ? backward : last;
                }
            n += d->update != 0;
            CHECK((update == 0) == (d->update == 0));
            if (d->update == MEMO_UPDATE_DEFERRED) CHECK(update == first - 1);
            if (d->update == MEMO_UPDATE_FUSED) CHECK(update == last + 1);
            if (d->update == MEMO_UPDATE_PASS)
                CHECK(update > p.list.n_visits - d->n_layers - 2 * d->has_ends);
        }
        CHECK(n == p.list.n_visits);
    }
    list_free(&p.list);
}

/* Counts loads and stores of weights in a step behind others: of six layers in two places, with an
 * update behind all micro-batches. */
static void count_weights(int32_t order, int32_t n_batches, int64_t* counts) {
    enum { LAYERS = 6, VISITS = LAYERS * (2 * 8 + 1) };
    static memob_item items[LAYERS];
    static memob_use uses[VISITS];
    list_desc of_list;
    step_list list;
    memob_law_desc desc;
    memob_law law;
    memset(&of_list, 0, sizeof of_list);
    memset(&desc, 0, sizeof desc);
    of_list.n_layers = LAYERS;
    of_list.n_micro_batches = n_batches;
    of_list.order = order;
    of_list.update = MEMO_UPDATE_PASS;
    CHECK(list_make(&of_list, &list, &error) == MEMO_STATUS_OK);
    for (int l = 0; l < LAYERS; l++) {
        const memob_item item = {8, 8, 1, -1, 8 * l, -1};
        items[l] = item;
    }
    for (int v = 0; v < list.n_visits; v++) {
        const int layer = list.visits[v].layer, is_update = list.visits[v].pass == MEMOB_UPDATE;
        const memob_use use = {
            v, layer, is_update ? MEMOB_USE_CHANGE : MEMOB_USE_READ, 0, 8 * (layer & 1), -1, 0};
        uses[v] = use;
    }

    desc.n_visits = desc.n_uses = list.n_visits;
    desc.items = items;
    desc.n_items = LAYERS;
    desc.n_slots[0] = 16;
    desc.n_slots[1] = 8 * LAYERS;
    desc.uses = uses;
    desc.n_lists = 3;
    CHECK(memob_law_make(&desc, &law, &error) == MEMO_STATUS_OK);
    counts[0] = counts[1] = 0;
    for (int k = law.begin[1]; k < law.begin[2]; k++) {
        if (law.ops[k].kind == MEMOB_OP_LOAD) counts[0] += law.ops[k].n_parts;
        if (law.ops[k].kind == MEMOB_OP_STORE) counts[1] += law.ops[k].n_parts;
    }
    memob_law_free(&law);
    list_free(&list);
}

/* Layer by layer, weights cross the link as often for eight micro-batches as for one; one
 * micro-batch after the other, forward and backward of each fetch all but the two layers that lie
 * there. */
TEST(weights_cross_once_a_step_layer_by_layer) {
    int64_t one[2], by_layers[2], by_batches[2];
    count_weights(LIST_BATCHES, 1, one);
    for (int32_t n = 1; n <= 8; n++) {
        count_weights(LIST_LAYERS, n, by_layers);
        count_weights(LIST_BATCHES, n, by_batches);
        CHECK(by_layers[0] == one[0] && by_layers[1] == one[1]);
        CHECK(by_batches[0] == one[0] + 8 * (n - 1) && by_batches[1] == one[1]);
    }
    printf("# eight micro-batches: %lld loads layer by layer, %lld one after the other\n",
           (long long)by_layers[0], (long long)by_batches[0]);
}

TEST(random_lists) {
    const int n = memo_test_cases(300, 10000);
    const uint64_t seed = memo_test.state;
    for (int k = 0; k < n; k++) {
        memob_law law;
        memo_status status;
        memo_test.state = seed + (uint64_t)k * 1000003;
        snprintf(memo_test.case_name, sizeof memo_test.case_name, "case %d", k);
        if (!random_problem()) continue;
        status = memob_law_make(&p.desc, &law, &error);
        CHECK(status == MEMO_STATUS_OK);
        for (int list = 0; list < p.n_lists; list++) check_windows(&law, list);
        play(&law);
        CHECK(count_races(-1, -1) == 0);
        CHECK(run_in_order(-1, -1) == 0);
        for (int r = 0; r < 3; r++) CHECK(run_in_random_order() == 0);
        if (n_ops < 400 && k % 4 == 0) check_all_needed();
        if (p.n_lists == 3) check_clock(&law);
        if (p.n_lists == 3) check_repeats();
        memob_law_free(&law);
    }
    printf("# %d problems: %lld operations, %lld waits, %lld copies dropped and found, %lld of the "
           "same bytes\n",
           n, (long long)n_ops_all, (long long)n_waits_all, (long long)n_copies_dropped,
           (long long)n_same);
    printf("# %lld reads of rows, %lld loads of rows in the file\n", (long long)n_reads,
           (long long)n_left_out);
    CHECK(n_reads > n / 10 && n_left_out > n_reads);
    list_free(&p.list);
}
