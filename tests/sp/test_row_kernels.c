/* test_row_kernels.c - the host's row kernels against slow, obvious references.  A GPU's are compared with
 * the host's (tests/cuda/test_kernels.cu). */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "memo_sp.h"
#include "extras/memo_look.h"

#include "typed.h"
#include "owned.h"

static const memo_type types[] = {MEMO_TYPE_F32, MEMO_TYPE_BF16, MEMO_TYPE_F16};
#define N_TYPES 3

/* --- numbers one at a time, the obvious way --- */

/* Rounds value to n_bits significant bits with an exponent of at least `least`, by an addition and
 * a subtraction in double, which round to nearest even. */
static double rounded(double value, int n_bits, int least) {
    int exponent;
    if (value == 0) return value;
    frexp(value, &exponent); /* value = f 2^exponent, f in [1/2, 1) */
    if (exponent - 1 < least) exponent = least + 1;
    double unit = ldexp(1, exponent - n_bits);
    return nearbyint(value / unit) * unit;
}

static float random_f32(void) {
    float value;
    uint32_t bits;
    do {
        bits = (uint32_t)memo_test_random();
        memcpy(&value, &bits, sizeof value);
    } while (!(value - value == 0));
    return value;
}

static void fill_random(void* array, memo_type type, int64_t n) {
    for (int64_t i = 0; i < n; i++) typed_set(array, i, type, memo_test_real() * 4 - 2);
}

static float rounded_to(memo_type type, float value) {
    float room;
    typed_set(&room, 0, type, value);
    return typed_at(&room, 0, type);
}

static int same_bits(float a, float b) { return memcmp(&a, &b, sizeof a) == 0; }

/* --- types --- */

TEST(sixteen_bits_survive_both_ways) {
    for (int bits = 0; bits < 65536; bits++) {
        float half = memo_f32_from_f16((uint16_t)bits), brain = memo_f32_from_bf16((uint16_t)bits);
        if (half == half)
            CHECK_CASE(memo_f16_from_f32(half) == bits, "f16 %04x", bits);
        else
            CHECK_CASE((bits & 0x7fff) > 0x7c00 && memo_f16_from_f32(half) == 0x7fff, "%04x", bits);
        if (brain == brain)
            CHECK_CASE(memo_bf16_from_f32(brain) == bits, "bf16 %04x", bits);
        else
            CHECK_CASE((bits & 0x7fff) > 0x7f80 && memo_bf16_from_f32(brain) == 0x7fff, "%04x",
                       bits);
    }
    CHECK(memo_f32_from_f16(0x3c00) == 1.0f && memo_f32_from_f16(0xc000) == -2.0f);
    CHECK(memo_f32_from_f16(0x7bff) == 65504.0f && memo_f32_from_f16(0x7c00) == INFINITY);
    CHECK(memo_f32_from_f16(1) == ldexpf(1, -24) && memo_f32_from_f16(0x0400) == ldexpf(1, -14));
    CHECK(memo_f32_from_bf16(0x3f80) == 1.0f && memo_f32_from_bf16(0xff80) == -INFINITY);
}

static void check_narrowing(float value) {
    double expected = rounded(value, 11, -14);
    float half = memo_f32_from_f16(memo_f16_from_f32(value));
    float brain = memo_f32_from_bf16(memo_bf16_from_f32(value));
    if (fabs(expected) >= 65520) expected = expected > 0 ? INFINITY : -INFINITY;
    CHECK_CASE(half == expected && signbit(half) == signbit(value), "f16 of %a is %a, not %a",
               value, half, expected);
    expected = rounded(value, 8, -126);
    if (fabs(expected) >= ldexp(1, 128)) expected = expected > 0 ? INFINITY : -INFINITY;
    CHECK_CASE(brain == expected && signbit(brain) == signbit(value), "bf16 of %a is %a, not %a",
               value, brain, expected);
}

