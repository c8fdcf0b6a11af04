/* test_sharding.c - which rank holds which tokens: maps, runs, rows, labels, the mean loss. */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "sharding_check.h"
#include "kept_sharding.h"
#include "made_mask.h"
#include "thread_ranks.h"
#include "owned.h"

static memo_sharding sharding_of(memo_sharding_kind kind, int32_t ring, int32_t ulysses,
                                 int64_t n_tokens) {
    memo_sharding sharding;
    memo_sharding_desc desc = {
        .kind = kind, .ring = ring, .ulysses = ulysses, .n_tokens = n_tokens};
    CHECK_OK(memo_sharding_make(&desc, &sharding, &error));
    return sharding;
}

/* Random documents, some of them empty; begins (MAX_DOCUMENTS + 1). */
#define MAX_DOCUMENTS 12
static int64_t make_documents(int64_t n_tokens, int64_t* begins) {
    int64_t n = memo_test_int(1, MAX_DOCUMENTS), k;
    begins[0] = 0;
    for (k = 1; k < n; k++)
        begins[k] = memo_test_int(begins[k - 1], begins[k - 1] + (n_tokens - begins[k - 1]) / 2);
    begins[n] = n_tokens;
    return n;
}
static memo_sharding sharding_of_documents(int32_t ring, int32_t ulysses, const int64_t* begins,
                                           int64_t n_documents) {
    memo_sharding sharding;
    memo_sharding_desc desc = {.kind = MEMO_SHARDING_DOCUMENTS,
                               .ring = ring,
                               .ulysses = ulysses,
                               .n_tokens = begins[n_documents],
                               .document_begins = begins,
                               .n_documents = n_documents};
    CHECK_OK(keep_sharding(&desc, &sharding, &error));
    return sharding;
}
/* Rows for more tokens than the documents have. */
static memo_sharding sharding_with_room(const memo_sharding* full, int64_t capacity) {
    memo_sharding sharding;
    memo_sharding_desc desc = {.kind = MEMO_SHARDING_DOCUMENTS,
                               .ring = full->ring,
                               .ulysses = full->ulysses,
                               .n_tokens = full->n_tokens,
                               .capacity = capacity,
                               .document_begins = full->document_begins,
                               .n_documents = full->n_documents};
    CHECK_OK(keep_sharding(&desc, &sharding, &error));
    return sharding;
}
/* In slices, the last of them short or not. */
static memo_sharding sharding_of_slices(int32_t ring, int32_t ulysses, int64_t n_tokens) {
    memo_sharding sharding;
    memo_sharding_desc desc = {.kind = (memo_sharding_kind)memo_test_int(0, 1),
                               .ring = ring,
                               .ulysses = ulysses,
                               .n_tokens = n_tokens,
                               .slice_tokens = 2 * ring * ulysses * memo_test_int(1, 5)};
    CHECK_OK(memo_sharding_make(&desc, &sharding, &error));
    return sharding;
}

TEST(every_sharding_validates) {
    for (int32_t kind = 0; kind < 2; kind++)
        for (int32_t ring = 1; ring <= 9; ring++)
            for (int32_t ulysses = 1; ulysses <= 9; ulysses++)
                for (int64_t n_tokens = 1; n_tokens <= 600; n_tokens += memo_test_int(1, 150)) {
                    memo_sharding sharding =
                        sharding_of((memo_sharding_kind)kind, ring, ulysses, n_tokens);
                    CHECK_CASE(!sharding_check(&sharding, &error), "%s ring %d ulysses %d: %s",
                               memoi_sharding_name(sharding.kind), ring, ulysses, error.message);
                    CHECK_IS(sharding.local_tokens * ring * ulysses, ==, sharding.padded_tokens);
                }
}

