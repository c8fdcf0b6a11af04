/* test_segments.c - what queries see, as segments of positions and of the rows of blocks: against
 * the definition of each mask, a pair at a time. */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "memo_test.h"
#include "made_mask.h"
#include <math.h>

#define MAX_TOKENS   96
#define MAX_SEGMENTS (8 * MAX_TOKENS)

/* ---- masks, by their definitions ---- */

/* A mask of packed documents, of intervals, or of cross-attention. */
typedef struct seen_mask {
    int kind;
    memo_mask_desc mask;
    int64_t n_tokens, n_keys; /* queries; keys */
    int64_t begins[MAX_TOKENS + 2], parents[MAX_TOKENS + 1];
    int64_t query_begins[MAX_TOKENS + 2]; /* of cross-attention */
    int64_t first[MAX_TOKENS], end[MAX_TOKENS];
    /* Of the mask, as made by the public functions: level by level. */
    memo_segment list[MAX_SEGMENTS];
    int64_t level_begins[MEMO_LEVELS_MAX + 1];
    int32_t n_levels;
} seen_mask;
enum { DOCUMENTS, WINDOWS, FIRST_KEYS, TREE, INTERVALS, SLICE, CROSS, N_KINDS };

/* The document of a position; -1: none. */
static int64_t document_at(const memo_mask_desc* mask, int64_t position) {
    int64_t found = -1;
    for (int64_t d = 0; d < mask->n_documents; d++)
        if (position >= mask->document_begins[d] && position < mask->document_begins[d + 1])
            found = d;
    return found;
}

/* Does query q see key k? */
static int sees(const seen_mask* m, int64_t q, int64_t k) {
    const memo_mask_desc* mask = &m->mask;
    const int64_t own = mask->first_query + q;
    if (m->kind == INTERVALS) return k >= m->first[q] && k < m->end[q];
    if (m->kind == CROSS) {
        int64_t d = 0;
        while (q >= m->query_begins[d + 1]) d++;
        return k >= m->begins[d] && k < m->begins[d + 1];
    }
    if (mask->document_begins) {
        int64_t d = document_at(mask, own);
        const int64_t of_key = document_at(mask, k);
        if (d < 0 || of_key < 0) return 0;
        for (int64_t above = d; mask->document_parents && above >= 0 && of_key != d;) {
            above = mask->document_parents[above];
            if (above == of_key) return 1;
        }
        if (d != of_key) return 0;
        if (mask->n_first_keys && k <= own && k < mask->document_begins[d] + mask->n_first_keys)
            return 1;
    } else if (mask->n_first_keys && k <= own && k < mask->n_first_keys) {
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
               (memo_test_int(0, 1) || memoi_mask_depth(m->parents, m->parents[d]) > 5))
            m->parents[d] = m->parents[m->parents[d]];
    }
    m->mask.document_parents = m->parents;
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
}

/* As many documents of queries as of keys. */
static void random_cross(seen_mask* m) {
    random_documents(m);
    for (int64_t d = 0; d < m->mask.n_documents; d++)
        m->query_begins[d + 1] =
            d + 1 == m->mask.n_documents
                ? m->n_tokens
                : memob_min(m->query_begins[d] + memo_test_int(0, 1 + m->n_tokens / 3),
                            m->n_tokens);
}

/* The segments of a mask, by the public functions. */
static void make_list(seen_mask* m) {
    memo_error error;
    int64_t n = 0, again = 0;
    memo_mask mask;
    for (int k = 0; k < 2; k++) {
        memo_segment* list = k ? m->list : NULL;
        memo_status status;
        if (m->kind == INTERVALS)
            status = memo_mask_intervals(m->first, m->end, m->n_tokens, m->n_keys, list,
                                         k ? &again : &n, &error);
        else if (m->kind == CROSS)
            status = memo_mask_cross(m->query_begins, m->begins, m->mask.n_documents, list,
                                     k ? &again : &n, &error);
        else
            status = memo_mask_documents(&m->mask, list, k ? &again : &n, &error);
        CHECK_CASE(!status, "%s", status ? error.message : "");
        CHECK(n <= MAX_SEGMENTS);
    }
    CHECK_IS(n, ==, again);
    mask.segments = m->list;
    mask.n_segments = n;
    CHECK(!memoi_mask_check(&mask, m->n_tokens, m->n_keys, m->level_begins, &m->n_levels, &error));
}