TEST(narrowing_rounds_to_nearest_even) {
    for (int64_t i = 0; i < 200000; i++) check_narrowing(random_f32());
    /* Around every number of 16 bits, and every middle of two, a step to each side. */
    for (int bits = 0; bits < 0x7c00; bits++) {
        float low = memo_f32_from_f16((uint16_t)bits),
              high = memo_f32_from_f16((uint16_t)(bits + 1));
        float middle = high < INFINITY ? low + (high - low) / 2 : 65520.0f;
        check_narrowing(middle);
        check_narrowing(nextafterf(middle, 0));
        check_narrowing(nextafterf(middle, INFINITY));
        check_narrowing(-nextafterf(low, INFINITY));
    }
    for (int bits = 0; bits < 0x7f7f; bits++) {
        float low = memo_f32_from_bf16((uint16_t)bits),
              high = memo_f32_from_bf16((uint16_t)(bits + 1));
        float middle = low / 2 + high / 2;
        check_narrowing(middle);
        check_narrowing(-nextafterf(middle, 0));
        check_narrowing(nextafterf(middle, INFINITY));
    }
    CHECK(memo_f16_from_f32(INFINITY) == 0x7c00 && memo_f16_from_f32(-INFINITY) == 0xfc00);
    CHECK(memo_bf16_from_f32(INFINITY) == 0x7f80 && memo_bf16_from_f32(-INFINITY) == 0xff80);
    CHECK(memo_f16_from_f32(-0.0f) == 0x8000 && memo_bf16_from_f32(-0.0f) == 0x8000);
}

TEST(casts_each_element_and_no_other) {
    static float from_memory[300], to_memory[300];
    for (int c = 0; c < 400; c++) {
        memo_add_desc cast = {.to_type = types[memo_test_int(0, N_TYPES - 1)]};
        cast.a_type = types[memo_test_int(0, N_TYPES - 1)];
        cast.n_columns = memo_test_int(0, 100);
        /* Aligned to 16 bytes or only to the element. */
        char* to = (char*)to_memory + memo_row_type_bytes(cast.to_type) * (1 + memo_test_int(0, 8));
        const char* from =
            (char*)from_memory + memo_row_type_bytes(cast.a_type) * memo_test_int(0, 8);
        fill_random(from_memory, cast.a_type, 150);
        memset(to_memory, 0x55, sizeof to_memory);
        cast.to = to;
        cast.a = from;
        CHECK_OK(memo_row_run(MEMO_ROW_CAST, &cast, &error));
        for (int64_t i = 0; i < cast.n_columns; i++) {
            const float value = rounded_to(cast.to_type, typed_at(from, i, cast.a_type));
            CHECK_CASE(same_bits(typed_at(to, i, cast.to_type), value), "element %d", (int)i);
        }
        int64_t element = memo_row_type_bytes(cast.to_type);
        CHECK(to[-1] == 0x55 && to[cast.n_columns * element] == 0x55);
    }
}

/* --- rows --- */

TEST(adds_rows_in_fp32) {
    static float a_memory[4096], b_memory[4096], to_memory[4096];
    for (int c = 0; c < 600; c++) {
        int64_t row, column, in_place = memo_test_int(0, 2) == 0;
        memo_add_desc add = {.a_type = types[memo_test_int(0, N_TYPES - 1)]};
        add.b_type = types[memo_test_int(0, N_TYPES - 1)];
        add.to_type = in_place ? add.a_type : types[memo_test_int(0, N_TYPES - 1)];
        add.n_rows = memo_test_int(1, 12);
        add.n_columns = memo_test_int(0, 90);
        if (memo_test_int(0, 1)) add.a_stride = add.n_columns + memo_test_int(0, 20);
        if (memo_test_int(0, 1)) add.b_stride = add.n_columns + memo_test_int(0, 20);
        add.to_stride = in_place ? add.a_stride : memo_test_int(0, 1) * (add.n_columns + 3);
        add.a = a_memory + memo_test_int(0, 4);
        add.b = b_memory + memo_test_int(0, 4);
        add.to = in_place ? (void*)(uintptr_t)add.a : (void*)(to_memory + memo_test_int(0, 4));
        fill_random(a_memory, add.a_type, 2 * 4096 / 2);
        fill_random(b_memory, add.b_type, 2 * 4096 / 2);
        {
            static float sums[12 * 90];
            for (row = 0; row < add.n_rows; row++) {
                for (column = 0; column < add.n_columns; column++) {
                    int64_t at_a = row * (add.a_stride ? add.a_stride : add.n_columns) + column;
                    int64_t at_b = row * (add.b_stride ? add.b_stride : add.n_columns) + column;
                    float sum =
                        typed_at(add.a, at_a, add.a_type) + typed_at(add.b, at_b, add.b_type);
                    sums[row * 90 + column] = rounded_to(add.to_type, sum);
                }
            }
            CHECK_OK(memo_row_run(MEMO_ROW_ADD, &add, &error));
            for (row = 0; row < add.n_rows; row++)
                for (column = 0; column < add.n_columns; column++) {
                    int64_t at = row * (add.to_stride ? add.to_stride : add.n_columns) + column;
                    CHECK_CASE(
                        same_bits(typed_at(add.to, at, add.to_type), sums[row * 90 + column]),
                        "case %d, row %d, column %d", c, (int)row, (int)column);
                }
        }
    }
}