/* A slice, and the slices so far, are shardings as memo_sharding_make makes them. */
TEST(every_sharding_of_slices_validates) {
    for (int i = 0; i < 300; i++) {
        const int32_t ring = (int32_t)memo_test_int(1, 9), ulysses = (int32_t)memo_test_int(1, 9);
        const memo_sharding all = sharding_of_slices(ring, ulysses, memo_test_int(1, 2000));
        memo_sharding slice, so_far, made;
        int64_t row = 0;
        CHECK_CASE(!sharding_check(&all, &error), "ring %d ulysses %d slices of %d: %s", ring,
                   ulysses, (int)all.slice_tokens, error.message);
        for (int64_t k = 0; k * all.slice_tokens < all.n_tokens; k++) {
            const int32_t rank = (int32_t)memo_test_int(0, ring * ulysses - 1);
            memo_sharding_slice(&all, k, &slice, &so_far);
            CHECK_OK(sharding_check(&slice, &error));
            CHECK_OK(sharding_check(&so_far, &error));
            made = sharding_of(all.kind, ring, ulysses, slice.n_tokens);
            CHECK(made.local_tokens == slice.local_tokens && !slice.slice_tokens);
            CHECK_IS(row, ==, so_far.local_tokens - slice.local_tokens);
            CHECK_IS(memo_sharding_position(&all, rank, row), ==,
                     k * all.slice_tokens + memo_sharding_position(&slice, rank, 0));
            row += slice.local_tokens;
        }
        CHECK_IS(row, ==, all.local_tokens);
        CHECK(!memcmp(&so_far, &all, sizeof all));
        memo_sharding_slice(&made, 0, &slice, &so_far); /* without slices */
        CHECK(!memcmp(&slice, &made, sizeof made) && !memcmp(&so_far, &made, sizeof made));
    }
}

TEST(every_sharding_of_documents_validates) {
    for (int32_t ring = 1; ring <= 9; ring++)
        for (int32_t ulysses = 1; ulysses <= 9; ulysses++)
            for (int k = 0; k < 5; k++) {
                int64_t begins[MAX_DOCUMENTS + 1];
                int64_t n_documents = make_documents(memo_test_int(1, 400), begins);
                memo_sharding sharding = sharding_of_documents(ring, ulysses, begins, n_documents);
                CHECK_CASE(!sharding_check(&sharding, &error), "ring %d ulysses %d: %s", ring,
                           ulysses, error.message);
                CHECK_IS(sharding.padded_tokens - sharding.n_tokens, <, ring * ulysses);
            }
}

/* Rows are those of the capacity; a ring rank has the same tokens in the same order as without. */
TEST(fewer_tokens_than_the_capacity_are_shared_by_all_ranks) {
    for (int i = 0; i < 300; i++) {
        int64_t begins[MAX_DOCUMENTS + 1];
        const int64_t n_documents = make_documents(memo_test_int(1, 400), begins);
        const int32_t ring = (int32_t)memo_test_int(1, 9), ulysses = (int32_t)memo_test_int(1, 4);
        const memo_sharding tight = sharding_of_documents(ring, ulysses, begins, n_documents);
        const int64_t capacity = tight.n_tokens + memo_test_int(0, 500);
        const memo_sharding roomy = sharding_with_room(&tight, capacity);
        CHECK_CASE(!sharding_check(&roomy, &error), "ring %d ulysses %d: %s", ring, ulysses,
                   error.message);
        CHECK_IS(roomy.padded_tokens - capacity, <, ring * ulysses);
        for (int32_t r = 0; r < ring; r++) {
            int64_t row = 0;
            for (int64_t t = 0; t < roomy.ring_tokens; t++) {
                const int64_t at =
                    memo_sharding_position(&roomy, r * ulysses + (int32_t)(t / roomy.local_tokens),
                                           t % roomy.local_tokens);
                if (at >= tight.n_tokens) continue;
                CHECK_IS(memo_sharding_position(&tight,
                                                r * ulysses + (int32_t)(row / tight.local_tokens),
                                                row % tight.local_tokens),
                         ==, at);
                row++;
            }
        }
    }
}

/* One document is cut as zigzag cuts a sequence, if 2 rd divides its length; each of three equal
 * documents stays on one of three ranks. */
TEST(one_document_is_a_zigzag_and_equal_documents_stay_whole) {
    static const int64_t one[] = {0, 0, 84, 84}, equal[] = {0, 28, 56, 84};
    const memo_sharding cut = sharding_of_documents(3, 1, one, 3);
    const memo_sharding whole = sharding_of_documents(3, 1, equal, 3);
    const memo_sharding zigzag = sharding_of(MEMO_SHARDING_ZIGZAG, 3, 1, 84);
    for (int32_t rank = 0; rank < 3; rank++) {
        memo_run run;
        CHECK_IS(memo_sharding_runs(&whole, rank, NULL), ==, 1);
        memo_sharding_runs(&whole, rank, &run);
        CHECK(run.count == 28 && run.start % 28 == 0);
        for (int64_t row = 0; row < 28; row++)
            CHECK_IS(memo_sharding_position(&cut, rank, row), ==,
                     memo_sharding_position(&zigzag, rank, row));
    }
}