static const char* const kind_names[] = {"documents", "windows", "first keys",     "a tree",
                                         "intervals", "a slice", "cross-attention"};
static void random_mask(seen_mask* m, int kind) {
    memset(m, 0, sizeof *m);
    m->kind = kind;
    m->n_keys = m->n_tokens = memo_test_int(1, MAX_TOKENS);
    m->mask.kind = (memo_mask_kind)(kind != FIRST_KEYS && !memo_test_int(0, 2));
    if (kind == SLICE) {
        const int is_inside = memo_test_int(0, 1) != 0;
        m->n_tokens = memo_test_int(1, is_inside ? m->n_keys : MAX_TOKENS);
        m->mask.first_query =
            is_inside ? memo_test_int(0, m->n_keys - m->n_tokens) : memo_test_int(-20, m->n_keys);
    }
    if ((kind == INTERVALS || kind == CROSS) && memo_test_int(0, 1))
        m->n_keys = memo_test_int(1, MAX_TOKENS);
    m->mask.n_tokens = m->n_tokens;
    m->mask.n_keys = m->n_keys;
    if (kind == INTERVALS) random_intervals(m);
    if (kind == CROSS) random_cross(m);
    if (kind == INTERVALS || kind == CROSS) {
        make_list(m);
        return;
    }
    if (kind == DOCUMENTS || kind == TREE || memo_test_int(0, 2)) random_documents(m);
    if (kind == TREE) random_tree(m);
    if (kind == WINDOWS || kind == FIRST_KEYS || (kind == SLICE && memo_test_int(0, 1)))
        m->mask.window_before = memo_test_int(0, 5) ? memo_test_int(1, 24) : INT64_MAX;
    if ((kind == WINDOWS || kind == SLICE) && memo_test_int(0, 1))
        m->mask.window_after = memo_test_int(1, 12);
    if (kind == FIRST_KEYS) m->mask.n_first_keys = memo_test_int(1, 9);
    make_list(m);
}

/* ---- segments ---- */

