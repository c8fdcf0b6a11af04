/* test_messages.c - the list of messages of a ring: what each rank reads and computes, pair by pair;
 * turns, room by room; and the time that a pass takes by the list. */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "memo_test.h"
#include "made_mask.h"
#include "kept_sharding.h"
#include "owned.h"

enum { MOST_RING = 9, MOST_TOKENS = 220 };

/* ---- what each rank reads ---- */

/* Random documents, on a ring. */
typedef struct case_of_pairs {
    int64_t n_tokens, begins[MOST_TOKENS + 1], parents[MOST_TOKENS], n_documents;
    memo_sharding sharding;
    memo_mask mask;
    int32_t holders[MOST_TOKENS], n_levels;
} case_of_pairs;

static void make_case(case_of_pairs* c, int i) {
    memo_mask_desc mask_desc = {.kind = i % 4 == 3 ? MEMO_MASK_FULL : MEMO_MASK_CAUSAL};
    memo_sharding_desc desc = {.kind = (memo_sharding_kind)(i % 3)};
    const int is_tree = i % 3 == 2 && i % 4 == 0;
    desc.ring = (int32_t)memo_test_int(1, MOST_RING);
    c->n_tokens = desc.n_tokens = mask_desc.n_tokens = memo_test_int(2 * MOST_RING, MOST_TOKENS);
    c->n_documents = memo_test_int(1, 20);
    c->begins[0] = 0;
    for (int64_t k = 1; k <= c->n_documents; k++)
        c->begins[k] =
            k == c->n_documents ? c->n_tokens : memo_test_int(c->begins[k - 1], c->n_tokens);
    for (int64_t k = 0; k < c->n_documents; k++) c->parents[k] = k % 4 ? k - k % 4 : -1;
    mask_desc.document_begins = c->begins;
    mask_desc.n_documents = c->n_documents;
    if (is_tree)
        desc.document_parents = mask_desc.document_parents = c->parents;
    else if (i % 5 < 3)
        mask_desc.window_before = memo_test_int(1, 60);
    if (desc.kind == MEMO_SHARDING_DOCUMENTS) {
        desc.document_begins = c->begins;
        desc.n_documents = c->n_documents;
    }
    CHECK_OK(keep_sharding(&desc, &c->sharding, &error));
    c->mask = made_mask(&mask_desc);
    c->n_levels = 1;
    for (int64_t k = 0; k < c->mask.n_segments; k++)
        if (c->mask.segments[k].level >= c->n_levels) c->n_levels = c->mask.segments[k].level + 1;
    for (int32_t r = 0; r < desc.ring; r++)
        for (int64_t row = 0; row < c->sharding.local_tokens; row++) {
            const int64_t at = memo_sharding_position(&c->sharding, r, row);
            if (at < c->n_tokens) c->holders[at] = r;
        }
}

/* Rows and pairs of each reader with keys of each owner, one by one. */
static void count_pairs(const case_of_pairs* c, int64_t* rows, int64_t* pairs) {
    const int32_t n = c->sharding.ring;
    own_memory char* reads = (char*)calloc((size_t)(n * c->n_tokens), 1);
    for (int64_t k = 0; k < c->mask.n_segments; k++)
        for (int64_t q = c->mask.segments[k].q_begin; q < c->mask.segments[k].q_end; q++) {
            int64_t begin, end;
            memo_segment_keys(&c->mask.segments[k], q, &begin, &end);
            for (int64_t key = begin; key < end; key++) {
                reads[c->holders[q] * c->n_tokens + key] = 1;
                pairs[c->holders[q] * n + c->holders[key]]++;
            }
        }
    for (int32_t r = 0; r < n; r++)
        for (int64_t key = 0; key < c->n_tokens; key++)
            rows[r * n + c->holders[key]] += reads[r * c->n_tokens + key];
}

/* Masks by levels, as an exchange has them. */
static void take_levels(const case_of_pairs* c, memo_segment* seen, int64_t* first_seen) {
    int64_t n = 0;
    for (int32_t level = 0; level < c->n_levels; level++) {
        first_seen[level] = n;
        for (int64_t k = 0; k < c->mask.n_segments; k++)
            if (c->mask.segments[k].level == level) seen[n++] = c->mask.segments[k];
    }
    first_seen[c->n_levels] = n;
}