/* Causal scores within documents, by ring rank.  Returns the number of documents that have rows on
 * more than one rank. */
static int64_t count_scores(const memo_sharding* sharding, double* scores) {
    own_memory int32_t* rank_of = (int32_t*)malloc((size_t)sharding->n_documents * 4);
    own_memory memo_run* runs = (memo_run*)malloc((size_t)(sharding->n_pieces + 3) * sizeof *runs);
    int64_t n_shared = 0, d;
    for (d = 0; d < sharding->n_documents; d++) rank_of[d] = -1;
    for (int32_t r = 0; r < sharding->ring; r++) {
        const int32_t n = memoi_sharding_ring_runs(sharding, r, runs);
        CHECK(n == memoi_sharding_ring_runs(sharding, r, NULL));
        scores[r] = 0;
        for (int32_t k = 0; k < n && runs[k].start < sharding->n_tokens; k++) {
            const double rows = (double)runs[k].count;
            for (d = 0; sharding->document_begins[d + 1] <= runs[k].start;) d++;
            scores[r] +=
                rows * ((double)(runs[k].start - sharding->document_begins[d]) + (rows + 1) / 2);
            n_shared += rank_of[d] >= 0 && rank_of[d] != r;
            if (rank_of[d] != -2) rank_of[d] = rank_of[d] == -1 || rank_of[d] == r ? r : -2;
        }
    }
    return n_shared;
}

/* Each halving of the ranks adds at most 1 / 32 of the mean, and rounding of chunks two rows of
 * each document. */
TEST(documents_are_balanced) {
    double worst = 0;
    for (int k = 0; k < 300; k++) {
        int32_t ring = (int32_t)memo_test_int(1, 9), r;
        int64_t begins[MAX_DOCUMENTS + 1];
        int64_t n_documents = make_documents(memo_test_int(1, 3000), begins), d;
        double scores[9], least, most, sum = 0;
        for (d = 0; d <= n_documents && k % 2; d++) begins[d] *= 1000;
        memo_sharding sharding = sharding_of_documents(ring, 1, begins, n_documents);
        count_scores(&sharding, scores);
        least = most = scores[0];
        for (r = 0; r < ring; r++) {
            least = fmin(least, scores[r]);
            most = fmax(most, scores[r]);
            sum += scores[r] / ring;
        }
        CHECK_IS(most - least, <=, sum * 4 / 32 + 2 * (double)sharding.n_tokens);
        if (k % 2) worst = fmax(worst, most / sum);
    }
    printf("# the busiest rank has at most %.3f of the mean scores\n", worst);
}

/* Documents of 0.5 to 1.5 of the mean length over 16 ranks: of 2,000 only few are cut, and the
 * busiest rank has at most 1.08 of the mean.  Half of the cases have one long document more. */
TEST(short_documents_stay_on_one_rank) {
    enum { RING = 16, N = 2000, MEAN = 200 };
    static int64_t begins[N + 2];
    for (int k = 0; k < 8; k++) {
        double scores[RING], most = 0, sum = 0;
        int64_t n = 0;
        begins[0] = 0;
        if (k % 2) begins[++n] = N * MEAN;
        for (int64_t d = 0; d < N; d++, n++)
            begins[n + 1] = begins[n] + memo_test_int(MEAN / 2, MEAN * 3 / 2);
        const memo_sharding sharding = sharding_of_documents(RING, 1, begins, n);
        const int64_t n_shared = count_scores(&sharding, scores);
        CHECK_OK(sharding_check(&sharding, &error));
        for (int32_t r = 0; r < RING; r++) {
            most = fmax(most, scores[r]);
            sum += scores[r] / RING;
        }
        CHECK_IS(most, <=, 1.08 * sum);
        CHECK_CASE(n_shared <= 4 * RING, "%d runs of documents on other ranks", (int)n_shared);
    }
}

