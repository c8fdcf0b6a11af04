/* test_loss.c - the cross-entropy kernels and the loss in tiles, against a dense reference in
 * double. */
#include "memo_sp.h"
#include "extras/memo_look.h"

#include "thread_ranks.h"
#include "typed.h"
#include "owned.h"
#include <sys/mman.h>

/* Half a unit of the last place of a number near 1. */
static double half_unit(memo_type type) {
    return type == MEMO_TYPE_F32 ? 6e-8 : type == MEMO_TYPE_BF16 ? 1.0 / 256 : 1.0 / 2048;
}

/* The rule of a loss, 0: none. */
typedef struct rule {
    double softcap;
} rule;
static const rule plain = {0};

static rule random_rule(void) {
    rule r = plain;
    if (memo_test_int(0, 2) == 0) r.softcap = (float)(1 + 30 * memo_test_real());
    return r;
}

static double capped(const rule* r, double x) {
    return r->softcap > 0 ? r->softcap * tanh(x / r->softcap) : x;
}

/* The obvious softmax of a row in double: the loss of label, and the gradient over scale.  The
 * label's own p - 1 is the sum of the other p, so that it has all of its digits. */
static double row_loss(const rule* r, const double* logits, int64_t n, int64_t label,
                       double* gradient) {
    double max = -INFINITY, sum = 0, others = 0, z;
    for (int64_t i = 0; i < n; i++)
        if (capped(r, logits[i]) > max) max = capped(r, logits[i]);
    for (int64_t i = 0; i < n; i++) {
        z = capped(r, logits[i]);
        sum += exp(z - max);
        if (i != label) others += exp(z - max);
    }
    double lse = max + log(sum);
    for (int64_t i = 0; i < n; i++) {
        z = capped(r, logits[i]);
        double p = exp(z - max) / sum;
        double d = i == label ? -others / sum : p;
        gradient[i] = r->softcap > 0 ? d / pow(cosh(logits[i] / r->softcap), 2) : d;
    }
    z = capped(r, logits[label]);
    return z == max ? log1p(others) : lse - z;
}

/* The reference's own gradient. */
TEST(the_rule_s_gradient_matches_central_differences) {
    double x[20], gradient[20], ignored[20];
    for (int k = 0; k < 200; k++) {
        const int n = (int)memo_test_int(1, 20), label = (int)memo_test_int(0, n - 1);
        const rule r = random_rule();
        for (int i = 0; i < n; i++) x[i] = (memo_test_real() - 0.5) * 8;
        row_loss(&r, x, n, label, gradient);
        for (int i = 0; i < n; i++) {
            const double at = x[i], h = 1e-5;
            x[i] = at + h;
            double up = row_loss(&r, x, n, label, ignored);
            x[i] = at - h;
            double down = row_loss(&r, x, n, label, ignored);
            x[i] = at;
            CHECK_IS(fabs((up - down) / (2 * h) - gradient[i]), <=, 1e-7);
        }
    }
}

/* ---- kernels ---- */

#define MAX_PARTS 4
#define MAX_WIDTH 700

