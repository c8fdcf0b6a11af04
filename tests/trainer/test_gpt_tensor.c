/* test_gpt_tensor.c - the trainer's model split by columns and into sub-batches.  Every schedule
 * and policy gives the bits of the default one, and matches one rank up to rounding, also with
 * data, Ulysses and ZeRO ranks.  Ordering and refusals. */
#include "memo.h"
#include "memo_plan.h"
#include "memo_sp.h"

#define MEMO_TEST_OWN_MAIN
#include "gpt_ranks_test.h"
#include "owned.h"

enum { ACCUMULATE = 2 };

/* Every case under `make test-all`, otherwise every other one. */
#define N_SKIPPED (memo_test_all() ? 1 : 2)

/* 4 sequences of 21 tokens in tiles of 4: a part begins inside a tile. */
static gpt_config config_of(int32_t tensor, int32_t sub_batches, memo_blocks_order schedule) {
    gpt_config config = gpt_test_config(3, 16, 4, tensor > 2 ? 4 : 2, 21, 4, 4, 0.1);
    config.tensor = tensor;
    config.sub_batches = sub_batches;
    config.schedule = schedule;
    return config;
}

/* Of the blocks of three layers, where a test wants them mixed. */
static const int32_t mixed_degrees[6] = {2, 1, 1, 2, 2, 1};

static double worst_first_loss, worst_loss, worst_gradient;

static void check_against(const training* one, const training* t, const char* what) {
    const double first_loss = fabs(one->losses[0] - t->losses[0]);
    const double loss = loss_difference(one, t), gradient = gradient_difference(one, t);
    /* Adam divides by the gradient's size: if that is near 0, its rounding is seen in the next
     * steps. */
    CHECK_CASE(first_loss < 5e-7 && loss < 1e-5 && gradient < 4e-6 && copies_are_equal(t) &&
                   fabs(t->norms[0] / one->norms[0] - 1) < 1e-5,
               "%s, tensor %d, sub-batches %d: losses differ by %g, first ones by %g, gradients by "
               "%g",
               what, (int)t->desc.config.tensor, (int)t->desc.config.sub_batches, loss, first_loss,
               gradient);
    worst_first_loss = fmax(worst_first_loss, first_loss);
    worst_loss = fmax(worst_loss, loss);
    worst_gradient = fmax(worst_gradient, gradient);
}

/* One rank's training of the same model. */
static training unsplit(gpt_config config) {
    config.tensor = config.sub_batches = config.data = config.ulysses = config.ring = 0;
    config.zero = 0;
    config.slice_rows = 0;
    config.degrees = NULL;
    return trained(config, MEMO_POLICY_KEEP, ACCUMULATE);
}

/* Every schedule and policy gives the bits of the default schedule that keeps everything, which is
 * near one rank's training, unless roundings to bf16 differ. */
static void check_schedules(gpt_config config, const char* what) {
    config.schedule = MEMO_BLOCKS_DEFAULT;
    own_training first = trained(config, MEMO_POLICY_KEEP, ACCUMULATE);
    if (config.type != MEMO_TYPE_BF16) {
        own_training one = unsplit(config);
        check_against(&one, &first, what);
    }
    for (int order = MEMO_BLOCKS_DEFAULT; order < MEMO_N_BLOCKS_ORDERS; order++)
        for (int policy = 1 + (order > 1) % N_SKIPPED; policy < 3; policy += N_SKIPPED) {
            static const memo_policy policies[] = {MEMO_POLICY_KEEP, MEMO_POLICY_RECOMPUTE,
                                                   MEMO_POLICY_SWAP, MEMO_POLICY_ALPHA};
            const int k = policy == 1 ? 1 : order % 2 && !gpt_is_mixed(&config) ? 3 : 2;
            config.schedule = (memo_blocks_order)order;
            own_training t = trained(config, policies[k], ACCUMULATE);
            CHECK_CASE(are_the_same(&first, &t),
                       "%s: tensor %d, sub-batches %d, %s, policy %d: not the bits", what,
                       (int)config.tensor, (int)config.sub_batches,
                       memo_blocks_order_name(config.schedule), (int)policies[k]);
        }
}

TEST(schedules_and_policies_give_the_same_bits) {
    for (int32_t tensor = N_SKIPPED; tensor <= 4 / N_SKIPPED; tensor *= 2)
        for (int32_t parts = 1; parts <= 4; parts *= 2)
            if (tensor * parts > 1)
                check_schedules(config_of(tensor, parts, MEMO_BLOCKS_DEFAULT), "rows");
}