/* Ranges of rows of two tensors, ascending or not, some empty; other rows stay. */
TEST(adds_packed_ranges_of_rows) {
    enum { N_ROWS = 120, N_COLUMNS = 20, N = N_ROWS * N_COLUMNS };
    static float rows_memory[2][N + 8], packed_memory[2][N + 8], expected[2][N];
    for (int c = 0; c < 600; c++) {
        memo_pack_desc pack = {.rows_type = types[memo_test_int(0, N_TYPES - 1)],
                               .packed_type = types[memo_test_int(0, N_TYPES - 1)]};
        int64_t at = 0, n = 0;
        for (int t = 0; t < 2; t++) {
            pack.n_columns[t] = memo_test_int(0, N_COLUMNS);
            pack.rows[t] = rows_memory[t] + memo_test_int(0, 4);
            pack.packed[t] = packed_memory[t] + memo_test_int(0, 4);
            fill_random(pack.rows[t], pack.rows_type, N);
            fill_random(pack.packed[t], pack.packed_type, N);
            for (int64_t i = 0; i < N; i++)
                expected[t][i] = typed_at(pack.rows[t], i, pack.rows_type);
        }

        for (int k = (int)memo_test_int(0, MEMO_PACK_MAX); k > 0; k--) {
            const int64_t n_rows = memo_test_int(0, 3);
            const int64_t begin = c % 2 ? at : N_ROWS - at - n_rows;
            for (int t = 0; t < 2; t++)
                for (int64_t i = 0; i < n_rows * pack.n_columns[t]; i++) {
                    const int64_t from = n * pack.n_columns[t] + i;
                    float* x = &expected[t][begin * pack.n_columns[t] + i];
                    *x = rounded_to(pack.rows_type,
                                    *x + typed_at(pack.packed[t], from, pack.packed_type));
                }
            at += n_rows + (at < 20);
            n += n_rows;
            pack.begins[pack.n_ranges] = begin;
            pack.ends[pack.n_ranges++] = n;
        }
        CHECK_OK(memo_row_run(MEMO_ROW_ADD_PACKED, &pack, &error));
        for (int t = 0; t < 2; t++)
            for (int64_t i = 0; i < N; i++)
                CHECK_CASE(same_bits(typed_at(pack.rows[t], i, pack.rows_type), expected[t][i]),
                           "case %d, tensor %d, element %d", c, t, (int)i);
    }
}