/* Random rows, cut into parts of any width, each with its own stride. */
TEST(kernels_match_the_reference) {
    static double logits[MAX_WIDTH], gradient[MAX_WIDTH];
    static float memory[MAX_PARTS][12 * (MAX_WIDTH + 16) + 16];
    for (int k = 0; k < 300; k++) {
        const memo_type types[] = {MEMO_TYPE_F32, MEMO_TYPE_BF16, MEMO_TYPE_F16};
        const memo_type type = types[memo_test_int(0, 2)];
        const int64_t n_rows = memo_test_int(1, 12), n = memo_test_int(1, k % 4 ? 40 : MAX_WIDTH);
        const int32_t n_parts = (int32_t)memo_test_int(1, MAX_PARTS);
        const double spread = k % 5 == 0 ? 100 : 4;
        const float scale = (float)memo_test_real();
        IN_CASE("case %d", k);
        memo_cross_entropy_desc desc[MAX_PARTS];
        const rule r = random_rule();
        float parts[12 * MEMO_LOSS_NUMBERS * MAX_PARTS], losses[12];
        double sums[3] = {3, 5, 7}, sum = 3;
        int64_t borders[MAX_PARTS + 1], row, i, n_labels = 0;
        int32_t labels[12], p;
        char* at[MAX_PARTS];

        /* Parts may be empty. */
        borders[0] = 0;
        for (p = 1; p < n_parts; p++) borders[p] = memo_test_int(borders[p - 1], n);
        borders[n_parts] = n;
        for (p = 0; p < n_parts; p++) {
            at[p] = (char*)memory[p] + memo_test_int(0, 4) * 4;
            desc[p] = (memo_cross_entropy_desc){.logits = at[p],
                                                .d_logits = at[p],
                                                .type = type,
                                                .n_rows = n_rows,
                                                .n_columns = borders[p + 1] - borders[p],
                                                .first_column = borders[p],
                                                .labels = labels,
                                                .parts = parts,
                                                .losses = losses,
                                                .sums = sums,
                                                .n_parts = n_parts,
                                                .part = p,
                                                .scale = scale,
                                                .vocabulary = n,
                                                .softcap = (float)r.softcap};
            desc[p].stride = desc[p].n_columns + memo_test_int(0, 8);
        }
        for (row = 0; row < n_rows; row++)
            labels[row] = memo_test_int(0, 5) ? (int32_t)memo_test_int(0, n - 1) : -100;
        for (p = 0; p < n_parts; p++)
            for (row = 0; row < n_rows; row++)
                for (i = 0; i < desc[p].n_columns; i++) {
                    double x = (memo_test_real() - 0.5) * spread;
                    /* Masked logits, but never the label's. */
                    if (memo_test_int(0, 9) == 0 && borders[p] + i != labels[row] &&
                        labels[row] >= 0 && r.softcap == 0)
                        x = -INFINITY;
                    typed_set(at[p], row * desc[p].stride + i, type, x);
                }

        /* Before the logits are overwritten. */
        static double expected[12][MAX_WIDTH], expected_loss[12];
        for (row = 0; row < n_rows; row++) {
            for (p = 0; p < n_parts; p++)
                for (i = 0; i < desc[p].n_columns; i++)
                    logits[borders[p] + i] = typed_at(at[p], row * desc[p].stride + i, type);
            expected_loss[row] = 0;
            if (labels[row] >= 0) {
                expected_loss[row] = row_loss(&r, logits, n, labels[row], gradient);
                sum += expected_loss[row];
                n_labels++;
            }
            for (i = 0; i < n; i++) expected[row][i] = labels[row] < 0 ? 0 : gradient[i];
        }
        for (p = 0; p < n_parts; p++)
            CHECK_OK(memo_row_run(MEMO_ROW_SOFTMAX_PARTS, &desc[p], &error));
        for (p = 0; p < n_parts; p++)
            CHECK_OK(memo_row_run(MEMO_ROW_CROSS_ENTROPY, &desc[p], &error));
        CHECK_OK(memo_row_run(MEMO_ROW_LOSS_SUMS, &desc[0], &error));
        for (row = 0; row < n_rows; row++) {
            CHECK_IS(fabs((double)losses[row] - expected_loss[row]), <=,
                     2e-6 * (1 + spread / 2) + 2e-6 * fabs(expected_loss[row]));
            for (p = 0; p < n_parts; p++)
                for (i = 0; i < desc[p].n_columns; i++) {
                    double d = typed_at(at[p], row * desc[p].stride + i, type);
                    double e = expected[row][borders[p] + i] * (double)scale;
                    CHECK_CASE(fabs(d - e) <= half_unit(type) * fabs(e) +
                                                  6e-8 /* of the least f16 */ +
                                                  5e-6 * (1 + spread / 4) * (double)scale,
                               "gradient %g, not %g", d, e);
                }
        }
        CHECK_IS(sums[1], ==, 5 + (double)n_labels);
        CHECK_IS(sums[2], ==, 7);
        CHECK_IS(fabs(sums[0] - sum), <=,
                 2e-6 * (1 + spread / 2) * (double)(n_rows + 1) + 2e-6 * fabs(sum));
    }
}

/* Bytes between and after the rows stay; without d_logits all logits stay. */
TEST(kernels_write_nothing_else) {
    float logits[5 * 9], before[5 * 9], parts[4 * MEMO_LOSS_NUMBERS], losses[4];
    int32_t labels[4] = {0, 6, -1, 3};
    for (int has_gradient = 0; has_gradient < 2; has_gradient++) {
        for (int i = 0; i < 45; i++) before[i] = logits[i] = (float)memo_test_real();
        memo_cross_entropy_desc desc = {.logits = logits,
                                        .d_logits = has_gradient ? logits : NULL,
                                        .labels = labels,
                                        .parts = parts,
                                        .losses = losses,
                                        .n_rows = 4,
                                        .n_columns = 7,
                                        .stride = 9,
                                        .scale = 1};
        CHECK_OK(memo_row_run(MEMO_ROW_SOFTMAX_PARTS, &desc, &error));
        CHECK_IS(memcmp(logits, before, sizeof before), ==, 0);
        CHECK_OK(memo_row_run(MEMO_ROW_CROSS_ENTROPY, &desc, &error));
        CHECK_OK(memo_row_run(MEMO_ROW_LOSS_SUMS, &desc, &error)); /* sums NULL: nothing */
        for (int i = 0; i < 45; i++) {
            int is_logit = i / 9 < 4 && i % 9 < 7;
            CHECK(is_logit && has_gradient ? logits[i] != before[i] : logits[i] == before[i]);
        }
        CHECK_IS(losses[2], ==, 0);
        for (int i = 0; i < 7; i++) CHECK(!has_gradient || logits[2 * 9 + i] == 0);
    }
}