/* Pairs of each ring rank, a query at a time: the most over the mean. */
static double busiest_of(const memo_sharding* sharding, const memo_segment* segments, int64_t n) {
    own_memory double* scores =
        (double*)calloc((size_t)sharding->n_tokens + (size_t)sharding->ring, sizeof *scores);
    double *of_ranks = scores + sharding->n_tokens, most = 0, all = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t q = segments[i].q_begin; q < segments[i].q_end; q++) {
            int64_t begin, end;
            memo_segment_keys(&segments[i], q, &begin, &end);
            scores[q] += (double)(end - begin);
            all += (double)(end - begin);
        }
    for (int64_t row = 0; row < sharding->ring * sharding->ring_tokens; row++) {
        const int64_t rank = row / sharding->ring_tokens;
        const int64_t at = memo_sharding_position(sharding, (int32_t)(row / sharding->local_tokens),
                                                  row % sharding->local_tokens);
        if (at < sharding->n_tokens) of_ranks[rank] += scores[at];
    }
    for (int32_t r = 0; r < sharding->ring; r++) most = fmax(most, of_ranks[r]);
    return all > 0 ? most * sharding->ring / all : 1;
}

/* Documents of 1/8 to 8 times the mean, about. */
static void make_uneven(int64_t n, int64_t n_tokens, int64_t* begins) {
    own_memory double* weights = (double*)malloc((size_t)n * sizeof *weights);
    double all = 0, so_far = 0;
    for (int64_t i = 0; i < n; i++)
        all += weights[i] = exp2((double)memo_test_int(-3000, 3000) / 1000);
    for (int64_t i = 0; i < n; i++) {
        begins[i] = (int64_t)((double)n_tokens * so_far / all);
        so_far += weights[i];
    }
    begins[n] = n_tokens;
}

/* Windows, cross-attention with documents of other lengths, and keys that begin and end anywhere: the
 * busiest rank has at most 1.1 of the mean.  By causal scores it has up to several times that. */
TEST(scores_of_segments_are_balanced) {
    enum { N = 200, TOKENS = 20000 };
    static memo_segment segments[TOKENS];
    double worst[3] = {0, 0, 0}, causal[3] = {0, 0, 0};
    for (int i = 0; i < memo_test_cases(60, 600); i++) {
        int64_t begins[N + 1], keys[N + 1], n = memo_test_int(i % 3 == 2 ? 1 : 60, N), n_segments;
        static int64_t first[TOKENS], end[TOKENS];
        memo_mask_desc window = {.n_tokens = TOKENS, .document_begins = begins, .n_documents = n};
        memo_sharding sharding;
        make_uneven(n, TOKENS, begins);
        make_uneven(n, TOKENS, keys);
        window.window_before = memo_test_int(20, 2000);
        if (i % 3 == 0)
            CHECK_OK(memo_mask_documents(&window, segments, &n_segments, &error));
        else if (i % 3 == 1)
            CHECK_OK(memo_mask_cross(begins, keys, n, segments, &n_segments, &error));
        else { /* in one document; ends go up by 0 to 2 a query */
            const int64_t each = memo_test_int(100, 3000);
            begins[n = 1] = TOKENS;
            for (int64_t q = 0; q < TOKENS; q++) {
                first[q] = q / each * each;
                end[q] = first[q] + each + q % each / 2;
            }
            CHECK_OK(
                memo_mask_intervals(first, end, TOKENS, 2 * TOKENS, segments, &n_segments, &error));
        }
        memo_sharding_desc desc = {.kind = MEMO_SHARDING_DOCUMENTS,
                                   .ring = (int32_t)memo_test_int(1, 16),
                                   .ulysses = (int32_t)memo_test_int(1, 2),
                                   .n_tokens = TOKENS,
                                   .document_begins = begins,
                                   .n_documents = n};
        CHECK_OK(memo_sharding_make(&desc, &sharding, &error));
        causal[i % 3] = fmax(causal[i % 3], busiest_of(&sharding, segments, n_segments));
        memo_sharding_free(&sharding);

        desc.segments = segments;
        desc.n_segments = n_segments;
        CHECK_OK(memo_sharding_make(&desc, &sharding, &error));
        CHECK_OK(sharding_check(&sharding, &error));
        const double busiest = busiest_of(&sharding, segments, n_segments);
        IN_CASE("case %d, ring %d, %d documents", i, (int)desc.ring, (int)n);
        CHECK_IS(busiest, <=, 1.1);
        worst[i % 3] = fmax(worst[i % 3], busiest);
        memo_sharding_free(&sharding);
    }
    printf(
        "# windows %.3f, cross-attention %.3f, intervals %.3f; by causal scores %.3f, %.3f, %.3f\n",
        worst[0], worst[1], worst[2], causal[0], causal[1], causal[2]);
}