TEST(rows_and_pairs_of_ranks_are_counted) {
    int64_t n_pairs = 0;
    for (int i = 0; i < memo_test_cases(300, 3000); i++) {
        static case_of_pairs c;
        int64_t rows[MOST_RING * MOST_RING] = {0}, pairs[MOST_RING * MOST_RING] = {0};
        int64_t first_seen[MEMO_LEVELS_MAX + 1];
        memob_arrays arrays = MEMO_ZERO(memob_arrays);
        memoi_shape_tokens tokens = MEMO_ZERO(memoi_shape_tokens);
        memoi_pairs p = MEMO_ZERO(memoi_pairs);
        make_case(&c, i);
        count_pairs(&c, rows, pairs);
        memo_segment* seen = MEMOB_ARRAY(&arrays, memo_segment, c.mask.n_segments + 1);
        take_levels(&c, seen, first_seen);
        memoi_exchange_take_tokens(&tokens, &c.sharding, &arrays);
        p.seen = seen;
        p.first_seen = first_seen;
        p.n_levels = c.n_levels;
        p.n_ranks = c.sharding.ring;
        p.most = MEMOI_PIECES_MAX;
        p.queries = &tokens;
        memoi_pairs_take_masks(&p, 1, tokens.max_runs, c.n_tokens, &arrays);
        memoi_pairs_take_keys(&p, &tokens, &arrays);
        CHECK(!arrays.failed);
        for (int32_t r = 0; r < c.sharding.ring; r++) {
            memoi_pairs_ask(&p, 0, r);
            for (int32_t owner = 0; owner < c.sharding.ring; owner++) {
                const int64_t at = r * c.sharding.ring + owner;
                IN_CASE("case %d, reader %d, owner %d", i, (int)r, (int)owner);
                CHECK_IS(p.pieces[owner].n_rows, ==, rows[at]);
                CHECK_IS(p.work[owner], ==, 2 * pairs[at]);
                n_pairs += pairs[at];
            }
        }
        memob_arrays_free(&arrays);
        made_mask_free(&c.mask);
    }
    printf("# %lld pairs\n", (long long)n_pairs);
}

/* ---- the list ---- */

enum { MOST_RANKS = 12 };

/* Random rows and work; some ranks read nothing of others. */
typedef struct case_of_list {
    memoi_shape shape;
    int64_t rows[MOST_RANKS * MOST_RANKS], work[MOST_RANKS * MOST_RANKS];
    memoi_messages m;
} case_of_list;

static void make_list(case_of_list* c, int i, memob_arrays* arrays) {
    const int32_t n = (int32_t)memo_test_int(1, MOST_RANKS);
    const int64_t each = memo_test_int(1, 200), kind = i % 4;
    memset(c, 0, sizeof *c);
    c->shape.n_batch = 1;
    c->shape.type = MEMO_TYPE_BF16;
    c->shape.carried_type = i % 2 ? MEMO_TYPE_F32 : MEMO_TYPE_BF16;
    c->shape.key_sharding.ring_tokens = each;
    for (int32_t r = 0; r < n; r++)
        for (int32_t owner = 0; owner < n; owner++) {
            const int has_rows = kind == 0 || memo_test_int(0, kind) == 0;
            c->rows[r * n + owner] = r != owner && has_rows ? memo_test_int(1, each) : 0;
            c->work[r * n + owner] =
                has_rows || r == owner ? memo_test_int(0, kind == 3 ? 100000 : 1000) : 0;
        }
    c->m.shape = &c->shape;
    c->m.n_ranks = n;
    c->m.rows_of = c->rows;
    c->m.work_of = c->work;
    memoi_messages_make(&c->m, arrays);
    CHECK(!arrays->failed);
}

/* In each turn a rank has at most one message of a kind and way. */
static void check_turns(const case_of_list* c, int is_backward) {
    const memoi_messages* m = &c->m;
    const int32_t n = memoi_messages_count(m) * (1 + is_backward);
    int32_t last[4][MOST_RANKS], n_seen[2] = {0, 0};
    memset(last, -1, sizeof last);
    for (int32_t i = 0; i < n; i++) {
        const memoi_messages_event* event = &m->events[is_backward][i];
        const memoi_ring_message* x = &m->list[event->message];
        int32_t* ends[2] = {&last[2 * event->is_given][x->reader],
                            &last[2 * event->is_given + 1][x->owner]};
        CHECK(!i || event[-1].turn <= event->turn);
        for (int k = 0; k < 2; k++) {
            CHECK_IS(*ends[k], <, event->turn);
            *ends[k] = event->turn;
        }
        n_seen[event->is_given]++;
    }
    for (int k = 0; k <= is_backward; k++) CHECK_IS(n_seen[k], ==, memoi_messages_count(m));
}

/* The state of a rank that runs the list: streams begin what stands first when all that it waits for
 * has ended. */