/* One part of one row in fp32, with its gradient. */
static memo_cross_entropy_desc one_row(const float* logits, float* d, int64_t n,
                                       const int32_t* label, float* loss) {
    static float parts[MEMO_LOSS_NUMBERS];
    static double sums[3];
    sums[0] = sums[1] = sums[2] = 0;
    return (memo_cross_entropy_desc){.logits = logits,
                                     .d_logits = d,
                                     .labels = label,
                                     .parts = parts,
                                     .losses = loss,
                                     .sums = sums,
                                     .n_rows = 1,
                                     .n_columns = n,
                                     .scale = 1};
}
static void run_row(const memo_cross_entropy_desc* desc) {
    CHECK_OK(memo_row_run(MEMO_ROW_SOFTMAX_PARTS, desc, &error));
    CHECK_OK(memo_row_run(MEMO_ROW_CROSS_ENTROPY, desc, &error));
    CHECK_OK(memo_row_run(MEMO_ROW_LOSS_SUMS, desc, &error));
}

/* Large logits, and labels that are nearly certain: every gradient and the loss have nearly all
 * digits of fp32.  One LSE in fp32 loses them: LSE 7157 is known to 2.4e-4. */
TEST(large_logits_and_confident_labels_are_exact) {
    static const double bases[] = {0, 100, 7157, -7157, 60000}, gaps[] = {0, 4, 12, 20, 60};
    enum { N = 500 };
    float x[N], d[N], loss;
    double exact[N], gradient[N], expected, worst = 0;
    for (int base = 0; base < 5; base++)
        for (int gap = 0; gap < 5; gap++)
            for (int k = 0; k < 2; k++) { /* the label is the largest, or any */
                int32_t label = (int32_t)memo_test_int(0, N - 1);
                memo_cross_entropy_desc desc = one_row(x, d, N, &label, &loss);
                for (int i = 0; i < N; i++) {
                    x[i] = (float)(bases[base] + 3 * memo_test_real() +
                                   (i == (k ? label : N / 2) ? gaps[gap] : 0));
                    exact[i] = (double)x[i];
                }
                run_row(&desc);
                expected = row_loss(&plain, exact, N, label, gradient);
                CHECK_CASE(fabs((double)loss - expected) <= 1e-7 * (20 + gaps[gap]) * expected,
                           "loss %g, not %g", (double)loss, expected);
                for (int i = 0; i < N; i++) {
                    double off = fabs((double)d[i] - gradient[i]) / fabs(gradient[i]);
                    if (off > worst) worst = off;
                    CHECK_CASE(off <= 1e-7 * (20 + gaps[gap]), "logits near %g: %g, not %g",
                               bases[base], (double)d[i], gradient[i]);
                }
            }
    printf("# worst relative error of a gradient: %.2g\n", worst);
}

/* A row has the same bits wherever it begins and whichever column has the label, so pairs that are
 * read whole have the bits of the others. */
TEST(bits_do_not_depend_on_alignment) {
    enum { N = 1500, FAR = 12 };
    static float memory[2][N + FAR + 16];
    int n_plain = 0;
    for (int k = 0; k < 400; k++) {
        const memo_type types[] = {MEMO_TYPE_F32, MEMO_TYPE_BF16, MEMO_TYPE_F16};
        const memo_type type = types[k % 3];
        const int64_t n = memo_test_int(1, k % 2 ? 300 : N),
                      element = type == MEMO_TYPE_F32 ? 4 : 2;
        const int32_t label = (int32_t)memo_test_int(k % 8 ? 0 : -1, n - 1);
        float parts[2][MEMO_LOSS_NUMBERS], loss[2];
        char* at[2];
        IN_CASE("case %d: %lld columns, label %d", k, (long long)n, (int)label);
        for (int side = 0; side < 2; side++)
            at[side] = (char*)(((uintptr_t)memory[side] + 15) & ~(uintptr_t)15) +
                       (side ? memo_test_int(1, 16 / element - 1) * element : 0);
        for (int64_t i = 0; i < n; i++) {
            double x = (memo_test_real() - 0.5) * (k % 5 ? 8 : 300);
            if (k % 4 == 0 && memo_test_int(0, 9) == 0) x = -INFINITY;
            if (k % 16 == 3 && i == n / 2) x = memo_test_nan();
            for (int side = 0; side < 2; side++) typed_set(at[side], i, type, x);
        }
        for (int side = 0; side < 2; side++) {
            memo_cross_entropy_desc desc = one_row(memory[0], NULL, n, &label, &loss[side]);
            desc.logits = desc.d_logits = at[side];
            desc.type = type;
            desc.parts = parts[side];
            run_row(&desc);
        }
        CHECK(memcmp(parts[0], parts[1], sizeof parts[0]) == 0);
        CHECK(memcmp(&loss[0], &loss[1], sizeof loss[0]) == 0);
        CHECK(memcmp(at[0], at[1], (size_t)(n * element)) == 0);
        n_plain += n > 33 * 16 / element;
    }
    CHECK(n_plain > 100); /* rows that have such a pair */
}