TEST(sums_products_of_rows) {
    static float a[8192], b[8192];
    float sums[20];
    for (int c = 0; c < 300; c++) {
        memo_add_desc desc = {.a_type = types[memo_test_int(0, N_TYPES - 1)]};
        desc.b_type = types[memo_test_int(0, N_TYPES - 1)];
        desc.n_rows = memo_test_int(0, 20);
        desc.n_columns = memo_test_int(0, 3) ? 64 * memo_test_int(1, 4) : memo_test_int(0, 200);
        desc.b_stride = memo_test_int(0, 1) * (desc.n_columns + 8);
        desc.a = a;
        desc.b = b;
        desc.to = sums;
        fill_random(a, desc.a_type, 8192);
        fill_random(b, desc.b_type, 8192);
        CHECK_OK(memo_row_run(MEMO_ROW_SUMS, &desc, &error));
        for (int64_t row = 0; row < desc.n_rows; row++) {
            double sum = 0, size = 0;
            for (int64_t column = 0; column < desc.n_columns; column++) {
                int64_t at = row * (desc.b_stride ? desc.b_stride : desc.n_columns) + column;
                double product = (double)typed_at(a, row * desc.n_columns + column, desc.a_type) *
                                 typed_at(b, at, desc.b_type);
                sum += product;
                size += fabs(product);
            }
            CHECK_CASE(fabs(sums[row] - sum) <= 1e-6 * size, "case %d, row %d: %g, not %g", c,
                       (int)row, (double)sums[row], sum);
        }
    }
}

/* --- merge --- */

/* Softmax attention of one row over n keys with values of n_columns numbers, in double. */
static void attend(const double* scores, const double* values, int64_t n, int64_t n_columns,
                   float* out, float* lse) {
    double largest = -INFINITY, sum = 0;
    for (int64_t k = 0; k < n; k++)
        if (scores[k] > largest) largest = scores[k];
    for (int64_t k = 0; k < n; k++) sum += exp(scores[k] - largest);
    for (int64_t c = 0; c < n_columns; c++) {
        double weighted = 0;
        for (int64_t k = 0; k < n; k++)
            weighted += exp(scores[k] - largest) * values[k * n_columns + c];
        out[c] = n ? (float)(weighted / sum) : NAN; /* without keys the output is undefined */
    }
    *lse = n ? (float)(largest + log(sum)) : -INFINITY;
}

TEST(merges_parts_of_attention) {
    enum { N_KEYS = 24, N_COLUMNS = 70, N_PARTS = 5 };
    static double scores[N_KEYS], values[N_KEYS * N_COLUMNS];
    static float out[N_COLUMNS], whole[N_COLUMNS], part[N_COLUMNS];
    for (int c = 0; c < 300; c++) {
        int64_t n_columns = memo_test_int(1, N_COLUMNS), k, begin = 0, p;
        double spread = memo_test_int(0, 3) == 0 ? 300 : 4;
        float lse = -INFINITY, whole_lse, part_lse;
        for (k = 0; k < N_KEYS; k++) scores[k] = (memo_test_real() - 0.5) * spread;
        for (k = 0; k < N_KEYS * n_columns; k++) values[k] = memo_test_real() * 2 - 1;
        for (k = 0; k < n_columns; k++) out[k] = NAN;
        for (p = 0; p < N_PARTS; p++) {
            int64_t n = p < N_PARTS - 1 ? memo_test_int(0, (N_KEYS - begin) / 2) : N_KEYS - begin;
            memo_merge_desc merge = {out, &lse, part, &part_lse, .n_rows = 1};
            merge.n_columns = n_columns;
            attend(scores + begin, values + begin * n_columns, n, n_columns, part, &part_lse);
            CHECK_OK(memo_row_run(MEMO_ROW_MERGE, &merge, &error));
            begin += n;
        }
        attend(scores, values, N_KEYS, n_columns, whole, &whole_lse);
        CHECK_CASE(fabsf(lse - whole_lse) <= 3e-6f * (1 + fabsf(whole_lse)),
                   "case %d: lse %g, not %g", c, lse, whole_lse);
        for (k = 0; k < n_columns; k++)
            CHECK_CASE(fabsf(out[k] - whole[k]) <= 5e-6f + 3e-7f * fabsf(whole_lse),
                       "case %d: column %d is %g, not %g", c, (int)k, out[k], whole[k]);
    }
}