/* Packed documents under the zigzag of the sequence: the same documents, unequal work. */
TEST(zigzag_of_the_sequence_does_not_balance_documents) {
    static const int64_t begins[] = {0, 64, 128, 192, 256, 384, 512};
    memo_sharding sharding = sharding_of_documents(4, 1, begins, 6), zigzag;
    double scores[4];
    count_scores(&sharding, scores);
    double most = fmax(fmax(scores[0], scores[1]), fmax(scores[2], scores[3]));
    double least = fmin(fmin(scores[0], scores[1]), fmin(scores[2], scores[3]));
    CHECK_IS(most, <=, 1.07 * least);
    zigzag = sharding_of(MEMO_SHARDING_ZIGZAG, 4, 1, 512);
    zigzag.document_begins = begins;
    zigzag.n_documents = 6;
    zigzag.n_pieces = 6;
    count_scores(&zigzag, scores);
    CHECK_IS(fabs(scores[0] - scores[3]), >, 0.2 * scores[0]);
}

/* The paper's Algorithm 2, literally: chunk the sequence, concatenate, chunk again. */
TEST(zigzag_is_algorithm_2) {
    for (int32_t rd = 1; rd <= 5; rd++)
        for (int32_t ud = 1; ud <= 5; ud++) {
            int64_t s = 2 * rd * ud * 3, chunk = s / (2 * rd), local = s / (rd * ud), i;
            memo_sharding sharding = sharding_of(MEMO_SHARDING_ZIGZAG, rd, ud, s);
            CHECK(sharding.padded_tokens == s && sharding.local_tokens == local);
            for (int32_t r = 0; r < rd; r++)
                for (int32_t u = 0; u < ud; u++)
                    for (i = 0; i < local; i++) {
                        int64_t in_reorder = u * local + i;
                        int64_t seq = in_reorder < chunk
                                          ? r * chunk + in_reorder
                                          : (2 * rd - r - 1) * chunk + in_reorder - chunk;
                        CHECK_IS(memo_sharding_position(&sharding, r * ud + u, i), ==, seq);
                    }
        }
}

/* The check of shardings finds faults. */
TEST(the_check_finds_wrong_shardings) {
    static const int64_t begins[] = {0, 20, 50}, falling[] = {0, 60, 50};
    const memo_sharding zigzag = sharding_of(MEMO_SHARDING_ZIGZAG, 3, 2, 50);
    const memo_sharding documents = sharding_of_documents(3, 2, begins, 2);
    CHECK_OK(sharding_check(&zigzag, &error));
    CHECK_OK(sharding_check(&documents, &error));
    for (int k = 0; k < 8; k++) {
        memo_sharding wrong = k < 6 ? zigzag : documents;
        if (k == 0) wrong.local_tokens--;
        if (k == 1) wrong.ring_tokens += 2;
        if (k == 2) wrong.padded_tokens += 12;
        if (k == 3) wrong.n_tokens = 30; /* more padding than needed */
        if (k == 4) wrong.n_tokens = 70;
        if (k == 5) wrong.ring = 0;
        if (k == 6) wrong.document_begins = falling;
        if (k == 7) wrong.n_documents = 1;
        CHECK_CASE(sharding_check(&wrong, &error) == MEMO_STATUS_INVALID_ARGUMENT, "case %d", k);
    }
}