TEST(labels_beyond_the_vocabulary_are_counted) {
    float x[4 * 3] = {1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3}, parts[4 * MEMO_LOSS_NUMBERS], losses[4];
    int32_t labels[4] = {2, 3, -7, INT32_MAX}, i;
    memo_cross_entropy_desc desc = one_row(x, x, 3, labels, losses);
    desc.n_rows = 4;
    desc.parts = parts;
    run_row(&desc);
    CHECK(losses[0] > 0 && losses[1] != losses[1] && losses[2] == 0 && losses[3] != losses[3]);
    CHECK(desc.sums[0] != desc.sums[0] && desc.sums[1] == 1 && desc.sums[2] == 2);
    for (i = 0; i < 9; i++) CHECK(x[3 + i] == 0);
}

TEST(extremes) {
    float logits[3] = {3e38f, -3e38f, 3e38f}, d[3], loss;
    int32_t label = 2;
    memo_cross_entropy_desc desc = one_row(logits, d, 3, &label, &loss);
    run_row(&desc);
    CHECK(loss >= 0 && loss < 1e32f && d[1] == 0);
    label = 1;
    logits[1] = -INFINITY; /* the label's own */
    run_row(&desc);
    CHECK(loss == INFINITY && d[1] == -1 && d[0] == 0.5f);
    logits[0] = (float)memo_test_nan(); /* a NaN is not hidden, wherever it is */
    logits[1] = logits[2] = -INFINITY;
    run_row(&desc);
    CHECK(loss != loss && d[2] != d[2]);
    label = 0;
    logits[1] = logits[2] = 0;
    run_row(&desc);
    CHECK(loss != loss && d[0] != d[0] && d[2] != d[2]);
    logits[0] = 5; /* the only column */
    desc.n_columns = 1;
    run_row(&desc);
    CHECK(loss == 0 && d[0] == 0);
}

static void refuses(memo_row_kind kind, const memo_cross_entropy_desc* desc, const char* text) {
    CHECK_ERROR(memo_row_run(kind, desc, &error), INVALID_ARGUMENT, text);
}