/* Against sums in double; a row without keys, and a sink of -inf, which is none. */
TEST(sinks_count_once) {
    static float out[60 * 7 * 20], lse[60 * 7], dots[60 * 7], sinks[7], d_sinks[7];
    static double expected[60 * 7 * 20];
    for (int c = 0; c < 50; c++) {
        int64_t n_rows = memo_test_int(0, 60), n_heads = memo_test_int(1, 7), i, h, e;
        int64_t n_columns = memo_test_int(1, 20);
        double sums[7] = {0}, sizes[7] = {0};
        for (h = 0; h < n_heads; h++) {
            sinks[h] = memo_test_int(0, 4) ? (float)(memo_test_real() * 8 - 4) : -INFINITY;
            d_sinks[h] = 1;
        }
        for (i = 0; i < n_rows * n_heads; i++) {
            lse[i] = memo_test_int(0, 4) ? (float)(memo_test_real() * 8 - 4) : -INFINITY;
            dots[i] = lse[i] == -INFINITY ? 0 : (float)(memo_test_real() * 2 - 1);
            double sink = exp((double)sinks[i % n_heads]);
            double keys = exp((double)lse[i]);
            for (e = 0; e < n_columns; e++) {
                out[i * n_columns + e] =
                    lse[i] == -INFINITY ? 0 : (float)(memo_test_real() * 2 - 1);
                expected[i * n_columns + e] =
                    keys > 0 ? (double)out[i * n_columns + e] * keys / (keys + sink) : 0;
            }
            if (sink > 0) sums[i % n_heads] -= sink / (keys + sink) * (double)dots[i];
            sizes[i % n_heads] += fabs((double)dots[i]);
        }
        memo_sinks_desc desc = {.sinks = sinks,
                                .d_sinks = d_sinks,
                                .lse = lse,
                                .row_dots = dots,
                                .out = out,
                                .n_rows = n_rows,
                                .n_heads = n_heads,
                                .n_columns = n_columns};
        CHECK_OK(memo_row_run(MEMO_ROW_SINKS, &desc, &error));
        for (i = 0; i < n_rows * n_heads * n_columns; i++)
            CHECK_CASE(fabs((double)out[i] - expected[i]) <= 1e-6, "case %d: %g, not %g", c, out[i],
                       expected[i]);
        desc.out = NULL; /* not needed */
        CHECK_OK(memo_row_run(MEMO_ROW_SINK_SUMS, &desc, &error));
        for (h = 0; h < n_heads; h++)
            CHECK_CASE(fabs((double)d_sinks[h] - 1 - sums[h]) <= 2e-6 * (1 + sizes[h]),
                       "case %d: head %d is %g, not %g", c, (int)h, d_sinks[h], 1 + sums[h]);
        desc.d_sinks = NULL;
        CHECK_IS(memo_row_run(MEMO_ROW_SINK_SUMS, &desc, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
        desc.n_heads = -1;
        CHECK_IS(memo_row_run(MEMO_ROW_SINKS, &desc, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    }
}

/* 2^-24 of 8 + |a - b|, as the header promises, also of a weight that is beside one near 1. */
/* Element by element and in chunks, with NaN and infinities, also in place. */
TEST(reduces_as_collectives_do) {
    enum { COUNT = 700, BYTES = COUNT * 8 };
    static char from[MEMO_REDUCE_MAX][BYTES], to[BYTES], expected[BYTES];
    for (int i = 0; i < 60; i++) {
        const memo_type type = (memo_type)(i % 7);
        const int in_place = i % 3 == 0;
        memo_reduce_desc desc = {.n_from = (int32_t)memo_test_int(1, MEMO_REDUCE_MAX),
                                 .type = type,
                                 .reduction = (memo_reduction)(i / 7 % 2),
                                 .count = memo_test_int(0, COUNT)};
        const size_t n_bytes = (size_t)(desc.count * memo_type_bytes(type));
        for (int r = 0; r < desc.n_from; r++) {
            for (int k = 0; k < BYTES; k++) from[r][k] = (char)memo_test_random();
            for (int k = 0; k < COUNT && type == MEMO_TYPE_F64; k++)
                ((double*)(void*)from[r])[k] = k % 50 ? memo_test_real() : k % 100 ? NAN : INFINITY;
            for (int k = 0; k < COUNT && type == MEMO_TYPE_F32; k++)
                ((float*)(void*)from[r])[k] = k % 50 ? (float)memo_test_real() : -INFINITY;
            desc.from[r] = from[r];
        }
        desc.to = expected;
        CHECK_OK(memo_row_run(MEMO_ROW_REDUCE, &desc, &error));
        desc.to = in_place ? from[memo_test_int(0, desc.n_from - 1)] : to;
        for (int64_t k = 0; k < desc.count; k++)
            memo_reduce_elements(desc.to, k, desc.from, desc.n_from, k, 1, desc.type,
                                 desc.reduction); /* as a GPU does */
        CHECK_CASE(!memcmp(desc.to, expected, n_bytes), "%lld %s", (long long)desc.count,
                   memo_type_name(type));
    }
}

TEST(merge_weights_are_exact) {
    for (int i = 0; i < 100000; i++) {
        float a = (float)((memo_test_real() - 0.5) * (i % 3 ? 40 : 160));
        float b = (float)((memo_test_real() - 0.5) * (i % 3 ? 40 : 160));
        memo_merge_weights w = memo_merge_weights_of(a, b);
        double exact = 1 / (1 + exp((double)b - (double)a));
        double part = 1 / (1 + exp((double)a - (double)b));
        double bound = 6e-8 * (6 + fabs((double)a - (double)b));
        CHECK_CASE(fabs((double)w.out - exact) <= bound * exact + 1e-45 &&
                       fabs((double)w.part - part) <= bound * part + 1e-45,
                   "weights of %g and %g: %g and %g", a, b, (double)w.out, (double)w.part);
    }
}

TEST(merge_survives_extremes) {
    static const float lses[] = {-INFINITY, -1e30f, -200, -1, 0, 1, 88, 200, 1e30f};
    memo_merge_weights w;
    for (size_t i = 0; i < sizeof lses / sizeof lses[0]; i++) {
        for (size_t k = 0; k < sizeof lses / sizeof lses[0]; k++) {
            float a = lses[i], b = lses[k], lse = memo_merge_lse(a, b);
            w = memo_merge_weights_of(a, b);
            CHECK_CASE(w.out >= 0 && w.part >= 0 && fabsf(w.out + w.part - 1) <= 1.2e-7f,
                       "weights of %g and %g: %g and %g", a, b, w.out, w.part);
            CHECK_CASE(lse >= (a > b ? a : b) && lse <= (a > b ? a : b) + 0.6932f,
                       "lse of %g and %g", a, b);
            CHECK(same_bits(lse, memo_merge_lse(b, a)));
        }
    }
    w = memo_merge_weights_of(-INFINITY, -INFINITY);
    CHECK(w.out == 1 && w.part == 0);
    w = memo_merge_weights_of(0, 0);
    CHECK(w.out == 0.5f && w.part == 0.5f && memo_merge_lse(0, 0) == log1pf(1));
    w = memo_merge_weights_of(NAN, 0); /* a NaN is not hidden */
    CHECK(w.out != w.out && w.part != w.part);
    w = memo_merge_weights_of(0, NAN);
    CHECK(w.out != w.out && w.part != w.part);
}

TEST(merge_leaves_other_batches_alone) {
    enum { ROWS = 5, COLUMNS = 72, BATCHES = 3, STRIDE = 9 };
    static float out[BATCHES * STRIDE * COLUMNS], before[BATCHES * STRIDE * COLUMNS];
    static float lse[BATCHES * STRIDE], part_lse[BATCHES * STRIDE];
    static uint16_t part[BATCHES * STRIDE * COLUMNS];
    memo_merge_desc merge = {out, lse, part, part_lse, MEMO_TYPE_BF16, .n_batches = BATCHES};
    merge.n_rows = ROWS;
    merge.n_columns = COLUMNS;
    merge.batch_stride_rows = STRIDE;
    fill_random(out, MEMO_TYPE_F32, BATCHES * STRIDE * COLUMNS);
    fill_random(lse, MEMO_TYPE_F32, BATCHES * STRIDE);
    fill_random(part, MEMO_TYPE_BF16, BATCHES * STRIDE * COLUMNS);
    fill_random(part_lse, MEMO_TYPE_F32, BATCHES * STRIDE);
    memcpy(before, out, sizeof out);
    {
        float lse_before[BATCHES * STRIDE];
        memcpy(lse_before, lse, sizeof lse);
        CHECK_OK(memo_row_run(MEMO_ROW_MERGE, &merge, &error));
        for (int64_t b = 0; b < BATCHES; b++) {
            for (int64_t row = 0; row < STRIDE; row++) {
                int64_t at = b * STRIDE + row;
                memo_merge_weights w = memo_merge_weights_of(lse_before[at], part_lse[at]);
                for (int64_t column = 0; column < COLUMNS; column++) {
                    float old = before[at * COLUMNS + column], expected = old;
                    if (row < ROWS) {
                        float other = memo_f32_from_bf16(part[at * COLUMNS + column]);
                        expected = fmaf(w.part, other, w.out * old);
                    }
                    CHECK(same_bits(out[at * COLUMNS + column], expected));
                }
                CHECK(same_bits(lse[at], row < ROWS ? memo_merge_lse(lse_before[at], part_lse[at])
                                                    : lse_before[at]));
            }
        }
    }
}

/* Sets a field of a desc, with which the kernel fails. */
#define CHECK_REFUSED(kind, desc, field, value, message)                                           \
    do {                                                                                           \
        (desc).field = value;                                                                      \
        CHECK_ERROR(memo_row_run(MEMO_ROW_##kind, &(desc), &error), INVALID_ARGUMENT, message);    \
    } while (0)

TEST(invalid_arguments_are_refused) {
    static float numbers[64];
    memo_reduce_desc reduce = {.n_from = 17};
    CHECK_ERROR(memo_row_run(MEMO_ROW_REDUCE, &reduce, &error), INVALID_ARGUMENT, "n_from");
    reduce.n_from = 1;
    reduce.count = 1;
    CHECK_ERROR(memo_row_run(MEMO_ROW_REDUCE, &reduce, &error), INVALID_ARGUMENT, "to: NULL");
    memo_add_desc cast = {
        .to = numbers, .a = numbers + 32, .n_columns = 4, .to_type = MEMO_TYPE_I64};
    CHECK_ERROR(memo_row_run(MEMO_ROW_CAST, &cast, &error), INVALID_ARGUMENT,
                "to: its type is not supported; f32, bf16 and f16 are");
    cast.to_type = MEMO_TYPE_F32;
    CHECK_REFUSED(CAST, cast, to, (char*)numbers + 2, "not aligned");
    cast.to = numbers;
    CHECK_REFUSED(CAST, cast, n_columns, -1, "");
    memo_add_desc add = {0};
    CHECK_OK(memo_row_run(MEMO_ROW_ADD, &add, &error)); /* nothing to do needs no addresses */
    CHECK_REFUSED(ADD, add, n_columns, 3, "to: NULL");
    add.n_rows = 2;
    CHECK_REFUSED(ADD, add, to_stride, 2, "to: rows overlap (stride 2)");
    add.to_stride = INT64_MAX;
    CHECK_ERROR(memo_row_run(MEMO_ROW_ADD, &add, &error), INVALID_ARGUMENT, "2^62");
    memo_merge_desc merge = {0};
    CHECK_OK(memo_row_run(MEMO_ROW_MERGE, &merge, &error));
    merge = (memo_merge_desc){.n_batches = 2, .n_rows = 4, .n_columns = 1};
    CHECK_REFUSED(MERGE, merge, batch_stride_rows, 2, "batch_stride_rows");
    memo_add_desc sums = {0};
    CHECK_OK(memo_row_run(MEMO_ROW_SUMS, &sums, &error));
    sums.n_rows = (int64_t)1 << 40;
    sums.n_columns = (int64_t)1 << 40;
    sums.a = sums.b = numbers;
    sums.to = numbers;
    CHECK_ERROR(memo_row_run(MEMO_ROW_SUMS, &sums, &error), INVALID_ARGUMENT, "2^62");
    CHECK_REFUSED(SUMS, sums, to_type, MEMO_TYPE_BF16, "to_type");
    memo_cross_entropy_desc entropy = {0};
    CHECK_REFUSED(SOFTMAX_PARTS, entropy, n_rows, INT64_MAX, "n_rows");
    entropy.first_column = INT64_MAX; /* a vocabulary of 0 is the sum of the two */
    CHECK_REFUSED(SOFTMAX_PARTS, entropy, n_columns, INT64_MAX, "n_columns");
    memo_pack_desc pack = {.n_columns = {1}, .rows = {numbers}, .packed = {numbers + 32}};
    CHECK_REFUSED(ADD_PACKED, pack, n_ranges, MEMO_PACK_MAX + 1, "n_ranges");
    pack.n_ranges = 2;
    CHECK_OK(memo_row_run(MEMO_ROW_ADD_PACKED, &pack, &error));
    CHECK_REFUSED(ADD_PACKED, pack, begins[1], -1, "begins, ends");
    pack.begins[1] = 0;
    CHECK_REFUSED(ADD_PACKED, pack, ends[0], 3, "begins, ends");
    pack.ends[1] = 4;
    CHECK_REFUSED(ADD_PACKED, pack, packed[0], NULL, "packed: NULL");
    CHECK_REFUSED(ADD_PACKED, pack, begins[1], (int64_t)1 << 62, "");
    memo_sinks_desc sinks = {.n_heads = 4};
    CHECK_REFUSED(SINKS, sinks, n_rows, (int64_t)1 << 61, "n_rows");
}

/* A cast, an addition and row sums one after the other on a stream, recorded: no race, right
 * names. */
TEST(run_on_a_host_stream) {
    enum { N = 100 };
    static float from[N], sum[N], dots[1];
    static uint16_t narrow[N];
    static const char* const names[] = {"cast", "add", "row sums"};
    own_device* host = new_device(MEMO_ZERO(memo_host_device_desc));
    own_recorder* recorder = new_recorder((memo_recorder_desc){.device = host});
    memo_device* device = memo_recorder_get_device(recorder);
    int64_t n = 0;
    memo_stream stream = new_stream(device, "compute");
    for (int64_t i = 0; i < N; i++) from[i] = (float)i;
    memo_add_desc cast = {narrow, from, .to_type = MEMO_TYPE_F16, .n_columns = N};
    memo_add_desc add = {sum, from, narrow, .b_type = MEMO_TYPE_F16, .n_columns = N};
    memo_add_desc products = {.to = dots, .a = sum, .b = sum, .n_rows = 1, .n_columns = N};
    CHECK_OK(memo_row_cast(device, stream, &cast, &error));
    CHECK_OK(memo_row_add(device, stream, &add, &error));
    CHECK_OK(memo_row_sums(device, stream, &products, &error));
    CHECK_OK(memo_stream_synchronize(device, stream, &error));
    cast.n_columns = -1;
    CHECK_IS(memo_row_cast(device, stream, &cast, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    for (int64_t i = 0; i < N; i++) CHECK_IS(sum[i], ==, (float)(2 * i));
    CHECK_IS(dots[0], ==, 4 * 328350.0f); /* the sum of squares below N */
    memo_schedule* schedule = recorded(recorder);
    for (int64_t i = 0; i < schedule->n_ops; i++)
        if (schedule->ops[i].kind == MEMO_OP_RUN && n < 3)
            CHECK_IS(strcmp(memo_schedule_op_name(schedule, i), names[n++]), ==, 0);
    CHECK_IS(n, ==, 3);
    own_check* check = check_of(schedule);
    CHECK_IS(check->n_races, ==, 0);
    memo_stream_destroy(device, stream, NULL);
}