/* Counts the pairs of a list; its segments ascend, and each query sees a key. */
static void count_pairs(const memo_segment* list, int64_t n, unsigned char* seen) {
    for (int64_t i = 0; i < n; i++) {
        const memo_segment* s = &list[i];
        CHECK(s->q_begin >= (i ? s[-1].q_end : 0) && s->q_begin < s->q_end);
        CHECK(s->k_begin >= (i ? s[-1].k_begin : 0) && s->k_end >= (i ? s[-1].k_end : 0));
        for (int64_t q = s->q_begin; q < s->q_end; q++) {
            const int64_t nq = s->q_end - s->q_begin, nk = s->k_end - s->k_begin;
            int64_t n_seen = 0;
            for (int64_t k = s->k_begin; k < s->k_end; k++) { /* the table of the types */
                const int64_t row = q - s->q_begin, column = k - s->k_begin;
                int is_seen = 1;
                if (s->type == MEMO_SEGMENT_CAUSAL || s->type == MEMO_SEGMENT_BAND)
                    is_seen &= column <= row + nk - nq;
                if (s->type == MEMO_SEGMENT_INVERSE || s->type == MEMO_SEGMENT_BAND)
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
    memo_segment rows[MAX_SEGMENTS];
    memo_run q_runs[MAX_TOKENS], k_runs[MAX_TOKENS];
    const int32_t n_q = random_runs(m->n_tokens, q_runs), n_k = random_runs(m->n_keys, k_runs);
    int64_t row = 0, n_wrong = 0;
    memset(seen, 0, sizeof seen);
    memset(rows_seen, 0, sizeof rows_seen);
    for (int32_t level = 0; level < m->n_levels; level++) {
        const memo_segment* list = m->list + m->level_begins[level];
        const int64_t n = m->level_begins[level + 1] - m->level_begins[level];
        const int64_t n_rows = memoi_segments_derive(list, n, q_runs, n_q, k_runs, n_k, NULL);
        CHECK(n_rows <= MAX_SEGMENTS);
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
    for (int64_t q = 0; q < m->n_tokens; q++)
        for (int64_t k = 0; k < m->n_keys; k++) {
            n_wrong += seen[q * MAX_TOKENS + k] != sees(m, q, k);
            total->n_pairs++;
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
        const memo_mask_desc mask = {.n_tokens = desc.n_tokens};
        memo_segment whole, rows[8];
        int64_t n_whole;
        if (i % 2) {
            desc.kind = MEMO_SHARDING_DOCUMENTS;
            desc.document_begins = begins;
            desc.n_documents = 1;
        }
        IN_CASE("ring %d, %d tokens", (int)desc.ring, (int)desc.n_tokens);
        CHECK(!memo_sharding_make(&desc, &sharding, &error));
        CHECK(!memo_mask_documents(&mask, &whole, &n_whole, &error) && n_whole == 1);
        CHECK_IS(whole.type, ==, desc.n_tokens > 1 ? MEMO_SEGMENT_CAUSAL : MEMO_SEGMENT_FULL);
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
                         q == k && rows[0].q_end > 1 ? MEMO_SEGMENT_CAUSAL : MEMO_SEGMENT_FULL);
            }
        memo_sharding_free(&sharding);
    }
}

/* ---- attention from launches ---- */

enum { SIZE = 3, MAX_ROWS = MAX_TOKENS };

/* Rows of a block in fp64. */
typedef struct tensors {
    double q[MAX_ROWS][SIZE], k[MAX_ROWS][SIZE], v[MAX_ROWS][SIZE], d_out[MAX_ROWS][SIZE];
    double out[MAX_ROWS][SIZE], lse[MAX_ROWS], dots[MAX_ROWS];
    double d_q[MAX_ROWS][SIZE], d_k[MAX_ROWS][SIZE], d_v[MAX_ROWS][SIZE];
} tensors;

static double dot(const double* a, const double* b) {
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

/* A query and n keys, by their rows: merges their softmax into the output. */
static void attend(tensors* t, int64_t q, const int64_t* keys, int64_t n) {
    double largest = -INFINITY, sum = 0, out[SIZE] = {0}, weight;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, dot(t->q[q], t->k[keys[i]]));
    for (int64_t i = 0; i < n; i++) {
        const double p = exp(dot(t->q[q], t->k[keys[i]]) - largest);
        sum += p;
        for (int e = 0; e < SIZE; e++) out[e] += p * t->v[keys[i]][e];
    }
    if (!n) return;
    largest += log(sum);
    weight = 1 / (1 + exp(t->lse[q] - largest));
    for (int e = 0; e < SIZE; e++) t->out[q][e] += weight * (out[e] / sum - t->out[q][e]);
    t->lse[q] = fmax(t->lse[q], largest) + log1p(exp(-fabs(t->lse[q] - largest)));
}

/* The same, backward, once outputs and LSEs are final. */
static void attend_backward(tensors* t, int64_t q, const int64_t* keys, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = keys[i];
        const double p = exp(dot(t->q[q], t->k[k]) - t->lse[q]);
        const double d_s = p * (dot(t->d_out[q], t->v[k]) - t->dots[q]);
        for (int e = 0; e < SIZE; e++) {
            t->d_v[k][e] += p * t->d_out[q][e];
            t->d_q[q][e] += d_s * t->k[k][e];
            t->d_k[k][e] += d_s * t->q[q][e];
        }
    }
}

static void attend_either(tensors* t, int is_backward, int64_t q, const int64_t* keys, int64_t n) {
    (is_backward ? attend_backward : attend)(t, q, keys, n);
}

/* A call of a kernel with lists of lengths, from what the launch says alone. */
static void call_launch(tensors* t, const memo_launch* l, int is_backward) {
    int32_t max_q = 0, max_k = 0, has_gaps = 0;
    for (int32_t s = 0; s < l->n; s++) {
        const int64_t n_q = l->q_counts[s], n_k = l->k_counts[s];
        CHECK(n_q > 0 && n_k > 0 && l->q_begins[s] + n_q <= l->q_begins[s + 1] &&
              l->k_begins[s] + n_k <= l->k_begins[s + 1]);
        has_gaps |= l->q_begins[s] + n_q < l->q_begins[s + 1];
        has_gaps |= l->k_begins[s] + n_k < l->k_begins[s + 1];
        if (n_q > max_q) max_q = (int32_t)n_q;
        if (n_k > max_k) max_k = (int32_t)n_k;
        for (int64_t i = 0; i < n_q; i++) {
            int64_t keys[MAX_ROWS], n = 0;
            for (int64_t j = 0; j < n_k; j++) {
                const int64_t at = i + n_k - n_q, top = l->from_top ? i : at;
                if (l->left >= 0 && j < top - l->left) continue;
                if (l->right >= 0 && j > at + l->right) continue;
                keys[n++] = l->k_begins[s] + j;
            }
            CHECK(n > 0);
            attend_either(t, is_backward, l->q_begins[s] + i, keys, n);
        }
    }
    for (int32_t s = 0, n = 0; n < l->n_segments; s++) { /* the same on the host */
        const memo_segment* at = &l->segments[n];
        CHECK(s < l->n && at->q_begin == l->q_begins[s] && at->k_begin == l->k_begins[s]);
        n += at->q_end < l->q_begins[s] + l->q_counts[s] ? 2 : 1;
        CHECK(s < l->n - 1 || n == l->n_segments);
    }
    CHECK(l->max_q == max_q && l->max_k == max_k && l->has_gaps == has_gaps);
}

enum { MAX_WORDS = 6 * MAX_SEGMENTS };
typedef struct block_launches {
    memoi_launches x;
    memoi_sequence sequences[MAX_SEGMENTS];
    memo_launch launches[MAX_SEGMENTS];
    memo_segment segments[MAX_SEGMENTS];
    int64_t q_ends[MAX_SEGMENTS], k_ends[MAX_SEGMENTS];
    int32_t words[MAX_WORDS];
} block_launches;

static void make_launches(block_launches* b, const memo_segment* rows, int64_t n,
                          memo_launch_kind kernel) {
    b->x.sequences = b->sequences;
    b->x.launches = b->launches;
    b->x.segments = b->segments;
    b->x.q_ends = b->q_ends;
    b->x.k_ends = b->k_ends;
    memoi_launches_make(&b->x, rows, n, kernel);
    CHECK(memoi_launches_count(&b->x) <= MAX_WORDS);
    memoi_launches_write(&b->x, b->words, b->words);
}

/* What computes a block: launches of two kernels, FFA's ranges with a type each, and intervals. */
enum { BY_VARLEN, BY_RAGGED, BY_RANGES, BY_INTERVALS, N_WAYS };

static void compute_block(tensors* t, const memo_segment* rows, int64_t n, int way,
                          int is_backward) {
    static block_launches b;
    if (way == BY_VARLEN || way == BY_RAGGED) {
        make_launches(&b, rows, n, way == BY_VARLEN ? MEMO_LAUNCHES_VARLEN : MEMO_LAUNCHES_RAGGED);
        for (int32_t i = 0; i < b.x.n; i++) call_launch(t, &b.launches[i], is_backward);
        return;
    }
    for (int64_t s = 0; s < n; s++)
        for (int64_t q = rows[s].q_begin; q < rows[s].q_end; q++) {
            int64_t keys[MAX_ROWS], n_keys = 0, low = rows[s].k_begin, high = rows[s].k_end;
            if (way == BY_INTERVALS) memo_segment_keys(&rows[s], q, &low, &high);
            for (int64_t k = low; k < high; k++) {
                const int64_t i = q - rows[s].q_begin, j = k - rows[s].k_begin;
                const int64_t n_q = rows[s].q_end - rows[s].q_begin;
                const int64_t n_k = rows[s].k_end - rows[s].k_begin;
                if (way == BY_RANGES && rows[s].type & 1 && j > i + n_k - n_q) continue;
                if (way == BY_RANGES && rows[s].type & 2 && j < i) continue;
                keys[n_keys++] = k;
            }
            attend_either(t, is_backward, q, keys, n_keys);
        }
}

static void random_rows(double x[][SIZE], int64_t n, double spread) {
    for (int64_t i = 0; i < n; i++)
        for (int e = 0; e < SIZE; e++) x[i][e] = spread * (2 * memo_test_real() - 1);
}

static void clear_results(tensors* t) {
    memset(t->out, 0, sizeof t->out);
    memset(t->d_q, 0, sizeof t->d_q);
    memset(t->d_k, 0, sizeof t->d_k);
    memset(t->d_v, 0, sizeof t->d_v);
    for (int64_t q = 0; q < MAX_ROWS; q++) t->lse[q] = -INFINITY;
}

static double off_by(double x[][SIZE], double y[][SIZE], int64_t n) {
    double off = 0;
    for (int64_t i = 0; i < n; i++)
        for (int e = 0; e < SIZE; e++) off = memo_test_worst(off, fabs(x[i][e] - y[i][e]));
    return off;
}

TEST(attention_from_launches_is_exact) {
    static tensors t, expected;
    double worst = 0;
    seen_mask m;
    for (int c = 0; c < memo_test_cases(600, 10000); c++) {
        memo_run q_runs[MAX_TOKENS], k_runs[MAX_TOKENS];
        int64_t q_at[MAX_ROWS], k_at[MAX_ROWS], n_q = 0, n_k = 0;
        const int way = c / N_KINDS % N_WAYS;
        random_mask(&m, c % N_KINDS);
        IN_CASE("case %d: %s, %d queries, %d keys, way %d", c, kind_names[c % N_KINDS],
                (int)m.n_tokens, (int)m.n_keys, way);
        const int32_t n_q_runs = random_runs(m.n_tokens, q_runs);
        const int32_t n_k_runs = random_runs(m.n_keys, k_runs);
        for (int32_t r = 0; r < n_q_runs; r++)
            for (int64_t i = 0; i < q_runs[r].count; i++) q_at[n_q++] = q_runs[r].start + i;
        for (int32_t r = 0; r < n_k_runs; r++)
            for (int64_t i = 0; i < k_runs[r].count; i++) k_at[n_k++] = k_runs[r].start + i;
        random_rows(t.q, n_q, 4);
        random_rows(t.k, n_k, 4);
        random_rows(t.v, n_k, 1);
        random_rows(t.d_out, n_q, 1);
        clear_results(&t);
        expected = t;

        for (int is_backward = 0; is_backward < 2; is_backward++) {
            for (int64_t q = 0; q < n_q; q++) {
                int64_t keys[MAX_ROWS], n = 0;
                for (int64_t k = 0; k < n_k; k++)
                    if (sees(&m, q_at[q], k_at[k])) keys[n++] = k;
                attend_either(&expected, is_backward, q, keys, n);
                if (!is_backward) expected.dots[q] = dot(expected.out[q], t.d_out[q]);
            }
            for (int32_t level = 0; level < m.n_levels; level++) {
                memo_segment rows[MAX_SEGMENTS];
                const int64_t at = m.level_begins[level], n = m.level_begins[level + 1] - at;
                const int64_t n_rows =
                    memoi_segments_derive(m.list + at, n, q_runs, n_q_runs, k_runs, n_k_runs, rows);
                compute_block(&t, rows, n_rows, way, is_backward);
            }
            for (int64_t q = 0; q < n_q; q++) {
                CHECK(t.lse[q] == expected.lse[q] || fabs(t.lse[q] - expected.lse[q]) < 1e-12);
                t.dots[q] = dot(t.out[q], t.d_out[q]);
            }
        }
        worst = memo_test_worst(worst, off_by(t.out, expected.out, n_q));
        worst = memo_test_worst(worst, off_by(t.d_q, expected.d_q, n_q));
        worst = memo_test_worst(worst, off_by(t.d_k, expected.d_k, n_k));
        worst = memo_test_worst(worst, off_by(t.d_v, expected.d_v, n_k));
        CHECK_IS(worst, <, 1e-11);
    }
    printf("# out, d_q, d_k, d_v are off by %.2g\n", worst);
}

/* ---- how many ---- */

/* Documents of log-normal lengths. */
static int64_t* log_normal(int64_t n_tokens, int64_t n) {
    int64_t* begins = (int64_t*)calloc((size_t)n + 1, sizeof *begins);
    double *x = (double*)calloc((size_t)n, sizeof *x), sum = 0, at = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] = exp(1.2 * sqrt(-2 * log(1 - memo_test_real())) *
                          cos(6.283185307179586 * memo_test_real()));
    for (int64_t i = 0; i < n; i++) {
        at += x[i];
        begins[i + 1] = i == n - 1 ? n_tokens : (int64_t)((double)n_tokens * at / sum);
    }
    free(x);
    return begins;
}