TEST(invalid_arguments_are_refused) {
    static const int64_t begins[] = {0, 3, 8};
    memo_sharding sharding;
    memo_sharding_desc plain = {.n_tokens = 8};
    CHECK_OK(memo_sharding_make(&plain, &sharding, &error));
    CHECK(sharding.ring == 1 && sharding.ulysses == 1 && sharding.local_tokens == 8);
    memo_sharding_desc documents = plain;
    documents.kind = MEMO_SHARDING_DOCUMENTS;
    documents.document_begins = begins;
    documents.n_documents = 2;
    CHECK_OK(keep_sharding(&documents, &sharding, &error));
    for (int k = 0; k < 22; k++) {
        static const memo_segment wrong[] = {
            {0, 9, 0, 9, MEMO_SEGMENT_FULL, 0},   {4, 8, 0, 8, MEMO_SEGMENT_FULL, 0},
            {3, 5, 0, 8, MEMO_SEGMENT_FULL, 0},   {0, 4, 5, 5, MEMO_SEGMENT_FULL, 0},
            {0, 4, 0, 3, MEMO_SEGMENT_CAUSAL, 0}, {0, 4, 0, INT64_MAX, MEMO_SEGMENT_FULL, 0},
            {0, 4, 0, 8, (memo_segment_type)4, 0}};
        memo_sharding_desc bad = k < 4 || (k > 7 && k < 11) ? plain : documents;
        if (k == 0) bad.n_tokens = 0;
        if (k == 1) bad.ring = -1;
        if (k == 2) bad.ring = bad.ulysses = 0x7fffffff;
        if (k == 3) bad.kind = (memo_sharding_kind)7;
        if (k == 4) bad.document_begins = NULL, bad.n_documents = 0;
        if (k == 5) bad.n_tokens = 9;
        if (k == 6) bad.kind = MEMO_SHARDING_ZIGZAG;
        if (k == 7) bad.slice_tokens = 4;
        if (k == 8) bad.slice_tokens = -4;
        if (k == 9) bad.slice_tokens = 6, bad.ring = 2;
        if (k == 10) bad.slice_tokens = 4, bad.kind = MEMO_SHARDING_DOCUMENTS;
        if (k == 11) bad.ring = (1 << 16) + 1; /* memory grows with the ranks */
        if (k == 12) bad.capacity = 7;
        if (k == 13) bad.capacity = -1;
        if (k == 14) bad.capacity = 9, bad.kind = MEMO_SHARDING_ZIGZAG, bad.document_begins = NULL;
        if (k == 15) bad.segments = wrong, bad.n_segments = 1; /* beyond n_tokens */
        if (k == 16) bad.segments = wrong + 1, bad.n_segments = 2;
        if (k == 17) bad.n_segments = 1;
        if (k >= 18) bad.segments = wrong + k - 15, bad.n_segments = 1;
        CHECK_CASE(memo_sharding_make(&bad, &sharding, &error) == MEMO_STATUS_INVALID_ARGUMENT,
                   "case %d", k);
    }
}

TEST(positions_count_within_documents) {
    static const int64_t begins[] = {0, 4, 4, 11, 20};
    memo_sharding sharding = sharding_of(MEMO_SHARDING_ZIGZAG, 3, 2, 20);
    int64_t positions[8], i;
    CHECK_IS(sharding.local_tokens, ==, 4);
    for (int32_t rank = 0; rank < 6; rank++) {
        memoi_sharding_positions(&sharding, rank, positions);
        for (i = 0; i < 4; i++)
            CHECK_IS(positions[i], ==, memo_sharding_position(&sharding, rank, i));
    }
    sharding = sharding_of_documents(2, 1, begins, 4); /* knows them itself */
    for (int32_t rank = 0; rank < 2; rank++) {
        int64_t n_zeros = 0, more[10];
        memoi_sharding_positions(&sharding, rank, more);
        for (i = 0; i < 10; i++) {
            int64_t t = memo_sharding_position(&sharding, rank, i);
            CHECK_IS(more[i], ==, t - (t >= 11 ? 11 : t >= 4 ? 4 : 0));
            n_zeros += more[i] == 0;
        }
        CHECK_IS(n_zeros, ==, (rank ? 0 : 3)); /* rank 0 has the begin of each */
    }
}

/* An arbitrary loss of a label. */
static double loss_of(int64_t position, int32_t label) {
    return 1 + 0.25 * (double)label + 0.01 * (double)(position % 7);
}

/* All ranks together have the labels of the sequence: none lost, none added, none across a
 * border. */
