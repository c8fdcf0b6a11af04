/* test_segments.c - what queries see, as segments of positions and of the rows of blocks: against
 * the definition of each mask, a pair at a time. */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_test.h"

#define MAX_TOKENS   96
#define MAX_SEGMENTS (4 * MAX_TOKENS)

/* ---- masks, by their definitions ---- */

/* A mask of packed documents, or of intervals. */
typedef struct seen_mask {
    memo_mask mask;
    int64_t n_tokens, n_keys; /* queries; keys */
    int64_t n_first_keys;     /* of each document, beside a window */
    int32_t n_levels;
    int64_t begins[MAX_TOKENS + 2], parents[MAX_TOKENS + 1];
    int64_t first[MAX_TOKENS], end[MAX_TOKENS];
} seen_mask;

/* The document of a position; -1: none. */
static int64_t document_at(const memo_mask* mask, int64_t position) {
    int64_t found = -1;
    for (int64_t d = 0; d < mask->n_documents; d++)
        if (position >= mask->document_begins[d] && position < mask->document_begins[d + 1])
            found = d;
    return found;
}

/* Does query q see key k? */
static int sees(const seen_mask* m, int64_t q, int64_t k) {
    const memo_mask* mask = &m->mask;
    const int64_t own = mask->first_query + q;
    if (mask->key_first) return k >= mask->key_first[q] && k < mask->key_end[q];
    if (mask->document_begins) {
        int64_t d = document_at(mask, own);
        const int64_t of_key = document_at(mask, k);
        if (d < 0 || of_key < 0) return 0;
        for (int64_t above = d; mask->document_parents && above >= 0 && of_key != d;) {
            above = mask->document_parents[above];
            if (above == of_key) return 1;
        }
        if (d != of_key) return 0;
        if (m->n_first_keys && k <= own && k < mask->document_begins[d] + m->n_first_keys) return 1;
    } else if (m->n_first_keys && k <= own && k < m->n_first_keys) {
        return 1;
    }
    if (mask->kind == MEMO_MASK_CAUSAL && k > own) return 0;
    if (mask->window_before && own - k >= mask->window_before) return 0;
    return !mask->window_after || k - own < mask->window_after;
}

static void random_documents(seen_mask* m) {
    const int64_t most = memo_test_int(0, 3) ? 8 : m->n_keys;
    int64_t n = 0, longest = 1 + 2 * m->n_keys / most;
    m->begins[0] = 0;
    while (m->begins[n] < m->n_keys) {
        const int64_t length = memo_test_int(memo_test_int(0, 3) ? 1 : 0, longest);
        m->begins[n + 1] = m->begins[n] + length;
        if (n + 1 >= MAX_TOKENS || m->begins[n + 1] > m->n_keys) m->begins[n + 1] = m->n_keys;
        n++;
    }
    m->mask.document_begins = m->begins;
    m->mask.n_documents = n;
}

/* Each document is below the one before it, or beside it or one of its ancestors. */
static void random_tree(seen_mask* m) {
    for (int64_t d = 0; d < m->mask.n_documents; d++) {
        m->parents[d] = d - 1;
        while (m->parents[d] >= 0 &&
               (memo_test_int(0, 1) || memoi_mask_depth(&m->mask, m->parents[d]) > 5))
            m->parents[d] = m->parents[m->parents[d]];
        m->mask.document_parents = m->parents;
        if (memoi_mask_depth(&m->mask, d) >= m->n_levels)
            m->n_levels = memoi_mask_depth(&m->mask, d) + 1;
    }
}

/* Ends that do not descend; some queries see nothing. */
static void random_intervals(seen_mask* m) {
    int64_t first = 0, end = 0;
    const int64_t step = memo_test_int(1, 9);
    for (int64_t q = 0; q < m->n_tokens; q++) {
        if (memo_test_int(0, 2)) first += memo_test_int(0, 1 + memo_test_int(0, step) / 3);
        if (memo_test_int(0, 2)) end += memo_test_int(0, 1 + memo_test_int(0, step) / 2);
        if (first > m->n_keys) first = m->n_keys;
        if (end < first) end = first;
        if (end > m->n_keys) end = m->n_keys;
        m->first[q] = first;
        m->end[q] = end;
    }
    m->mask.key_first = m->first;
    m->mask.key_end = m->end;
}

static const char* const kind_names[] = {"documents", "windows",   "first keys",
                                         "a tree",    "intervals", "a slice"};