/* One sequence: attention of a part reads the keys of earlier parts. */
TEST(parts_of_a_sequence_give_the_same_bits) {
    for (int32_t tensor = N_SKIPPED; tensor <= 2; tensor++)
        for (int32_t parts = 2; parts <= 3; parts++) {
            gpt_config config = config_of(tensor, parts, MEMO_BLOCKS_DEFAULT);
            config.batch = 1;
            config.sequence = parts == 2 ? 150 : 31; /* more than a tile of attention, less */
            check_schedules(with_masks(config, parts == 2 ? 70 : 0, config.sequence), "sequence");
        }
}

/* Some tensors are kept; of the others half of the rows, all or none are swapped. */
static void check_table(gpt_config config) {
    const int64_t n_rows = gpt_n_rows(&config);
    int64_t* rows = gpt_test_table();
    memo_item tensors[GPT_N_TENSORS];
    own_training keep = trained(config, MEMO_POLICY_KEEP, ACCUMULATE);
    own_training t = training_of(config, MEMO_POLICY_KEEP, ACCUMULATE);
    gpt_fill_tensors(&config, tensors);
    for (int i = 0; i < config.n_layers * GPT_N_TENSORS; i++) {
        const memo_item* tensor = &tensors[i % GPT_N_TENSORS];
        const int is_odd = i / GPT_N_TENSORS % 2;
        rows[i] = memo_test_int(0, 1) * n_rows;
        if (gpt_is_lost(&config, tensors, i % GPT_N_TENSORS)) rows[i] = n_rows;
        if (tensor->away == MEMO_ROWS && memo_test_int(0, 1))
            rows[i] = is_odd ? n_rows - n_rows / 8 * 4 : n_rows / 8 * 4;
        if (memo_test_int(0, 2) == 0) rows[i] = MEMO_ROWS_KEPT;
    }
    for (int i = 0; i < config.n_layers * GPT_N_TENSORS; i++) {
        const int tensor = i % GPT_N_TENSORS;
        rows[i] = rows[i - tensor + item_leader(tensors, tensor)];
    }
    t.desc.rows = rows;
    CHECK_OK(train_all(&t, &error));
    CHECK_CASE(are_the_same(&keep, &t), "%s", memo_blocks_order_name(config.schedule));
}

TEST(tables_of_rows_give_the_same_bits) {
    for (int order = MEMO_BLOCKS_DEFAULT; order < MEMO_N_BLOCKS_ORDERS; order++)
        for (int trial = 0; trial < 4; trial += N_SKIPPED) {
            gpt_config config = config_of(2, 2, (memo_blocks_order)order);
            if (trial == 0) config.degrees = mixed_degrees;
            check_table(config);
        }
}

/* Blocks of other degrees have other rows: gathered if the degree grows, cut if it falls. */
TEST(mixed_degrees_give_the_same_bits) {
    static const int32_t degrees[][6] = {
        {2, 4, 1, 2, 4, 1}, {1, 1, 4, 4, 2, 2}, {2, 2, 2, 2, 2, 2}, {4, 2, 2, 1, 1, 4}};
    for (size_t k = 0; k < sizeof degrees / sizeof degrees[0]; k += N_SKIPPED) {
        gpt_config config = config_of(4, 2, MEMO_BLOCKS_DEFAULT);
        config.batch = 8;
        config.sequence = 9;
        config.sub_batches = k % 2 ? 1 : 2;
        config.degrees = degrees[k];
        check_schedules(config, "degrees");
        if (k % 2) { /* 2 x 4 ranks */
            config.data = 2;
            config.zero = 2 - (int32_t)k / 2;
            check_schedules(config, "degrees with data");
        }
    }
}

/* Sums over ranks are rounded too: the same in every order.  Mixed degrees add on two streams. */
TEST(schedules_and_policies_give_the_same_bits_in_bf16) {
    gpt_config config = config_of(2, 2, MEMO_BLOCKS_DEFAULT);
    config.type = MEMO_TYPE_BF16;
    check_schedules(config, "bf16");
    config.degrees = mixed_degrees;
    check_schedules(config, "bf16, degrees");
}

/* Each tensor rank has pairs of up and gate. */
TEST(swiglu_gives_the_same_bits) {
    gpt_config config = with_masks(config_of(2, 2, MEMO_BLOCKS_DEFAULT), 8, 21);
    config.mlp = GPT_MLP_SWIGLU;
    config.mlp_columns = 40;
    check_schedules(config, "SwiGLU");
    config.degrees = mixed_degrees;
    check_schedules(config, "SwiGLU, degrees");
}

