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

/* Random rows and work, on nodes or not; some ranks read nothing of others. */
typedef struct case_of_list {
    memoi_shape shape;
    int64_t rows[MOST_RANKS * MOST_RANKS], work[MOST_RANKS * MOST_RANKS];
    int64_t crossing[MOST_RANKS * MOST_RANKS];
    char is_whole[MOST_RANKS];
    memoi_messages m;
} case_of_list;

/* A node reads at least what any of its ranks reads, and at most all rows. */
static void make_crossings(case_of_list* c, int32_t n, int32_t n_nodes, int64_t each) {
    const int32_t per = n / n_nodes;
    for (int32_t owner = 0; owner < n; owner++)
        for (int32_t node = 0; node < n_nodes; node++) {
            int64_t* rows = &c->crossing[owner * n_nodes + node];
            *rows = 0;
            if (owner / per == node) continue;
            for (int32_t r = node * per; r < (node + 1) * per; r++)
                if (c->rows[r * n + owner] > *rows) *rows = c->rows[r * n + owner];
            if (*rows) *rows = memo_test_int(*rows, each);
        }
}

static void start_list(case_of_list* c, int32_t n, int32_t n_nodes, int64_t each) {
    memset(c, 0, sizeof *c);
    c->shape.n_batch = 1;
    c->shape.type = MEMO_TYPE_BF16;
    c->shape.carried_type = memo_test_int(0, 1) ? MEMO_TYPE_F32 : MEMO_TYPE_BF16;
    c->shape.key_sharding.ring_tokens = each;
    c->m.shape = &c->shape;
    c->m.n_ranks = n;
    c->m.n_nodes = n_nodes;
    c->m.rows_of = c->rows;
    c->m.work_of = c->work;
    c->m.crossing_rows = c->crossing;
    c->m.is_whole = c->is_whole;
}

static void make_list(case_of_list* c, int i, memob_arrays* arrays) {
    const int32_t n = (int32_t)memo_test_int(1, MOST_RANKS);
    const int64_t each = memo_test_int(1, 200), kind = i % 4;
    int32_t n_nodes = (int32_t)memo_test_int(1, 4);
    while (n % n_nodes) n_nodes--;
    start_list(c, n, n_nodes, each);
    for (int32_t r = 0; r < n; r++)
        for (int32_t owner = 0; owner < n; owner++) {
            const int has_rows = kind == 0 || memo_test_int(0, kind) == 0;
            c->rows[r * n + owner] = r != owner && has_rows ? memo_test_int(1, each) : 0;
            c->work[r * n + owner] =
                has_rows || r == owner ? memo_test_int(0, kind == 3 ? 100000 : 1000) : 0;
        }
    for (int32_t r = 0; r < n; r++) c->is_whole[r] = (char)memo_test_int(0, 1);
    make_crossings(c, n, n_nodes, each);
    memoi_messages_make(&c->m, arrays);
    CHECK(!arrays->failed);
}

/* An event: its ends, and the two messages that it may be. */
typedef struct seen_event {
    int32_t from, to, is_far;
    const memoi_ring_message* x;
    const memoi_ring_crossing* c;
} seen_event;

static seen_event see(const memoi_messages* m, const memoi_messages_event* event) {
    seen_event e = {.is_far = event->turn % 2};
    if (e.is_far)
        e.c = &m->crossings[event->index];
    else
        e.x = &m->list[event->index];
    e.from = e.is_far ? e.c->owner : e.x->source;
    e.to = e.is_far ? e.c->holder : e.x->reader;
    if (event->is_given) {
        const int32_t from = e.from;
        e.from = e.to;
        e.to = from;
    }
    return e;
}