TEST(labels_are_shifted_before_sharding) {
    for (int k = 0; k < 100; k++) {
        int32_t ring = (int32_t)memo_test_int(1, 4), ulysses = (int32_t)memo_test_int(1, 4), rank;
        int64_t n_tokens = memo_test_int(1, 70), n_batch = memo_test_int(1, 2), i, b;
        int64_t begins[4], n_found = 0, n_expected = 0, ahead = k % 3 ? 1 : memo_test_int(-5, 5);
        int32_t tokens[140], labels[140];
        double sum = 0, expected = 0;
        int is_documents = k % 3 == 2;
        begins[0] = 0;
        begins[1] = memo_test_int(0, n_tokens);
        begins[2] = memo_test_int(begins[1], n_tokens);
        begins[3] = n_tokens;
        memo_sharding sharding =
            is_documents ? sharding_of_documents(ring, ulysses, begins, 3)
                         : sharding_of((memo_sharding_kind)(k % 3), ring, ulysses, n_tokens);
        for (i = 0; i < n_batch * n_tokens; i++) tokens[i] = (int32_t)memo_test_int(0, 99);
        for (b = 0; b < n_batch; b++)
            for (i = 0; i < n_tokens; i++) {
                int64_t to = i + ahead, first = to < i ? to : i, last = to < i ? i : to;
                if (to < 0 || to >= n_tokens) continue;
                /* no document begins after the first of the two, up to the last */
                if ((begins[1] > first && begins[1] <= last) ||
                    (begins[2] > first && begins[2] <= last))
                    continue;
                n_expected++;
                expected += loss_of(i, tokens[b * n_tokens + to]);
            }
        for (rank = 0; rank < ring * ulysses; rank++) {
            n_found += memo_sharding_labels(&sharding, rank, n_batch, tokens, ahead,
                                            is_documents ? NULL : begins, is_documents ? 0 : 3,
                                            -100, labels);
            for (b = 0; b < n_batch; b++)
                for (i = 0; i < sharding.local_tokens; i++) {
                    int64_t t = memo_sharding_position(&sharding, rank, i);
                    int32_t label = labels[b * sharding.local_tokens + i];
                    if (label == -100) continue;
                    sum += loss_of(t, label);
                    CHECK(t + ahead >= 0 && t + ahead < n_tokens &&
                          label == tokens[b * n_tokens + t + ahead]);
                }
        }
        CHECK_IS(n_found, ==, n_expected);
        CHECK_IS(fabs(sum - expected), <, 1e-9);
    }
}

/* Begins padded with the end to a fixed length: the same runs, positions, labels and masks. */
TEST(padded_documents_change_nothing) {
    for (int i = 0; i < 100; i++) {
        const int64_t n_tokens = memo_test_int(1, 90);
        int64_t begins[2 * MAX_DOCUMENTS + 1], positions[2][90];
        int32_t tokens[90], labels[2][90];
        memo_run runs[2][90];
        const int64_t n = make_documents(n_tokens, begins), n_padded = 2 * MAX_DOCUMENTS;
        const int32_t ring = (int32_t)memo_test_int(1, 4), ulysses = (int32_t)memo_test_int(1, 3);
        memo_mask_desc desc = {.n_tokens = n_tokens, .n_keys = n_tokens};
        memo_mask masks[2];
        memo_sharding shardings[2];
        for (int64_t k = n + 1; k <= n_padded; k++) begins[k] = n_tokens;
        for (int64_t t = 0; t < n_tokens; t++) tokens[t] = (int32_t)memo_test_int(0, 99);
        desc.first_query = memo_test_int(-5, 5);
        desc.document_begins = begins;
        for (int k = 0; k < 2; k++) {
            desc.n_documents = k ? n_padded : n;
            masks[k] = made_mask(&desc);
        }
        CHECK(masks[0].n_segments == masks[1].n_segments &&
              !memcmp(masks[0].segments, masks[1].segments,
                      (size_t)masks[0].n_segments * sizeof *masks[0].segments));
        for (int k = 0; k < 2; k++) made_mask_free(&masks[k]);

        for (int k = 0; k < 2; k++)
            shardings[k] = sharding_of_documents(ring, ulysses, begins, k ? n_padded : n);
        for (int32_t rank = 0; rank < ring * ulysses; rank++) {
            int32_t n_runs[2];
            int64_t n_labels[2];
            for (int k = 0; k < 2; k++) {
                n_runs[k] = memo_sharding_runs(&shardings[k], rank, runs[k]);
                memoi_sharding_positions(&shardings[k], rank, positions[k]);
                n_labels[k] =
                    memo_sharding_labels(&shardings[k], rank, 1, tokens, 1 + i % 2,
                                         i % 3 ? begins : NULL, k ? n_padded : n, -1, labels[k]);
            }
            const size_t n_rows = (size_t)shardings[0].local_tokens;
            CHECK(n_runs[0] == n_runs[1] && n_labels[0] == n_labels[1] &&
                  !memcmp(runs[0], runs[1], (size_t)n_runs[0] * sizeof(memo_run)) &&
                  !memcmp(positions[0], positions[1], n_rows * sizeof **positions) &&
                  !memcmp(labels[0], labels[1], n_rows * sizeof **labels));
        }
    }
}