/* A norm of heads is a copy on each rank, which has a part of the heads. */
TEST(biases_and_norms_of_heads_give_the_same_bits) {
    gpt_config config = with_head_norms(with_biases(config_of(2, 2, MEMO_BLOCKS_DEFAULT)));
    config = with_tied_tables(with_head_size(config, 6));
    check_schedules(config, "norms of heads");
    config.degrees = mixed_degrees;
    check_schedules(config, "norms of heads, degrees");
}

/* Chunks begin where the rows of a block begin, and may be larger than these. */
TEST(chunks_of_the_mlp_give_the_same_bits) {
    for (int k = 0; k < 4; k++) {
        gpt_config config = config_of(2, 1 + k % 2, MEMO_BLOCKS_DEFAULT);
        config.mlp_rows = k == 1 ? 1000 : 10;
        if (k == 1) config.slice_rows = 24; /* the second part of the last slice is empty */
        if (k == 2) config.mlp = GPT_MLP_SWIGLU;
        if (k == 3) config.type = MEMO_TYPE_BF16;
        if (k >= 2) config.degrees = mixed_degrees;
        check_schedules(config, "chunks");
    }
}

/* data, ring, ulysses, ZeRO, tensor, sub-batches, rows of a slice */
TEST(it_composes) {
    static const int32_t cases[][7] = {{2, 1, 1, 0, 2, 2, 0}, {2, 1, 1, 2, 2, 2, 12},
                                       {1, 1, 2, 1, 2, 2, 0}, {1, 2, 1, 0, 2, 1, 0},
                                       {2, 1, 2, 2, 2, 1, 0}, {1, 1, 2, 0, 1, 4, 0}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k += N_SKIPPED) {
        const int32_t* c = cases[k];
        gpt_config config = config_of(c[4], c[5], MEMO_BLOCKS_DEFAULT);
        own_training one, t, fine;
        config.data = c[0];
        config.ring = c[1];
        config.ulysses = c[2];
        config.zero = c[3];
        config.slice_rows = c[6];
        one = unsplit(config);
        t = trained(config, MEMO_POLICY_RECOMPUTE, ACCUMULATE);
        config.schedule = MEMO_BLOCKS_FINE;
        fine = trained(config, MEMO_POLICY_ALPHA, ACCUMULATE);
        check_against(&one, &t, "composed");
        CHECK_CASE(are_the_same(&t, &fine), "composition %d", (int)k);
    }
}

/* The backward of a slice takes the gradients of all keys before it. */
TEST(slices_of_a_sequence_over_ranks_compose) {
    gpt_config config = config_of(2, 1, MEMO_BLOCKS_DEFAULT);
    config.batch = 1;
    config.sequence = 336;
    config.ring = 2;
    config.slice_rows = 8;
    own_training one = unsplit(config), t = trained(config, MEMO_POLICY_RECOMPUTE, ACCUMULATE);
    check_against(&one, &t, "slices over ranks");
}

/* One recorded step under every schedule. */
static void check_recorded(memo_policy policy, const int32_t* degrees, int64_t mlp_rows,
                           int32_t data, int32_t zero) {
    for (int order = MEMO_BLOCKS_DEFAULT; order < MEMO_N_BLOCKS_ORDERS; order++) {
        gpt_config config = config_of(2, 2, (memo_blocks_order)order);
        config.degrees = degrees;
        config.mlp_rows = mlp_rows;
        config.data = data;
        config.zero = zero;
        training t = training_of(config, policy, 1);
        t.records = 1;
        t.n_races = -1;
        CHECK_OK(train_all(&t, &error));
        CHECK_CASE(t.n_races == 0, "%s: %d races", memo_blocks_order_name(config.schedule),
                   (int)t.n_races);
        training_free(&t);
    }
}

TEST(recorded_steps_have_no_race) {
    check_recorded(MEMO_POLICY_ALPHA, NULL, 0, 1, 0);
    check_recorded(MEMO_POLICY_ALPHA, NULL, 10, 1, 0);
    check_recorded(MEMO_POLICY_RECOMPUTE, NULL, 0, 2, 0);
    check_recorded(MEMO_POLICY_ALPHA, NULL, 0, 2, 2);
    check_recorded(MEMO_POLICY_SWAP, mixed_degrees, 0, 1, 0); /* gathers */
}