/* In each turn a rank has at most one message of a kind and way. */
static void check_turns(const case_of_list* c, int is_backward) {
    const memoi_messages* m = &c->m;
    int32_t last[2][4][MOST_RANKS], n_own = 0;
    memset(last, -1, sizeof last);
    for (int32_t i = 0; i < m->n_events[is_backward]; i++) {
        const memoi_messages_event* event = &m->events[is_backward][i];
        const seen_event e = see(m, event);
        int32_t* ends[2] = {&last[e.is_far][2 * event->is_given][e.from],
                            &last[e.is_far][2 * event->is_given + 1][e.to]};
        CHECK(!i || event[-1].turn <= event->turn);
        for (int k = 0; k < 2; k++) {
            CHECK_IS(*ends[k], <, event->turn);
            *ends[k] = event->turn;
        }
    }
    for (int32_t i = 0; i < memoi_messages_count(m); i++)
        n_own += m->list[i].source == m->list[i].reader;
    CHECK_IS(m->n_events[is_backward], ==,
             (memoi_messages_count(m) + memoi_messages_crossings(m)) * (1 + is_backward) - n_own);
}

/* The state of ranks that run a list: streams begin what stands first when all that it waits for has
 * ended. */
typedef struct running {
    const memoi_messages* m;
    int is_backward;
    int32_t n_computed[MOST_RANKS];
    char has_keys[MOST_RANKS * MOST_RANKS], has_given[MOST_RANKS * MOST_RANKS]; /* of messages */
    char has_rows[MOST_RANKS * MOST_RANKS], has_sum[MOST_RANKS * MOST_RANKS];   /* of crossings */
} running;

static int has_computed(const running* r, const memoi_ring_message* x) {
    return r->n_computed[x->reader] >= x->step;
}

/* Has a crossing's room no reader any more, and no sum? */
static int is_free(const running* r, int32_t c) {
    const memoi_messages* m = r->m;
    for (int32_t i = 0; i < memoi_messages_count(m); i++) {
        const memoi_ring_message* x = &m->list[i];
        if (x->crossing == c && !(x->source == x->reader ? has_computed(r, x) : r->has_keys[i]))
            return 0;
    }
    return !r->is_backward || r->has_sum[c];
}

/* May an event begin?  All that it reads is there, and nobody uses the room that it fills. */
static int may_begin(const running* r, const memoi_messages_event* event) {
    const memoi_messages* m = r->m;
    const seen_event e = see(m, event);
    if (!e.is_far) {
        if (event->is_given) return has_computed(r, e.x);
        if (e.x->crossing >= 0 && !r->has_rows[e.x->crossing]) return 0;
        return r->n_computed[e.x->reader] >= e.x->after[MEMOI_POOL_KEYS];
    }
    for (int32_t i = 0; i < memoi_messages_count(m) && event->is_given; i++)
        if (m->list[i].crossing == event->index && !r->has_given[i]) return 0;
    for (int32_t k = 0; k < memoi_messages_crossings(m) && !event->is_given; k++) {
        const memoi_ring_crossing* before = &m->crossings[k];
        if (before->holder == e.c->holder && before->number < e.c->number &&
            before->row < e.c->row + e.c->n_rows && e.c->row < before->row + before->n_rows &&
            !is_free(r, k))
            return 0;
    }
    return 1;
}

/* Steps whose keys are there and whose contribution has room. */
static int compute_steps(running* r) {
    const memoi_messages* m = r->m;
    int has_changed = 0;
    for (int32_t rank = 0; rank < m->n_ranks; rank++)
        while (r->n_computed[rank] < memoi_messages_steps(m, rank)) {
            const memoi_ring_message* x = memoi_messages_of(m, rank, r->n_computed[rank] + 1);
            const int32_t after = x->after[MEMOI_POOL_GRADIENTS];
            const int is_own = x->source == rank;
            if (is_own ? !r->has_rows[x->crossing] : !r->has_keys[x - m->list]) break;
            if (r->is_backward && after &&
                !r->has_given[memoi_messages_of(m, rank, after) - m->list])
                break;
            r->n_computed[rank]++;
            has_changed = 1;
        }
    return has_changed;
}

/* Ranks run turns one by one, of both streams in the order in which they are enqueued, each when its
 * own gates are open, and both ends of its messages are at this turn: all end, whatever takes how
 * long. */