typedef struct running {
    int32_t turn;       /* of its next exchange, as an index of events; -1: none */
    int32_t n_computed; /* steps */
    char has_keys[MOST_RANKS + 1], has_given[MOST_RANKS + 1];
} running;

/* Ranks run turns one by one, each when its own gates are open, and both ends of its messages are at
 * this turn: all end, whatever takes how long. */
static void run_list(const case_of_list* c, int is_backward) {
    const memoi_messages* m = &c->m;
    const int32_t n = m->n_ranks, n_events = memoi_messages_count(m) * (1 + is_backward);
    const memoi_messages_event* events = m->events[is_backward];
    running ranks[MOST_RANKS] = {{0}};
    own_memory char* done = (char*)calloc((size_t)n_events + 1, 1);
    int32_t n_done = 0, has_changed = 1;
    while (has_changed) {
        has_changed = 0;
        /* Steps whose keys are there and whose contribution has room. */
        for (int32_t r = 0; r < n; r++)
            while (ranks[r].n_computed < memoi_messages_steps(m, r)) {
                const int32_t s = ranks[r].n_computed + 1;
                const int32_t after = memoi_messages_of(m, r, s)->after[MEMOI_POOL_GRADIENTS];
                if (!ranks[r].has_keys[s]) break;
                if (is_backward && after && !ranks[r].has_given[after]) break;
                ranks[r].n_computed++;
                has_changed = 1;
            }

        /* The turn of a rank: its first event that is not done. */
        for (int32_t r = 0; r < n; r++) {
            ranks[r].turn = -1;
            for (int32_t i = 0; i < n_events && ranks[r].turn < 0; i++) {
                const memoi_ring_message* x = &m->list[events[i].message];
                if (!done[i] && (x->reader == r || x->owner == r)) ranks[r].turn = events[i].turn;
            }
            for (int32_t i = 0; i < n_events; i++) { /* closed gates */
                const memoi_ring_message* x = &m->list[events[i].message];
                const int32_t gate = events[i].is_given ? x->step : x->after[MEMOI_POOL_KEYS];
                if (events[i].turn == ranks[r].turn && x->reader == r && gate > ranks[r].n_computed)
                    ranks[r].turn = -1;
            }
        }
        for (int32_t i = 0; i < n_events; i++) {
            const memoi_ring_message* x = &m->list[events[i].message];
            if (done[i] || ranks[x->reader].turn != events[i].turn ||
                ranks[x->owner].turn != events[i].turn)
                continue;
            (events[i].is_given ? ranks[x->reader].has_given : ranks[x->reader].has_keys)[x->step] =
                1;
            done[i] = 1;
            n_done++;
            has_changed = 1;
        }
    }
    CHECK_IS(n_done, ==, n_events);
}

TEST(no_two_ranks_wait_for_each_other) {
    for (int i = 0; i < memo_test_cases(400, 4000); i++) {
        static case_of_list c;
        memob_arrays arrays = MEMO_ZERO(memob_arrays);
        make_list(&c, i, &arrays);
        IN_CASE("case %d, %d ranks", i, (int)c.m.n_ranks);
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            check_turns(&c, is_backward);
            run_list(&c, is_backward);
        }
        memob_arrays_free(&arrays);
    }
}

/* Every rank makes the list that the others make: it depends on what ranks read alone. */
TEST(a_list_takes_at_most_the_time_by_distance) {
    double saved = 0;
    const int n = memo_test_cases(200, 2000);
    for (int i = 0; i < n; i++) {
        static case_of_list c;
        memob_arrays arrays = MEMO_ZERO(memob_arrays);
        int64_t times[2] = {0, 0};
        make_list(&c, i, &arrays);
        memoi_messages plain = c.m;
        plain.list = MEMOB_ARRAY(&arrays, memoi_ring_message, MOST_RANKS * MOST_RANKS + 1);
        plain.first_of_rank = MEMOB_ARRAY(&arrays, int32_t, MOST_RANKS + 1);
        memoi_messages_by_distance(&plain, &arrays);
        for (int pass = 0; pass < 2; pass++) {
            memoi_messages_sort(&plain, pass, &arrays);
            times[0] += memoi_messages_time(&c.m, pass, &arrays);
            times[1] += memoi_messages_time(&plain, pass, &arrays);
        }
        IN_CASE("case %d", i);
        CHECK_IS(times[0], <=, times[1]);
        saved += times[1] ? 1 - (double)times[0] / (double)times[1] : 0;
        memob_arrays_free(&arrays);
    }
    printf("# %.3f less in the mean\n", saved / n);
}