/* Two norms of three layers: the last sum finds nothing of the backward left. */
TEST(sums_of_norms_run_beside_the_backward) {
    for (int32_t data = 1; data < 3; data++)
        for (int32_t zero = 0; zero < 3; zero++)
            for (int32_t is_mixed = 0; is_mixed < 2; is_mixed++) {
                gpt_config config = config_of(2, 3 - data, MEMO_BLOCKS_CROSS);
                config.data = data;
                config.zero = zero;
                if (is_mixed) config.degrees = mixed_degrees;
                own_training t = training_of(config, MEMO_POLICY_KEEP, ACCUMULATE);
                t.records = 1;
                CHECK_OK(train_all(&t, &error));
                CHECK_CASE(!t.n_races && t.n_sums_beside > 0, "data %d, zero %d: %d races",
                           (int)data, (int)zero, (int)t.n_races);
                if (data == 1 && !is_mixed) CHECK(t.n_sums == 6 && t.n_sums_beside == 5);
            }
}

/* The rank fails before its first message, or while the others wait for it inside a block. */
TEST(a_rank_that_fails_ends_all) {
    for (int32_t fails_later = 0; fails_later < 2; fails_later++)
        for (int32_t rank = 0; rank < 2; rank++) {
            gpt_config config = config_of(2, 2, MEMO_BLOCKS_CROSS);
            if (rank) config.degrees = mixed_degrees;
            own_training t = training_of(config, MEMO_POLICY_RECOMPUTE, 1);
            t.failing_rank = rank;
            t.fails_later = fails_later;
            CHECK_IS(train_all(&t, &error), ==,
                     (fails_later ? MEMO_STATUS_UNSUPPORTED : MEMO_STATUS_INFEASIBLE));
        }
}

TEST(impossible_degrees_are_refused) {
    static const int32_t bad[][6] = {{2, 2, 2, 2, 2, 4}, {2, 0, 2, 2, 2, 2}, {1, 2, 2, 2, 2, -2}};
    static const int32_t mixed[6] = {1, 2, 2, 2, 2, 2};
    gpt_config config = config_of(2, 4, MEMO_BLOCKS_FINE); /* 4 sequences */
    int64_t* rows = gpt_test_table();
    memo_swap_sizes sizes;
    config.degrees = mixed;
    gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
    CHECK_IS(gpt_swap_sizes(&desc, &sizes, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    desc.config.sub_batches = 2;
    CHECK_OK(gpt_swap_sizes(&desc, &sizes, &error));
    CHECK_OK(gpt_fill_rows(&desc.config, MEMO_POLICY_SWAP, 0, rows, &error));
    rows[GPT_NORM1] = rows[GPT_RSTD1] = 4;
    desc.rows = rows;
    CHECK_ERROR(gpt_swap_sizes(&desc, &sizes, &error), INVALID_ARGUMENT,
                "is MEMO_WHOLE; swap all rows or none");
    desc.config.ulysses = 2;
    CHECK_IS(gpt_swap_sizes(&desc, &sizes, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    desc.config.ulysses = 1;
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        desc.config.degrees = bad[k];
        CHECK_IS(gpt_swap_sizes(&desc, &sizes, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    }
}

TEST(impossible_splits_are_refused) {
    /* tensor, sub-batches, batch, ulysses: 2 key-value heads, 4 heads */
    static const int32_t bad[][4] = {{3, 1, 4, 1}, {4, 1, 4, 1}, {-1, 1, 4, 1},
                                     {2, 3, 4, 1}, {2, 2, 1, 2}, {2, -1, 4, 1}};
    memo_swap_sizes sizes;
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        gpt_config config = gpt_test_config(3, 16, 4, 2, 21, bad[k][2], 4, 0.1);
        config.tensor = bad[k][0];
        config.sub_batches = bad[k][1];
        config.ulysses = bad[k][3];
        gpt_desc desc = gpt_test_desc(config, MEMO_POLICY_KEEP, 0);
        CHECK_CASE(gpt_swap_sizes(&desc, &sizes, &error) == MEMO_STATUS_INVALID_ARGUMENT, "case %d",
                   (int)k);
    }
}

int main(int argc, char** argv) {
    memo_test_begin(argc, argv);
    int result = memo_test_run_all();
    printf(
        "# largest difference to one rank: loss %.2g in the first step, %.2g in %d, gradient over "
        "its norm %.2g\n",
        worst_first_loss, worst_loss, N_STEPS, worst_gradient);
    return result;
}