enum { DOCUMENTS, WINDOWS, FIRST_KEYS, TREE, INTERVALS, SLICE, N_KINDS };
static void random_mask(seen_mask* m, int kind) {
    memset(m, 0, sizeof *m);
    m->n_levels = 1 + (kind == FIRST_KEYS);
    m->n_keys = m->n_tokens = memo_test_int(1, MAX_TOKENS);
    m->mask.kind = (memo_mask_kind)(kind != FIRST_KEYS && !memo_test_int(0, 2));
    if (kind == SLICE) {
        m->n_tokens = memo_test_int(1, m->n_keys);
        m->mask.first_query = memo_test_int(0, 3) ? memo_test_int(0, m->n_keys - m->n_tokens)
                                                  : memo_test_int(-20, 20);
    }
    if (kind == INTERVALS && memo_test_int(0, 1)) m->n_keys = memo_test_int(1, MAX_TOKENS);
    m->mask.n_tokens = m->n_tokens;
    m->mask.n_keys = m->n_keys;
    if (kind == INTERVALS) {
        random_intervals(m);
        return;
    }
    if (kind == DOCUMENTS || kind == TREE || memo_test_int(0, 2)) random_documents(m);
    if (kind == TREE) random_tree(m);
    if (kind == WINDOWS || kind == FIRST_KEYS || (kind == SLICE && memo_test_int(0, 1)))
        m->mask.window_before = memo_test_int(0, 5) ? memo_test_int(1, 24) : INT64_MAX;
    if ((kind == WINDOWS || kind == SLICE) && memo_test_int(0, 1))
        m->mask.window_after = memo_test_int(1, 12);
    if (kind == FIRST_KEYS) m->n_first_keys = memo_test_int(1, 9);
}

/* ---- segments ---- */

/* Counts the pairs of a list; its segments ascend, and each query sees a key. */
static void count_pairs(const memoi_segment* list, int64_t n, unsigned char* seen) {
    for (int64_t i = 0; i < n; i++) {
        const memoi_segment* s = &list[i];
        CHECK(s->q_begin >= (i ? s[-1].q_end : 0) && s->q_begin < s->q_end);
        CHECK(s->k_begin >= (i ? s[-1].k_begin : 0) && s->k_end >= (i ? s[-1].k_end : 0));
        for (int64_t q = s->q_begin; q < s->q_end; q++) {
            const int64_t nq = s->q_end - s->q_begin, nk = s->k_end - s->k_begin;
            int64_t n_seen = 0;
            for (int64_t k = s->k_begin; k < s->k_end; k++) { /* the table of the types */
                const int64_t row = q - s->q_begin, column = k - s->k_begin;
                int is_seen = 1;
                if (s->type == MEMOI_SEGMENT_CAUSAL || s->type == MEMOI_SEGMENT_BAND)
                    is_seen &= column <= row + nk - nq;
                if (s->type == MEMOI_SEGMENT_INVERSE || s->type == MEMOI_SEGMENT_BAND)
                    is_seen &= column >= row;
                seen[q * MAX_TOKENS + k] += (unsigned char)is_seen;
                n_seen += is_seen;
            }
            CHECK(n_seen > 0);
        }
    }
}

/* The runs of a rank: some positions of n, in ascending order. */
static int32_t random_runs(int64_t n, memo_run* runs) {
    const int64_t parts = memo_test_int(1, 12);
    int64_t at = 0;
    int32_t n_runs = 0;
    while (at < n) {
        const int64_t gap = memo_test_int(0, 2) ? memo_test_int(0, 1 + n / parts) : 0;
        const int64_t count = memo_test_int(1, 1 + n / parts);
        at += gap;
        if (at >= n) break;
        runs[n_runs].start = at;
        runs[n_runs].count = memob_min(count, n - at);
        at += count;
        n_runs++;
    }
    return n_runs;
}

typedef struct counts {
    int64_t n_cases, n_pairs, n_blocks, n_segments, most, by_type[4];
} counts;