/* The mean number of launches of blocks that have work: [0] of own keys, [1] of others'.  Returns
 * the mean of both. */
static double count_launches(int32_t ring, int64_t n_documents, int64_t window, double launches[2],
                             double segments[2]) {
    enum { N_TOKENS = 131072 };
    int64_t* begins = log_normal(N_TOKENS, n_documents);
    memo_sharding_desc desc = {.kind = MEMO_SHARDING_DOCUMENTS, .ring = ring, .n_tokens = N_TOKENS};
    memo_mask_desc desc_of_mask = {.n_tokens = N_TOKENS, .window_before = window};
    memo_sharding sharding;
    memo_error error;
    int64_t n_blocks[2] = {0, 0};
    desc.document_begins = desc_of_mask.document_begins = begins;
    desc.n_documents = desc_of_mask.n_documents = n_documents;
    CHECK(!memo_sharding_make(&desc, &sharding, &error));
    const memo_mask mask = made_mask(&desc_of_mask);
    const int64_t n = mask.n_segments, most = 8 * (n + 100);
    const memo_segment* list = mask.segments;
    memo_segment* rows = (memo_segment*)calloc((size_t)most, sizeof *rows);
    memo_run *q_runs = (memo_run*)calloc((size_t)most, sizeof *q_runs), *k_runs = q_runs + most / 2;
    memoi_launches x = {(memoi_sequence*)calloc((size_t)most, sizeof(memoi_sequence)),
                        (memo_launch*)calloc((size_t)most, sizeof(memo_launch)),
                        (memo_segment*)calloc((size_t)most, sizeof(memo_segment)),
                        (int64_t*)calloc((size_t)most, 8),
                        (int64_t*)calloc((size_t)most, 8),
                        0,
                        0};
    launches[0] = launches[1] = segments[0] = segments[1] = 0;
    for (int32_t q = 0; q < ring; q++)
        for (int32_t k = 0; k < ring; k++) {
            const int32_t n_q = memoi_sharding_ring_runs(&sharding, q, q_runs);
            const int32_t n_k = memoi_sharding_ring_runs(&sharding, k, k_runs);
            const int64_t n_rows = memoi_segments_derive(list, n, q_runs, n_q, k_runs, n_k, rows);
            CHECK(n_rows <= most && n_q <= most / 2 && n_k <= most / 2);
            memoi_launches_make(&x, rows, n_rows, MEMO_LAUNCHES_VARLEN);
            n_blocks[q != k] += n_rows > 0;
            launches[q != k] += x.n;
            segments[q != k] += (double)n_rows;
        }
    const double mean =
        (launches[0] + launches[1]) / (double)memob_max(n_blocks[0] + n_blocks[1], 1);
    for (int i = 0; i < 2; i++) launches[i] /= n_blocks[i] ? (double)n_blocks[i] : 1;
    for (int i = 0; i < 2; i++) segments[i] /= n_blocks[i] ? (double)n_blocks[i] : 1;
    memo_sharding_free(&sharding);
    free(begins);
    made_mask_free(&mask);
    free(rows);
    free(q_runs);
    free(x.sequences);
    free(x.launches);
    free(x.segments);
    free(x.q_ends);
    free(x.k_ends);
    return mean;
}

TEST(a_block_takes_few_launches) {
    static const int64_t cases[][3] = {/* ring, documents, window */
                                       {8, 1, 0},     {32, 100, 0},    {64, 1000, 0},
                                       {64, 5000, 0}, {32, 100, 1024}, {64, 1000, 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double launches[2], segments[2];
        const double mean =
            count_launches((int32_t)cases[i][0], cases[i][1], cases[i][2], launches, segments);
        printf("# ring %d, %d documents, window %d: own keys %.1f segments, %.2f launches; others' "
               "%.1f, %.2f\n",
               (int)cases[i][0], (int)cases[i][1], (int)cases[i][2], segments[0], launches[0],
               segments[1], launches[1]);
        CHECK_IS(mean, <=, cases[i][2] ? 2 : 1.02);
    }
}