TEST(descs_that_are_refused) {
    float x[2 * MEMO_LOSS_NUMBERS + 2] = {0};
    int32_t labels[2] = {0, 0};
    memo_cross_entropy_desc desc = {0};
    CHECK_OK(memo_row_run(MEMO_ROW_SOFTMAX_PARTS, &desc, &error)); /* no rows */
    desc.n_rows = 1;
    desc.n_columns = 2;
    refuses(MEMO_ROW_CROSS_ENTROPY, &desc, "logits");
    desc.logits = x;
    refuses(MEMO_ROW_CROSS_ENTROPY, &desc, "labels");
    desc.labels = labels;
    refuses(MEMO_ROW_CROSS_ENTROPY, &desc, "parts");
    desc.parts = x + 2;
    refuses(MEMO_ROW_CROSS_ENTROPY, &desc, "losses");
    desc.losses = x;
    desc.n_parts = 2;
    WITH(desc.part, 2, refuses(MEMO_ROW_SOFTMAX_PARTS, &desc, "part"));
    refuses(MEMO_ROW_SOFTMAX_PARTS, &desc, "vocabulary");
    desc.vocabulary = 2;
    WITH(desc.softcap, (float)memo_test_nan(), refuses(MEMO_ROW_SOFTMAX_PARTS, &desc, "softcap"));
    desc.sums = (double*)(void*)((char*)x + 4);
    if ((uintptr_t)desc.sums % 8) refuses(MEMO_ROW_LOSS_SUMS, &desc, "sums");
    desc.sums = NULL;
    desc.type = MEMO_TYPE_I32;
    CHECK_IS(memo_row_run(MEMO_ROW_SOFTMAX_PARTS, &desc, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
}

/* ---- tiles over tensor ranks ---- */

typedef struct tiles_case {
    int32_t n_ranks;
    int64_t n_rows, n_in, vocabulary, tile_rows;
    memo_type type;
    float scale;
    const float *x, *weights; /* (n_rows, n_in), (vocabulary, n_in) */
    const int32_t* labels;
    /* What each rank finds. */
    float *losses[8], *d_x[8], *d_weights[8];
    double sums[8][3], means[8];
    rule rule;
    int64_t sent_bytes[8], device_bytes[8], n_tiles[8];
} tiles_case;

/* The trainer's products on one rank: plain loops, which run on the stream. */
typedef struct products {
    const tiles_case* c;
    memo_device* device;
    float *d_x, *d_weights;
    int64_t n_tiles;
} products;

typedef struct product_args {
    products* p;
    memo_loss_tile tile;
    int is_back;
} product_args;

/* Logits of a tile, or of their gradients those of x and of the weights. */
static memo_status products_run(void* args, MEMO_UNUSED memo_error* e) {
    const product_args* a = (const product_args*)args;
    const tiles_case* c = a->p->c;
    for (int64_t k = 0; k < a->tile.n_rows * a->tile.n_columns; k++) {
        const int64_t x = (a->tile.first_row + k / a->tile.n_columns) * c->n_in;
        const int64_t weight = (a->tile.first_column + k % a->tile.n_columns) * c->n_in;
        const float d = a->is_back ? typed_at(a->tile.logits, k, c->type) : 0;
        double sum = 0;
        for (int64_t i = 0; i < c->n_in && a->is_back; i++) {
            a->p->d_x[x + i] += d * c->weights[weight + i];
            a->p->d_weights[weight + i] += d * c->x[x + i];
        }
        for (int64_t i = 0; i < c->n_in; i++)
            sum += (double)c->x[x + i] * (double)c->weights[weight + i];
        if (!a->is_back) typed_set(a->tile.logits, k, c->type, sum);
    }
    a->p->n_tiles += !a->is_back;
    return MEMO_STATUS_OK;
}
static memo_status launch(void* context, const memo_loss_tile* tile, int is_back, memo_error* e) {
    product_args args = {(products*)context, *tile, is_back};
    return memo_host_device_launch(args.p->device, tile->stream, products_run, &args, sizeof args,
                                   e);
}
static memo_status give_logits(void* context, const memo_loss_tile* tile, memo_error* e) {
    return launch(context, tile, 0, e);
}
static memo_status take_gradients(void* context, const memo_loss_tile* tile, memo_error* e) {
    return launch(context, tile, 1, e);
}

static memo_status zero_logits(void* context, const memo_loss_tile* tile, memo_error* e) {
    return memo_fill(((thread_rank*)context)->device, tile->stream, tile->logits, 0,
                     tile->n_rows * tile->n_columns * 4, e);
}

static memo_status tiles_rank(thread_rank* rank, memo_error* e) {
    tiles_case* c = (tiles_case*)rank->user;
    int32_t r = rank->comm->rank;
    memo_loss_sizes sizes;
    own_loss* loss = NULL;
    int64_t before = rank->comm->sent_bytes;
    products p = {.c = c, .device = rank->device, .d_x = c->d_x[r], .d_weights = c->d_weights[r]};
    memo_loss_desc desc = {.device = rank->device,
                           .stream = rank->stream,
                           .tensor = c->n_ranks > 1 ? rank->comm : NULL,
                           .vocabulary = c->vocabulary,
                           .type = c->type,
                           .tile_rows = c->tile_rows,
                           .softcap = (float)c->rule.softcap,
                           .functions.context = &p,
                           .functions.logits = give_logits,
                           .functions.gradients = take_gradients};
    memo_loss_tensors tensors = {.n_rows = c->n_rows,
                                 .labels = c->labels,
                                 .losses = c->losses[r],
                                 .sums = c->sums[r],
                                 .scale = c->scale};
    memo_status status = memo_loss_desc_get_sizes(&desc, &sizes, e);
    c->device_bytes[r] = sizes.device_bytes;
    if (!status) status = memo_loss_create(&desc, &loss, e);
    if (!status) status = memo_loss_run(loss, &tensors, e);
    if (!status) status = memo_loss_read(loss, c->sums[r], &c->means[r], e);
    if (!status && rank->comm->sent_bytes - before != sizes.sent_bytes_per_row * c->n_rows)
        status = memo_error_set(e, MEMO_STATUS_INVALID_STATE, "sent %lld bytes, not %lld a row",
                                (long long)(rank->comm->sent_bytes - before),
                                (long long)sizes.sent_bytes_per_row);
    c->sent_bytes[r] = rank->comm->sent_bytes - before;
    c->n_tiles[r] = p.n_tiles;
    return status;
}

static float* floats(int64_t n) { return (float*)calloc((size_t)n + 1, sizeof(float)); }

static void check_tiles(tiles_case* c) {
    own_memory double *logits = (double*)calloc((size_t)c->vocabulary, sizeof(double)),
                      *gradient = (double*)calloc((size_t)c->vocabulary, sizeof(double)),
                      *d_x = (double*)calloc((size_t)(c->n_rows * c->n_in), sizeof(double)),
                      *d_weights =
                          (double*)calloc((size_t)(c->vocabulary * c->n_in), sizeof(double));
    double sum = 0, n_labels = 0;
    double tolerance = (c->type == MEMO_TYPE_F32 ? 1e-5 : 4 * half_unit(c->type));
    for (int64_t row = 0; row < c->n_rows; row++) {
        double loss = 0;
        for (int64_t o = 0; o < c->vocabulary; o++) {
            logits[o] = 0;
            for (int64_t i = 0; i < c->n_in; i++)
                logits[o] += (double)c->x[row * c->n_in + i] * (double)c->weights[o * c->n_in + i];
        }
        if (c->labels[row] >= 0) {
            loss = row_loss(&c->rule, logits, c->vocabulary, c->labels[row], gradient);
            sum += loss;
            n_labels++;
            for (int64_t o = 0; o < c->vocabulary; o++)
                for (int64_t i = 0; i < c->n_in; i++) {
                    double d = gradient[o] * (double)c->scale;
                    d_x[row * c->n_in + i] += d * (double)c->weights[o * c->n_in + i];
                    d_weights[o * c->n_in + i] += d * (double)c->x[row * c->n_in + i];
                }
        }
        for (int32_t r = 0; r < c->n_ranks; r++) {
            CHECK_IS(fabs((double)c->losses[r][row] - loss), <=, tolerance * 4);
            CHECK(memcmp(&c->losses[r][row], &c->losses[0][row], 4) == 0);
        }
    }
    for (int32_t r = 0; r < c->n_ranks; r++) {
        CHECK_IS(c->sums[r][1], ==, n_labels);
        CHECK_IS(c->means[r], ==, n_labels > 0 ? c->sums[r][0] / n_labels : 0);
        CHECK(fabs(c->sums[r][0] - sum) <= tolerance * 4 * (double)(c->n_rows + 1));
        CHECK_IS(c->sent_bytes[r], ==, 12 * (c->n_ranks - 1) * c->n_rows);
        CHECK_IS(c->n_tiles[r], ==, (c->n_rows + c->tile_rows - 1) / c->tile_rows);
        /* No array of all logits: a tile's, parts and losses, each rounded up to 512. */
        CHECK(c->device_bytes[r] <=
              c->tile_rows * (4 * c->vocabulary + 12 * c->n_ranks + 4) + 1536);
    }
    for (int64_t i = 0; i < c->n_rows * c->n_in; i++) {
        double d = 0;
        for (int32_t r = 0; r < c->n_ranks; r++) d += (double)c->d_x[r][i];
        CHECK_IS(fabs(d - d_x[i]), <=, tolerance * 2 * (double)c->scale);
    }
    for (int64_t i = 0; i < c->vocabulary * c->n_in; i++) {
        double d = 0;
        for (int32_t r = 0; r < c->n_ranks; r++) d += (double)c->d_weights[r][i];
        CHECK_IS(fabs(d - d_weights[i]), <=, tolerance * 2 * (double)(c->scale * (float)c->n_rows));
    }
}

TEST(tiles_match_the_reference) {
    const memo_type types[] = {MEMO_TYPE_F32, MEMO_TYPE_BF16, MEMO_TYPE_F16};
    for (int k = 0; k < 40; k++) {
        own_memory float *x = NULL, *weights = NULL;
        int32_t labels[64], r;
        tiles_case c = {.n_ranks = (int32_t)memo_test_int(1, 5)};
        c.n_rows = memo_test_int(1, 40);
        c.n_in = memo_test_int(1, 12);
        c.vocabulary = memo_test_int(1, k % 3 ? 20 : 150); /* fewer than ranks too */
        c.tile_rows = memo_test_int(1, 45);
        c.type = types[memo_test_int(0, 2)];
        c.scale = (float)(0.1 + memo_test_real());
        c.rule = random_rule();
        x = floats(c.n_rows * c.n_in);
        weights = floats(c.vocabulary * c.n_in);
        for (int64_t i = 0; i < c.n_rows * c.n_in; i++) x[i] = (float)(memo_test_real() * 2 - 1);
        for (int64_t i = 0; i < c.vocabulary * c.n_in; i++)
            weights[i] = (float)(memo_test_real() * 2 - 1) / (float)c.n_in;
        for (int64_t i = 0; i < c.n_rows; i++)
            labels[i] = memo_test_int(0, 4) ? (int32_t)memo_test_int(0, c.vocabulary - 1) : -1;
        c.x = x;
        c.weights = weights;
        c.labels = labels;
        for (r = 0; r < c.n_ranks; r++) {
            c.losses[r] = floats(c.n_rows);
            c.d_x[r] = floats(c.n_rows * c.n_in);
            c.d_weights[r] = floats(c.vocabulary * c.n_in);
        }
        CHECK_OK(thread_ranks_run(c.n_ranks, tiles_rank, &c, &error));
        IN_CASE("case %d", k);
        check_tiles(&c);
        for (r = 0; r < c.n_ranks; r++) {
            free(c.losses[r]);
            free(c.d_x[r]);
            free(c.d_weights[r]);
        }
    }
}

/* Three rows of a vocabulary of 7 on this rank. */
static memo_loss_desc small_loss(thread_rank* rank, const int32_t* labels,
                                 memo_loss_tensors* tensors) {
    memo_loss_desc desc = {
        .device = rank->device, .stream = rank->stream, .vocabulary = 7, .functions.context = rank};
    desc.functions.logits = desc.functions.gradients = zero_logits;
    memset(tensors, 0, sizeof *tensors);
    tensors->n_rows = 3;
    tensors->labels = labels;
    return desc;
}

/* Without a label the mean is 0. */
static memo_status no_label_rank(thread_rank* rank, memo_error* e) {
    static const int32_t labels[3] = {-1, -1, -1};
    memo_loss_tensors tensors;
    memo_loss_desc desc = small_loss(rank, labels, &tensors);
    own_loss* loss = NULL;
    double sums[3] = {0, 0, 0}, mean = 7;
    tensors.sums = sums;
    memo_status status = memo_loss_create(&desc, &loss, e);
    if (!status) status = memo_loss_run(loss, &tensors, e);
    if (!status) status = memo_loss_read(loss, sums, &mean, e);
    if (!status) CHECK(mean >= 0 && mean <= 0);
    return status;
}
TEST(the_mean_of_no_label_is_zero) { CHECK_OK(thread_ranks_run(1, no_label_rank, NULL, &error)); }

/* One rank of several has a label beyond the vocabulary in its own rows; all learn of it where they
 * read the loss. */
static memo_status invalid_label_rank(thread_rank* rank, memo_error* e) {
    const int32_t labels[3] = {0, rank->comm->rank == 1 ? 7 : 1, -1};
    memo_loss_tensors tensors;
    memo_loss_desc desc = small_loss(rank, labels, &tensors);
    own_loss* loss = NULL;
    double sums[3] = {0, 0, 0}, mean;
    tensors.sums = sums;
    memo_status status = memo_loss_create(&desc, &loss, e);
    if (!status) status = memo_loss_run(loss, &tensors, e);
    if (!status)
        status = memo_all_reduce(rank->comm, rank->stream, sums, sums, 3, MEMO_TYPE_F64,
                                 MEMO_REDUCTION_SUM, e);
    if (!status &&
        (memo_loss_read(loss, sums, &mean, e) != MEMO_STATUS_INVALID_ARGUMENT ||
         !strstr(e->message, "memo_loss_tensors.labels: 1 at or beyond") || mean == mean))
        status = memo_error_set(e, MEMO_STATUS_DEVICE, "the label was not refused");
    return status;
}
TEST(labels_beyond_the_vocabulary_are_refused_on_all_ranks) {
    CHECK_OK(thread_ranks_run(3, invalid_label_rank, NULL, &error));
}

/* All ranks learn what differs. */
static memo_status other_scale_rank(thread_rank* rank, memo_error* e) {
    static const int32_t labels[3] = {0, 1, -1};
    memo_loss_tensors tensors;
    memo_loss_desc desc = small_loss(rank, labels, &tensors);
    own_loss* loss = NULL;
    desc.tensor = rank->comm;
    tensors.scale = (float)(1 + rank->comm->rank / 2);
    memo_status status = memo_loss_create(&desc, &loss, e);
    if (!status) status = memo_loss_run(loss, &tensors, e);
    if (!status) status = memo_stream_synchronize(rank->device, rank->stream, e);
    CHECK(status == MEMO_STATUS_COMM && strstr(e->message, "n_rows or scale: rank 0 and rank 2"));
    return MEMO_STATUS_OK;
}
TEST(another_scale_is_refused_on_all_ranks) {
    CHECK_OK(thread_ranks_run(3, other_scale_rank, NULL, &error));
}

/* ---- one rank ---- */

static memo_device* host;
static memo_stream host_stream;
static void open_host(void) {
    host = new_device(MEMO_ZERO(memo_host_device_desc));
    CHECK_OK(memo_stream_create(host, "compute", 0, &host_stream, &error));
}

static memo_status count_tiles(void* context, const memo_loss_tile* tile,
                               MEMO_UNUSED memo_error* e) {
    memset(tile->logits, 0, (size_t)(tile->n_rows * tile->n_columns * 4));
    ++*(int*)context;
    return MEMO_STATUS_OK;
}

/* The kernels of several tiles use one buffer after the other, on one stream: no race.  Scale 0:
 * only the loss. */
TEST(runs_on_a_recorder) {
    int32_t labels[10] = {0, 1, 2, 3, 4, -1, 6, 0, 0, 6};
    memo_loss* loss;
    double sums[3] = {0, 0, 0};
    int n_calls = 0;
    open_host();
    memo_recorder* recorder = new_recorder((memo_recorder_desc){.device = host});
    memo_loss_desc desc = {.vocabulary = 7, .tile_rows = 4, .functions.context = &n_calls};
    desc.device = memo_recorder_get_device(recorder);
    CHECK_OK(memo_stream_create(desc.device, "compute", 0, &desc.stream, &error));
    desc.functions.logits = count_tiles;
    CHECK_OK(memo_loss_create(&desc, &loss, &error));
    memo_loss_tensors tensors = {.n_rows = 10, .labels = labels, .sums = sums};
    CHECK_OK(memo_loss_run(loss, &tensors, &error));
    CHECK_OK(memo_stream_synchronize(desc.device, desc.stream, &error));
    CHECK_IS(n_calls, ==, 3);
    CHECK_IS(sums[1], ==, 9);
    CHECK(fabs(sums[0] - 9 * log(7)) < 1e-5);

    tensors.scale = 1; /* but nothing takes gradients */
    CHECK_ERROR(memo_loss_run(loss, &tensors, &error), INVALID_ARGUMENT, "gradients");
    tensors.labels = NULL;
    CHECK_ERROR(memo_loss_run(loss, &tensors, &error), INVALID_ARGUMENT, "labels");
    tensors.n_rows = 0;
    tensors.scale = 0;
    CHECK_OK(memo_loss_run(loss, &tensors, &error));
    memo_loss_destroy(loss);
    memo_schedule* schedule = recorded(recorder);
    own_check* check = check_of(schedule);
    CHECK_IS(check->n_races, ==, 0);
    memo_stream_destroy(desc.device, desc.stream, NULL);
    memo_recorder_destroy(recorder);
    memo_host_device_destroy(host);
}

TEST(sizes_and_refusals) {
    memo_loss_desc desc = {0};
    memo_loss_sizes sizes;
    memo_loss* loss;
    CHECK_IS(memo_loss_desc_get_sizes(&desc, &sizes, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    desc.vocabulary = 128256;
    desc.type = MEMO_TYPE_BF16;
    CHECK_OK(memo_loss_desc_get_sizes(&desc, &sizes, &error));
    CHECK_IS(sizes.tile_rows, ==, (64 << 20) / (2 * 128256));
    CHECK(sizes.device_bytes <= (65 << 20) && sizes.n_columns == 128256);
    CHECK_IS(sizes.sent_bytes_per_row, ==, 0);
    memo_comm many = {.size = 16}; /* a row takes more as parts than as logits */
    desc.tensor = &many;
    for (desc.vocabulary = 2; desc.vocabulary <= 1 << 17; desc.vocabulary *= 8) {
        CHECK_OK(memo_loss_desc_get_sizes(&desc, &sizes, &error));
        CHECK_IS(sizes.device_bytes, <=, 136 << 20);
        CHECK_IS(sizes.device_bytes, >=, 60 << 20);
    }
    desc.tensor = NULL;
    desc.vocabulary = INT32_MAX;
    CHECK_OK(memo_loss_desc_get_sizes(&desc, &sizes, &error));
    CHECK_IS(sizes.tile_rows, ==, 1);
    desc.vocabulary = 10;
    desc.type = MEMO_TYPE_I32;
    CHECK_IS(memo_loss_desc_get_sizes(&desc, &sizes, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    desc.type = MEMO_TYPE_F32;
    desc.tile_rows = -1;
    CHECK_IS(memo_loss_desc_get_sizes(&desc, &sizes, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    desc.tile_rows = 1;
    CHECK_ERROR(memo_loss_create(&desc, &loss, &error), INVALID_ARGUMENT, "device");
    open_host();
    desc.device = host;
    desc.stream = host_stream;
    CHECK_ERROR(memo_loss_create(&desc, &loss, &error), INVALID_ARGUMENT, "logits");
    desc.functions.logits = count_tiles;
    memo_device old = *host;
    old.struct_bytes = (int64_t)offsetof(memo_device, row_kernel);
    desc.device = &old;
    CHECK_IS(memo_loss_create(&desc, &loss, &error), ==, MEMO_STATUS_UNSUPPORTED);
    memo_loss_destroy(NULL);
    memo_host_device_destroy(host);
}

/* A table of older code ends after the entries that a loss needs; the page after it cannot be
 * read. */
TEST(nothing_behind_a_short_table_is_read) {
    memo_loss_desc desc = {0};
    const int64_t n_bytes =
        (int64_t)(offsetof(memo_device, row_kernel) + sizeof desc.device->row_kernel);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char* pages =
        (char*)mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memo_device* table = (memo_device*)(void*)(pages + page - n_bytes);
    int32_t labels[3] = {0, 1, 2};
    memo_loss* loss;
    int n_tiles = 0;
    CHECK(n_bytes < (int64_t)sizeof *host && (size_t)n_bytes <= page);
    open_host();
    memcpy(table, host, (size_t)n_bytes);
    table->struct_bytes = n_bytes;
    CHECK_IS(mprotect(pages + page, page, PROT_NONE), ==, 0);
    desc.device = table;
    desc.stream = host_stream;
    desc.vocabulary = 10;
    desc.functions.logits = count_tiles;
    desc.functions.context = &n_tiles;
    CHECK_OK(memo_loss_create(&desc, &loss, &error));
    memo_loss_tensors tensors = {.labels = labels, .n_rows = 3};
    CHECK_OK(memo_loss_run(loss, &tensors, &error));
    memo_loss_destroy(loss);
    CHECK_IS(n_tiles, ==, 1);
    memo_host_device_destroy(host);
    munmap(pages, 2 * page);
}