static void run_list(const case_of_list* c, int is_backward) {
    const memoi_messages* m = &c->m;
    const int32_t n_events = m->n_events[is_backward];
    const memoi_messages_event* events = m->events[is_backward];
    static running r;
    own_memory char* done = (char*)calloc((size_t)n_events + 1, 1);
    int32_t n_done = 0, has_changed = 1, turns[MOST_RANKS];
    memset(&r, 0, sizeof r);
    r.m = m;
    r.is_backward = is_backward;
    while (has_changed) {
        has_changed = compute_steps(&r);

        /* The turn of a rank: its first event that is not done, if all its events may begin. */
        for (int32_t rank = 0; rank < m->n_ranks; rank++) turns[rank] = -1;
        for (int32_t i = n_events; i-- > 0;) {
            const seen_event e = see(m, &events[i]);
            if (!done[i]) turns[e.from] = turns[e.to] = events[i].turn;
        }
        for (int32_t i = 0; i < n_events; i++) {
            const seen_event e = see(m, &events[i]);
            if (done[i] || may_begin(&r, &events[i])) continue;
            if (turns[e.from] == events[i].turn) turns[e.from] = -1;
            if (turns[e.to] == events[i].turn) turns[e.to] = -1;
        }
        for (int32_t i = 0; i < n_events; i++) {
            const seen_event e = see(m, &events[i]);
            const int32_t k = events[i].index, is_given = events[i].is_given;
            if (done[i] || turns[e.from] != events[i].turn || turns[e.to] != events[i].turn)
                continue;
            if (e.is_far)
                (is_given ? r.has_sum : r.has_rows)[k] = 1;
            else
                (is_given ? r.has_given : r.has_keys)[k] = 1;
            done[i] = 1;
            n_done++;
            has_changed = 1;
        }
    }
    CHECK_IS(n_done, ==, n_events);
    for (int32_t rank = 0; rank < m->n_ranks; rank++)
        CHECK_IS(r.n_computed[rank], ==, memoi_messages_steps(m, rank));
}

TEST(no_two_ranks_wait_for_each_other) {
    int64_t n_crossings = 0;
    for (int i = 0; i < memo_test_cases(400, 4000); i++) {
        static case_of_list c;
        memob_arrays arrays = MEMO_ZERO(memob_arrays);
        make_list(&c, i, &arrays);
        IN_CASE("case %d, %d ranks in %d nodes", i, (int)c.m.n_ranks, (int)c.m.n_nodes);
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            check_turns(&c, is_backward);
            run_list(&c, is_backward);
        }
        n_crossings += memoi_messages_crossings(&c.m);
        memob_arrays_free(&arrays);
    }
    printf("# %lld crossings\n", (long long)n_crossings);
}

/* Held rows lie in their pool, and a room is free of all earlier ones in it: those that are read
 * later lie elsewhere. */
TEST(held_rows_lie_in_their_pool) {
    for (int i = 0; i < memo_test_cases(200, 2000); i++) {
        static case_of_list c;
        memob_arrays arrays = MEMO_ZERO(memob_arrays);
        make_list(&c, i, &arrays);
        IN_CASE("case %d", i);
        for (int32_t k = 0; k < memoi_messages_crossings(&c.m); k++) {
            const memoi_ring_crossing* x = &c.m.crossings[k];
            const memoi_ring_crossing* in_order =
                &c.m.crossings[c.m.held[c.m.first_of_holder[x->holder] + x->number - 1]];
            CHECK(x == in_order);
            CHECK(x->row % MEMOI_POOL_ALIGNMENT == 0);
            CHECK_IS(x->row + x->n_rows, <=, memoi_pool_rows(&c.shape, MEMOI_POOL_HELD));
        }
        memob_arrays_free(&arrays);
    }
}

/* The list has the order that takes least, or one that takes a hundredth more than the busiest rank
 * or link, which no order is faster than. */