/* Segments of positions, and those of a random block. */
static void check_mask(const seen_mask* m, counts* total) {
    static unsigned char seen[MAX_TOKENS * MAX_TOKENS], rows_seen[MAX_TOKENS * MAX_TOKENS];
    memoi_segment list[MAX_SEGMENTS], rows[MAX_SEGMENTS];
    memo_run q_runs[MAX_TOKENS], k_runs[MAX_TOKENS];
    const int32_t n_q = random_runs(m->n_tokens, q_runs), n_k = random_runs(m->n_keys, k_runs);
    int64_t row = 0, n_wrong = 0;
    memset(seen, 0, sizeof seen);
    memset(rows_seen, 0, sizeof rows_seen);
    for (int32_t level = 0; level < m->n_levels; level++) {
        const int64_t n = memoi_segments_of_mask(&m->mask, level, m->n_first_keys, NULL);
        const int64_t n_rows = memoi_segments_of_mask(&m->mask, level, m->n_first_keys, list) == n
                                   ? memoi_segments_derive(list, n, q_runs, n_q, k_runs, n_k, NULL)
                                   : -1;
        CHECK(n <= MAX_SEGMENTS && n_rows >= 0 && n_rows <= MAX_SEGMENTS);
        CHECK_IS(memoi_segments_derive(list, n, q_runs, n_q, k_runs, n_k, rows), ==, n_rows);
        count_pairs(list, n, seen);
        count_pairs(rows, n_rows, rows_seen);
        total->n_segments += n_rows;
        total->n_blocks++;
        if (n_rows > total->most) total->most = n_rows;
        for (int64_t i = 0; i < n_rows; i++) total->by_type[rows[i].type]++;
        for (int64_t i = 0; i < n; i++) CHECK_IS(list[i].level, ==, level);
    }

    /* Each allowed pair is in exactly one segment. */
    for (int64_t q = 0; q < m->n_tokens; q++) {
        int64_t low, high;
        memo_mask_interval(&m->mask, q, &low, &high);
        for (int64_t k = 0; k < m->n_keys; k++) {
            n_wrong += seen[q * MAX_TOKENS + k] != sees(m, q, k);
            if (m->n_levels == 1) n_wrong += sees(m, q, k) != (k >= low && k < high);
            total->n_pairs++;
        }
    }
    CHECK_IS(n_wrong, ==, 0);
    for (int32_t r = 0; r < n_q; r++)
        for (int64_t i = 0; i < q_runs[r].count; i++, row++) {
            int64_t k_row = 0;
            for (int32_t s = 0; s < n_k; s++)
                for (int64_t j = 0; j < k_runs[s].count; j++, k_row++)
                    n_wrong += rows_seen[row * MAX_TOKENS + k_row] !=
                               sees(m, q_runs[r].start + i, k_runs[s].start + j);
        }
    CHECK_IS(n_wrong, ==, 0);
    total->n_cases++;
}

TEST(each_pair_is_in_one_segment) {
    counts total = {0};
    seen_mask m;
    for (int i = 0; i < memo_test_cases(600, 10000); i++) {
        random_mask(&m, i % N_KINDS);
        IN_CASE("case %d: %s, %d queries, %d keys", i, kind_names[i % N_KINDS], (int)m.n_tokens,
                (int)m.n_keys);
        check_mask(&m, &total);
    }
    printf("# %lld cases, %lld pairs, %lld segments of %lld blocks (full %lld, causal %lld, "
           "inverse %lld, band %lld), at most %lld a block\n",
           (long long)total.n_cases, (long long)total.n_pairs, (long long)total.n_segments,
           (long long)total.n_blocks, (long long)total.by_type[0], (long long)total.by_type[1],
           (long long)total.by_type[2], (long long)total.by_type[3], (long long)total.most);
    for (int t = 0; t < 4; t++) CHECK_IS(total.by_type[t], >, 0);
}

/* ---- shardings ---- */

/* A causal document that is cut zigzag is whole in rows: its own keys are one segment, and so are
 * the keys of another rank, but those that no query sees. */
TEST(a_document_over_ranks_has_a_segment_a_block) {
    for (int i = 0; i < 60; i++) {
        memo_sharding_desc desc = {.ring = (int32_t)memo_test_int(1, 9), .ulysses = 1 + i % 3};
        const int64_t begins[] = {0, desc.n_tokens = memo_test_int(1, 400)};
        memo_error error;
        memo_sharding sharding;
        const memo_mask mask = {.n_tokens = desc.n_tokens};
        memoi_segment whole, rows[8];
        if (i % 2) {
            desc.kind = MEMO_SHARDING_DOCUMENTS;
            desc.document_begins = begins;
            desc.n_documents = 1;
        }
        IN_CASE("ring %d, %d tokens", (int)desc.ring, (int)desc.n_tokens);
        CHECK(!memo_sharding_make(&desc, &sharding, &error));
        CHECK_IS(memoi_segments_of_mask(&mask, 0, 0, &whole), ==, 1);
        CHECK_IS(whole.type, ==, desc.n_tokens > 1 ? MEMOI_SEGMENT_CAUSAL : MEMOI_SEGMENT_FULL);
        for (int32_t q = 0; q < desc.ring; q++)
            for (int32_t k = 0; k < desc.ring; k++) {
                memo_run q_runs[8], k_runs[8];
                const int32_t n_q = memoi_sharding_ring_runs(&sharding, q, q_runs);
                const int32_t n_k = memoi_sharding_ring_runs(&sharding, k, k_runs);
                const int64_t n = memoi_segments_derive(&whole, 1, q_runs, n_q, k_runs, n_k, NULL);
                CHECK(n <= 1 && (q != k || n == 1 || q_runs[0].start >= desc.n_tokens));
                memoi_segments_derive(&whole, 1, q_runs, n_q, k_runs, n_k, rows);
                if (!n) continue;
                CHECK_IS(rows[0].type, ==,
                         q == k && rows[0].q_end > 1 ? MEMOI_SEGMENT_CAUSAL : MEMOI_SEGMENT_FULL);
            }
        memo_sharding_free(&sharding);
    }
}