/* ---- the mean over ranks that run ---- */

static memo_status mean_loss_rank(thread_rank* rank, memo_error* e) {
    const int32_t* tokens = (const int32_t*)rank->user;
    const int32_t me = rank->comm->rank; /* rank 0 has the padding */
    const memo_sharding sharding = sharding_of(MEMO_SHARDING_ZIGZAG, 3, 2, 101);
    int32_t labels[64];
    double sums[2], expected = 0;
    for (int64_t i = 0; i < 100; i++) expected += loss_of(i, tokens[i + 1]) / 100;
    sums[1] = (double)memo_sharding_labels(&sharding, me, 1, tokens, 1, NULL, 0, -1, labels);
    sums[0] = 0;
    for (int64_t i = 0; i < sharding.local_tokens; i++)
        if (labels[i] != -1)
            sums[0] += loss_of(memo_sharding_position(&sharding, me, i), labels[i]);
    double gradient = sums[0];
    memo_status status = memo_all_reduce(rank->comm, rank->stream, sums, sums, 2, MEMO_TYPE_F64,
                                         MEMO_REDUCTION_SUM, e);
    if (!status) status = memo_stream_synchronize(rank->device, rank->stream, e);
    /* Of a weight that scales all losses: each label's is loss / n, and ranks are summed, not
     * averaged. */
    gradient /= sums[1];
    if (!status)
        status = memo_all_reduce(rank->comm, rank->stream, &gradient, &gradient, 1, MEMO_TYPE_F64,
                                 MEMO_REDUCTION_SUM, e);
    if (!status) status = memo_stream_synchronize(rank->device, rank->stream, e);
    CHECK_IS(sums[1], ==, 100);
    CHECK_IS(fabs(sums[0] / sums[1] - expected), <, 1e-12 * expected);
    CHECK_IS(fabs(gradient - expected), <, 1e-12 * expected);
    return status;
}

TEST(the_mean_loss_matches_one_rank) {
    int32_t tokens[101];
    for (int i = 0; i < 101; i++) tokens[i] = (int32_t)memo_test_int(0, 99);
    CHECK_OK(thread_ranks_run(6, mean_loss_rank, tokens, &error));
}

TEST(heads_are_dealt_out) {
    for (int32_t group = 1; group <= 5; group++)
        for (int32_t n_kv = 1; n_kv <= 9; n_kv++)
            for (int32_t ulysses = 1; ulysses <= 9; ulysses++) {
                int32_t n_q = group * n_kv, next = 0;
                for (int32_t u = 0; u < ulysses; u++) {
                    memo_ulysses_heads heads = memoi_shape_split_heads(n_q, n_kv, ulysses, u);
                    CHECK_IS(heads.first_q, ==, next);
                    CHECK(heads.n_q >= n_q / ulysses && heads.n_q <= (n_q + ulysses - 1) / ulysses);
                    next += heads.n_q;
                    if (!heads.n_q) {
                        CHECK(!heads.n_kv);
                        continue;
                    }
                    CHECK_IS(heads.first_kv, ==, heads.first_q / group);
                    CHECK_IS(heads.first_kv + heads.n_kv - 1, ==, (next - 1) / group);
                }
                CHECK_IS(next, ==, n_q);
            }
}