TEST(a_list_takes_at_most_the_time_of_each_order) {
    double saved = 0;
    const int n = memo_test_cases(200, 2000);
    for (int i = 0; i < n; i++) {
        static case_of_list c;
        memob_arrays arrays = MEMO_ZERO(memob_arrays);
        int64_t times[1 + MEMOI_N_LIST_ORDERS] = {0}, enough = 0;
        make_list(&c, i, &arrays);
        IN_CASE("case %d", i);
        for (int k = 0; k <= MEMOI_N_LIST_ORDERS; k++) {
            memoi_messages plain = c.m;
            if (k) {
                memoi_messages_add_all(&plain, &arrays);
                memoi_messages_by_distance(&plain, &arrays);
            }
            for (int pass = 0; pass < 2; pass++) {
                const int64_t least = memoi_messages_least(&plain, pass, &arrays);
                if (k) memoi_messages_put_in_order(&plain, k - 1, pass, &arrays);
                const int64_t time = memoi_messages_time(&plain, pass, &arrays);
                CHECK_IS(least, <=, time);
                times[k] += time;
                enough += k ? 0 : least;
            }
        }
        CHECK(!arrays.failed);
        for (int k = 0; k < MEMOI_N_LIST_ORDERS; k++)
            CHECK_IS(times[0], <=, memob_max(times[1 + k], enough + enough / 100));
        saved += times[1] ? 1 - (double)times[0] / (double)times[1] : 0;
        memob_arrays_free(&arrays);
    }
    printf("# %.3f less in the mean than by distance\n", saved / n);
}

/* Ranks that read several times the rows for which they have room, as those of a window as long as a
 * rank's rows: turns follow from the rooms that there are, so few ranks wait for those of others. */
TEST(turns_follow_from_rooms) {
    const int n_cases = memo_test_cases(100, 1000);
    double mean = 0, worst = 0;
    for (int i = 0; i < n_cases; i++) {
        static case_of_list c;
        memob_arrays arrays = MEMO_ZERO(memob_arrays);
        const int32_t n = MOST_RANKS;
        start_list(&c, n, 1, 1024);
        for (int32_t r = 0; r < n; r++) {
            int64_t left = 4000;
            for (int32_t k = 1; k < n; k++) {
                const int32_t owner = (r + (k % 2 ? k / 2 + 1 : n - k / 2)) % n;
                const int64_t rows = left < 60 ? left : memo_test_int(0, left < 1024 ? left : 1024);
                c.rows[r * n + owner] = rows;
                c.work[r * n + owner] = 300 * rows;
                left -= rows;
            }
            c.work[r * n + r] = 240000 + 300 * left;
        }
        memoi_messages_make(&c.m, &arrays);
        const int64_t least = memoi_messages_least(&c.m, 0, &arrays);
        const double ratio = (double)memoi_messages_time(&c.m, 0, &arrays) / (double)least;
        CHECK(!arrays.failed);
        mean += ratio / n_cases;
        worst = fmax(worst, ratio);
        memob_arrays_free(&arrays);
    }
    printf("# a forward takes %.3f of the least in the mean, at most %.3f\n", mean, worst);
    CHECK_CASE(mean < 1.016 && worst < 1.1, "mean %g, worst %g", mean, worst);
}

/* Where all ranks have as many rows, each turn is a perfect matching: a rank sends keys to one rank
 * and gets some from one, and all ranks take part. */
TEST(equal_ranks_have_perfect_matchings) {
    for (int i = 0; i < memo_test_cases(60, 600); i++) {
        static case_of_list c;
        memob_arrays arrays = MEMO_ZERO(memob_arrays);
        const int32_t per = (int32_t)memo_test_int(1, 4), n_nodes = (int32_t)memo_test_int(1, 3);
        const int32_t n = per * n_nodes;
        const int64_t each = memo_test_int(1, 200), work = memo_test_int(100, 100000);
        start_list(&c, n, n_nodes, each);
        for (int32_t k = 0; k < n * n; k++) {
            c.rows[k] = k % (n + 1) ? each : 0;
            c.work[k] = work;
        }
        make_crossings(&c, n, n_nodes, each);
        memoi_messages_make(&c.m, &arrays);
        CHECK(!arrays.failed);
        IN_CASE("case %d, %d ranks in %d nodes", i, (int)n, (int)n_nodes);
        for (int pass = 0; pass < 2; pass++)
            for (int32_t k = 0, next; k < c.m.n_events[pass]; k = next) {
                int32_t n_of[2] = {0, 0}; /* keys, contributions */
                for (next = k; next < c.m.n_events[pass] &&
                               c.m.events[pass][next].turn == c.m.events[pass][k].turn;)
                    n_of[c.m.events[pass][next++].is_given]++;
                for (int is_given = 0; is_given < 2; is_given++)
                    CHECK(!n_of[is_given] || n_of[is_given] == n);
            }
        memob_arrays_free(&arrays);
    }
}
