/* test_sp_attention.c - attention over ring x ulysses ranks against a dense fp64 reference that
 * shares no code.
 *
 * Bugs that users of other systems reported, and the test that finds each here (in this file unless
 * another is named):
 *
 *    1 gradients get worse with the ring         the_ring_adds_no_error_to_bf16 (at most 1.02 of
 *                                                ring 1, at ring 16)
 *    2 a wrong backward of the ring              every_pair_of_degrees_is_exact,
 *                                                random_cases_are_exact: all gradients
 *    3 exp overflows in the merge                extreme_scores_are_right,
 *                                                infinite_scores_are_right; test_row_kernels:
 *                                                merge_survives_extremes
 *    4 the degree is capped by key heads         every_number_of_heads_is_exact,
 *                                                bytes_follow_the_heads_that_ranks_need,
 *                                                gradients_of_replicas_are_summed_in_fp32
 *    5 query heads that do not divide            every_number_of_heads_is_exact; test_sharding:
 *                                                heads_are_dealt_out
 *    6 lengths that do not divide, a lost token  random_cases_are_exact; test_sharding:
 *                                                every_sharding_validates
 *    7 documents that must divide by 2 cp        every_mask_in_every_sharding_is_exact;
 *                                                test_sharding: documents_are_balanced
 *    8 positions after reordering                test_sharding: positions_count_within_documents
 *    9 loss and gradients off by a factor        test_sharding: the_mean_loss_matches_one_rank
 *   10 labels shifted after sharding             test_sharding: labels_are_shifted_before_sharding
 *   11 deadlocks                                 test_comm:
 *                                                exchange_of_all_with_all_does_not_deadlock,
 *                                                groups_of_random_messages_arrive,
 *                                                splits_make_the_right_groups_which_work_at_once
 *   12 no overlap                                the_ring_s_schedule_overlaps; test_comm:
 *                                                links_take_their_time;
 *                                                cuda/nccl_blocks: priorities_differ
 *   13 memory that grows with the ring           memory_does_not_grow_with_the_ring
 *   14 a window that is ignored                  every_mask_in_every_sharding_is_exact,
 *                                                only_rows_that_are_read_travel
 *   15 parallelism that does nothing             zigzag_is_balanced_and_plain_is_not,
 *                                                what_sees_nothing_is_not_computed,
 *                                                bytes_follow_the_heads_that_ranks_need;
 *                                                test_sharding: who_holds_what_is_printed */
#include "scarce.h"

static void* counted_malloc(size_t n_bytes); /* memo's own bookkeeping */
#undef MEMO_MALLOC
#define MEMO_MALLOC(n_bytes) counted_malloc(n_bytes)
#define MEMO_STATIC
#define MEMOI_POOL_ALIGNMENT pool_alignment
static long pool_alignment = 8;
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#include "memo_sp.h"
#include "extras/memo_look.h"
#include "bench/ring_schedule.h"
#include "memo_test.h"
#include "thread_ranks.h"
#include "sp_attention_cases.h"
#include "stats.h"
#include "owned.h"
#define own_whole OWNED(whole_destroy) whole
#define own_mask  OWNED(made_mask_free) memo_mask

/* A case of these degrees, tokens, query and key heads and head size, and further fields. */
#pragma GCC diagnostic ignored "-Woverride-init" /* the batch, 1 by default */
#define CASE(r, u, tokens, q_heads, kv_heads, size, ...)                                           \
    {                                                                                              \
        .ring = (r), .ulysses = (u), .n_tokens = (tokens), .n_batch = 1, .n_q_heads = (q_heads),   \
        .n_kv_heads = (kv_heads), .head_size = (size), __VA_ARGS__                                 \
    }

static long long failing_malloc; /* the request that fails; 0: none */
static void* counted_malloc(size_t n_bytes) {
    return __atomic_add_fetch(&malloc_count, 1, __ATOMIC_RELAXED) == failing_malloc
               ? NULL
               : scarce_malloc(n_bytes);
}

/* All random cases under `make test-all`; least where every instruction costs much. */
#if defined(MEMO_TEST_VALGRIND) || defined(MEMO_TEST_TSAN)
#define IS_SLOW 2
#else
#define IS_SLOW (memo_test_all() ? 0 : 1)
#endif

/* What the ranks report of a case. */
static void world_of(const attention_case* c, world* all) {
    own_whole w;
    whole_create(&w, c);
    world_init(all, c, &w);
    CHECK(world_run(all));
}

/* The errors of the tensors of a case whose reference w has, and what the ranks report. */
static void errors_of(const attention_case* c, whole* w, double errors[N_TENSORS], world* all) {
    world_init(all, c, w);
    CHECK(world_run(all));
    for (int t = OUT; t < N_TENSORS; t++) errors[t] = error_of(c, w, t);
    printf("# %s, ring %d, ulysses %d: out %.4g, d_q %.4g, d_k %.4g, d_v %.4g\n",
           memo_type_name(c->type), (int)c->ring, (int)c->ulysses, errors[OUT], errors[D_Q],
           errors[D_K], errors[D_V]);
}

/* With these degrees, ring and ulysses, errors are at most `factor` times those of one rank, and
 * `more` for each merge. */
static void expect_no_worse(attention_case c, const int32_t (*degrees)[2], int n, double factor,
                            double more) {
    double errors[N_TENSORS], of_one[N_TENSORS];
    whole w;
    world all;
    c.ring = c.ulysses = 1;
    whole_create(&w, &c);
    reference_run(&c, &w);
    errors_of(&c, &w, of_one, &all);
    for (int i = 0; i < n; i++) {
        c.ring = degrees[i][0];
        c.ulysses = degrees[i][1];
        errors_of(&c, &w, errors, &all);
        for (int t = OUT; t < N_TENSORS; t++)
            if (t != D_OUT)
                CHECK_CASE(errors[t] <= factor * of_one[t] + more * (c.ring - 1),
                           "%s is off by %.4g, on one rank by %.4g", tensor_names[t], errors[t],
                           of_one[t]);
    }
    whole_destroy(&w);
}

/* Exact or close, and what one rank enqueues has no race, and no wait too many. */
static void expect_recorded(const attention_case* c, int32_t rank, int32_t n_repeats,
                            double forward_bound, double gradient_bound) {
    world all;
    world_init(&all, c, NULL);
    all.recorded_rank = rank;
    all.n_repeats = n_repeats; /* steps of different calls can race, too */
    expect_close(c, forward_bound, gradient_bound, &all);
}

static void expect_bytes(const run_result* x, int64_t ulysses_forward, int64_t ulysses_backward,
                         int64_t ring_forward, int64_t ring_backward) {
    CHECK_IS(x->ulysses_forward_bytes, ==, ulysses_forward);
    CHECK_IS(x->ulysses_backward_bytes, ==, ulysses_backward);
    CHECK_IS(x->ring_forward_bytes, ==, ring_forward);
    CHECK_IS(x->ring_backward_bytes, ==, ring_backward);
}

/* n documents; begins has n + 1 numbers. */
static void set_documents(attention_case* c, const int64_t* begins, int64_t n) {
    memcpy(c->document_begins, begins, (size_t)(n + 1) * sizeof *begins);
    c->n_documents = n;
}

static memo_sp_attention_desc desc_of(memo_sharding_kind kind, int32_t ring, int32_t ulysses,
                                      int64_t n_tokens, int32_t n_q_heads, int32_t n_kv_heads,
                                      int32_t head_size, memo_type type) {
    memo_sp_attention_desc desc = {0};
    memo_sharding_desc sharding = {
        .kind = kind, .ring = ring, .ulysses = ulysses, .n_tokens = n_tokens};
    CHECK_OK(memo_sharding_make(&sharding, &desc.sharding, &error));
    desc.n_q_heads = n_q_heads;
    desc.n_kv_heads = n_kv_heads;
    desc.head_size = head_size;
    desc.type = type;
    return desc;
}

static memo_sp_attention_sizes sizes_of(const memo_sp_attention_desc* desc) {
    memo_sp_attention_sizes sizes;
    CHECK_OK(memo_sp_attention_desc_get_sizes(desc, &sizes, &error));
    return sizes;
}

/* A device of its own, and the host's attention on it. */
static memo_device* open_device(memo_stream* stream, host_attention* state,
                                memo_attention* attention) {
    memo_device* device = new_device(MEMO_ZERO(memo_host_device_desc));
    CHECK_OK(memo_stream_create(device, "compute", 0, stream, &error));
    state->device = device;
    state->n_scores = 0;
    *attention = host_attention_functions(state);
    return device;
}

/* The schedule of all ranks in one pass, and its simulation if that is not NULL. */
static memo_schedule* schedule_of(const memo_sp_attention_desc* desc, const memo_mask* mask,
                                  int is_backward, const ring_costs* costs,
                                  memo_simulation** simulation) {
    memo_schedule* schedule = new_empty_schedule();
    CHECK_OK(ring_schedule(desc, mask, is_backward, costs, schedule, &error));
    if (simulation) CHECK_OK(memo_schedule_simulate(schedule, simulation, &error));
    return schedule;
}

/* ---- tests ---- */

TEST(every_pair_of_degrees_is_exact) {
    static const int32_t degrees[] = {1, 2, 3, 4, 8};
    int k = 0;
    for (int r = 0; r < 5; r++)
        for (int u = 0; u < 5; u++) {
            attention_case c = case_of(degrees[r], degrees[u], 97 + k, 8, 4, 32);
            if (degrees[r] * degrees[u] > (IS_SLOW ? 8 : 16)) continue;
            c.sharding = (memo_sharding_kind)(k % 2);
            c.window = k % 4 == 3 ? 19 : 0;
            k++;
            expect_exact(&c);
            c.sharding = MEMO_SHARDING_ZIGZAG;
            c.mask = k % 5 == 0 ? MEMO_MASK_FULL : MEMO_MASK_CAUSAL;
            c.sends_again = k % 2;
            expect_exact(&c);
        }
    report_worst();
}

TEST(every_number_of_heads_is_exact) {
    /* Hq, Hkv, ulysses: fewer key heads than ranks, not dividing, fewer query heads than ranks */
    static const int32_t heads[][3] = {{4, 4, 2},  {4, 2, 4},  {8, 2, 8}, {8, 1, 4}, {32, 1, 8},
                                       {32, 4, 8}, {6, 3, 4},  {6, 2, 4}, {6, 6, 4}, {12, 3, 8},
                                       {12, 4, 3}, {2, 1, 8},  {3, 3, 8}, {5, 1, 3}, {9, 3, 2},
                                       {16, 2, 3}, {32, 8, 3}, {14, 7, 4}};
    for (int i = 0; i < (int)(sizeof heads / sizeof *heads); i++) {
        attention_case c = CASE(heads[i][2] <= 4 && i % 2 ? 2 : 1, heads[i][2], 45, heads[i][0],
                                heads[i][1], 32, .n_batch = 1 + i % 2, .sends_again = i % 3 == 0);
        expect_exact(&c);
    }
    report_worst();
}

TEST(every_head_size_is_exact) {
    static const int32_t sizes[][2] = {/* of q and k, of v */
                                       {32, 0},  {64, 0},    {80, 0},  {128, 0},
                                       {1, 0},   {3, 0},     {256, 0}, {24, 16},
                                       {16, 24}, {192, 128}, {1, 256}, {256, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        attention_case c =
            CASE(2, 2, 70, 4, 2, sizes[i][0], .v_head_size = sizes[i][1], .n_batch = 2);
        expect_exact(&c);
    }
    report_worst();
}

/* Over nodes the rows of the third sequence lie behind those of two others: of one mask, and of one
 * for each. */
TEST(three_sequences_over_nodes_are_exact) {
    for (int i = 0; i < 4; i++) {
        attention_case others[2];
        attention_case c = CASE(4 + 2 * (i & 1), 1, 67, 2, 1, 8, .n_batch = 3, .nodes = 2);
        c.window = 30;
        for (int k = 0; k < 2; k++) {
            others[k] = c;
            others[k].window = 5 + 20 * k;
        }
        if (i & 2) c.others = others;
        expect_exact(&c);
    }
    report_worst();
}

/* Windows of which both sides or one end, prefixes by document, and both; documents of 1, 0, 40, 2
 * and 58 tokens. */
TEST(every_mask_in_every_sharding_is_exact) {
    static const int32_t degrees[][2] = {{1, 1}, {3, 1}, {2, 2}, {3, 2}};
    static const int64_t begins[] = {0, 1, 1, 41, 43, 101}, prefixes[] = {1, 5, 17, 0, 1000};
    static const int64_t windows[][2] = {{0, 0}, {9, 0}, {9, 3}, {0, 5}, {30, -1}, {1, 1}};
    for (int i = 0; i < 4; i++)
        for (int sharding = 0; sharding < 3; sharding++)
            for (int mask = 0; mask < 2; mask++)
                for (int window = 0; window < 6; window += 1 + 2 * IS_SLOW)
                    for (int k = 0; k < 2;
                         k++) { /* documents; prefixes, now with and now without */
                        attention_case c = CASE(
                            degrees[i][0], degrees[i][1], 101, 2, 2, 8,
                            .sharding = (memo_sharding_kind)sharding, .mask = (memo_mask_kind)mask,
                            .window = windows[window][0], .window_after = windows[window][1],
                            .has_prefixes = (k + window + i) % 2);
                        memcpy(c.prefixes, prefixes, sizeof prefixes);
                        if (k || sharding == MEMO_SHARDING_DOCUMENTS)
                            set_documents(&c, begins, 5);
                        else
                            c.prefixes[0] = 23;
                        expect_exact(&c);
                    }
    report_worst();
}

/* The bound of fp32: 2^-24 of an LSE of this size, and of a few operations. */
static double dominated(double lse) { return 6e-8 * (8 + 2 * lse); }

/* One token: all that is left of its value beside a sink that takes nearly everything.  Many
 * sequences, because a row dot that cancels would be the whole error of one. */
TEST(a_sink_that_dominates_leaves_the_rest) {
    static const double sinks[] = {4, 8, 12, 20, 80};
    for (int type = 0; type < 2; type++)
        for (int i = 0; i < 5; i++) {
            attention_case c = CASE(1, 1, 1, 2, 1, 8, .spread = 1e-3 /* scores near 0 */,
                                    .has_sinks = 1, .sink = sinks[i],
                                    .type = type ? MEMO_TYPE_BF16 : MEMO_TYPE_F32, .n_batch = 16);
            expect_right(&c, type ? 4e-3 : dominated(sinks[i]), type ? 2e-2 : dominated(sinks[i]),
                         NULL);
        }
    report_worst();
}

/* A first token without value attracts nearly all attention, as in trained models: a ring leaves of
 * the others what one rank leaves.  Each merge rounds the LSE, which all of a row's probabilities
 * share, and a part below half a unit in the last place is lost.  Queries are small: else the rest
 * of one row is most of all, and its error that of chance. */
TEST(a_token_that_dominates_leaves_the_rest) {
    static const int32_t rings[][2] = {{4, 1}, {8, 1}, {16, 1}};
    static const double scores[] = {12, 16, 20};
    for (int i = 0; i < 3; i++) {
        attention_case c = case_of(1, 1, IS_SLOW ? 128 : 512, 1, 1, 64);
        const double half_unit = ldexp(1, -20); /* of an LSE from 16 to 32 */
        c.attracts = scores[i];
        c.spread = 0.5;
        expect_no_worse(c, rings, 3, 2, half_unit);
        c.type = MEMO_TYPE_BF16;
        expect_no_worse(c, rings, 3, 1.02, 1e-4);
    }
}

/* Rows that see no key: output 0, and the gradient of a sink comes from the others. */
TEST(sinks_of_rows_without_keys_are_exact) {
    for (int i = 0; i < 4; i++) {
        attention_case c =
            CASE(1 + i % 2 * 3, 1 + i / 2, 93, 4, 2, 16, .huge = 1e25, .has_sinks = 1);
        expect_exact(&c);
    }
    report_worst();
}

static void set_random_mask(attention_case* c) {
    c->mask = (memo_mask_kind)memo_test_int(0, 1);
    c->window = memo_test_int(0, 2) ? 0 : memo_test_int(1, 40);
    c->window_after = memo_test_int(0, 2) ? 0 : memo_test_int(-1, 40);
    c->has_prefixes = memo_test_int(0, 3) == 0 && !c->first_query;
    c->has_intervals = memo_test_int(0, 3) == 0;
    for (int64_t k = 0; k < MAX_DOCUMENTS; k++) c->prefixes[k] = memo_test_int(0, 30);
    if (c->sharding != MEMO_SHARDING_DOCUMENTS &&
        (!c->n_keys || c->key_sharding != MEMO_SHARDING_DOCUMENTS) && memo_test_int(0, 1))
        return;
    c->n_documents = memo_test_int(1, MAX_DOCUMENTS);
    for (int64_t k = 1; k < c->n_documents; k++)
        c->document_begins[k] = memo_test_int(c->document_begins[k - 1],
                                              c->document_begins[k - 1] +
                                                  (c->n_tokens - c->document_begins[k - 1]) / 2);
    c->document_begins[c->n_documents] = c->first_query ? c->n_keys : c->n_tokens;
    for (int64_t k = 1; k < c->n_documents; k++)
        c->key_begins[k] =
            c->first_query ? c->document_begins[k] : memo_test_int(c->key_begins[k - 1], c->n_keys);
    c->key_begins[c->n_documents] = c->n_keys;
    if (c->n_keys || memo_test_int(0, 2)) return;
    c->window = c->window_after = c->has_prefixes = c->has_intervals = 0;
    random_tree(c);
}

/* A window leaves the first keys of documents, which are a level of their own; without other
 * intervals. */
static void set_first_keys(attention_case* c) {
    const int is_cross = c->n_keys && c->n_documents && !c->first_query;
    if (c->window && c->mask == MEMO_MASK_CAUSAL && !c->has_prefixes && !c->has_intervals &&
        !is_cross)
        c->first_keys = memo_test_int(0, 9);
}

/* Two messages of each rank start late. */
static void make_some_late(world* all) {
    all->late_seed = memo_test_random();
    all->late_ring_rank = ALL_RANKS;
    all->late_one_in = 8;
    all->n_late = 2;
}

/* Few queries and few heads: ranks without queries, ranks without heads, groups of one head. */
static void make_sparse(attention_case* c) {
    c->ring = memo_test_int(0, 3) ? (int32_t)memo_test_int(2, 4) : 8;
    c->ulysses = (int32_t)memo_test_int(2, c->ring > 4 ? 2 : 4);
    c->ulysses_groups = (int32_t)memo_test_int(3, 4);
    c->n_tokens = memo_test_int(0, 1) ? memo_test_int(1, c->ring) : 8;
    c->n_q_heads = c->ulysses * c->ulysses_groups;
    if (memo_test_int(0, 1)) c->n_q_heads = (int32_t)memo_test_int(1, 2 * c->ulysses - 1);
    settle_groups(c);
    do c->n_kv_heads = (int32_t)memo_test_int(1, 5);
    while (c->n_q_heads % c->n_kv_heads);
}

/* In most cases keys have another length and sharding, and some documents have no queries or no
 * keys.  In some a local attention of the user adds a bias per head of the model, with the heads
 * of one tensor rank.  In some keys are latent, with gradients of the weights, too.  A sink counts
 * once, whatever the number of steps; its gradient comes from the ranks that have its head.  Plans
 * of exchanges may search less.  What one rank enqueues has no race, and no wait too many. */
TEST(random_cases_are_exact) {
    int n = IS_SLOW == 2 ? 24 : IS_SLOW ? 120 : memo_test_cases(400, 600);
    attention_case others[MAX_BATCH - 1];
    for (int i = 0; i < n; i++) {
        static const int32_t degrees[] = {1, 2, 3, 4, 5, 6, 8};
        int32_t ring = degrees[memo_test_int(0, 6)], ulysses = degrees[memo_test_int(0, 6)];
        int32_t n_kv_heads = (int32_t)memo_test_int(1, 5);
        if (ring * ulysses > 16) {
            ring = 1 + ring % 4;
            ulysses = 1 + ulysses % 4;
        }
        attention_case c =
            case_of(ring, ulysses, memo_test_int(1, 120), n_kv_heads * (int32_t)memo_test_int(1, 4),
                    n_kv_heads, (int32_t)memo_test_int(2, 40));
        const int is_sparse = i % 4 == 1;
        if (is_sparse) make_sparse(&c);
        ring = c.ring;
        ulysses = c.ulysses;
        c.sharding = (memo_sharding_kind)memo_test_int(0, 2);
        if (ring > 3 && ring % 2 == 0 && memo_test_int(0, 3))
            c.nodes = ring > 4 && memo_test_int(0, 1) ? ring / 2 : 2;
        if (memo_test_int(0, 3) == 0) c.slice_tokens = 2 * ring * ulysses * memo_test_int(1, 3);
        c.v_head_size = memo_test_int(0, 1) ? 0 : (int32_t)memo_test_int(1, 40);
        c.n_batch = (int32_t)memo_test_int(1, 2);
        c.sends_again = (int32_t)memo_test_int(0, 1);
        if (!is_sparse) c.ulysses_groups = (int32_t)memo_test_int(0, 4);
        settle_groups(&c);
        c.are_peers = memo_test_int(0, 3) == 0;
        if (memo_test_int(0, 2) == 0) { /* up to scores far beyond it */
            c.softcap = memo_test_int(0, 3) ? (double)memo_test_int(1, 5) : 0.5;
            c.spread = (double)memo_test_int(1, 3);
        }
        c.launches = (memo_launch_kind)(i / 2 % MEMO_N_LAUNCH_KINDS);
        c.has_slopes = memo_test_int(0, 3) == 0;
        c.rounds_gradients = memo_test_int(0, 2) == 0;
        c.overwrites = ring * ulysses > 1 && memo_test_int(0, 1);
        if (!c.has_slopes && memo_test_int(0, 4) == 0) c.type = MEMO_TYPE_BF16;
        c.is_poisoned = !c.has_slopes && memo_test_int(0, 3) == 0;
        if (memo_test_int(0, 3) == 0) {
            c.latent_size = (int32_t)memo_test_int(1, 20);
            c.latent_heads = (int32_t)memo_test_int(0, 3); /* at most so many in a call */
        }
        if (i % 2 || memo_test_int(0, 3) == 0) {
            c.n_keys = i % 8 ? memo_test_int(1, 120) : 1;
            c.key_sharding = (memo_sharding_kind)memo_test_int(0, 2);
            if (c.n_keys == 1) c.type = MEMO_TYPE_F32; /* gradients are all rounding */
            if (i % 8 && memo_test_int(0, 1)) {        /* a slice */
                c.first_query = memo_test_int(0, 60);
                c.n_keys = c.first_query + c.n_tokens + memo_test_int(0, 1) * memo_test_int(0, 9);
                if (!c.first_query) c.first_query = -1;
                if (c.sharding == MEMO_SHARDING_DOCUMENTS) c.sharding = MEMO_SHARDING_ZIGZAG;
                if (c.key_sharding == MEMO_SHARDING_DOCUMENTS) c.key_sharding = MEMO_SHARDING_PLAIN;
            }
        }
        if (memo_test_int(0, 1) && c.key_sharding != MEMO_SHARDING_DOCUMENTS) {
            c.n_batch = (int32_t)memo_test_int(2, 3);
            for (int64_t k = 0; k < c.n_batch - 1; k++) {
                others[k] = c;
                set_random_mask(&others[k]);
                set_first_keys(&others[k]);
            }
            c.others = others;
        }
        set_random_mask(&c);
        set_first_keys(&c);
        /* Beside the only key a row has, 1 - p of a sink may be all rounding. */
        c.has_sinks = memo_test_int(0, 1) && c.n_tokens >= 8;
        /* Dominating parts: a first token without value; scores of -inf.  fp32 knows a score of 20
         * to 1e-6. */
        const int may_dominate = i % 2 == 0 && c.latent_size == 0;
        if (may_dominate && memo_test_int(0, 2) == 0) c.attracts = (double)memo_test_int(8, 20);
        if (may_dominate && c.attracts == 0 && c.softcap == 0 && !c.has_slopes &&
            memo_test_int(0, 3) == 0)
            c.huge = 1e25;
        if (c.type && c.huge + c.attracts == 0 && memo_test_int(0, 1)) c.type = MEMO_TYPE_F16;
        world all;
        world_init(&all, &c, NULL);
        all.recorded_rank = is_sparse ? ALL_RANKS : (int32_t)memo_test_int(-1, ring * ulysses - 1);
        if (is_sparse) make_some_late(&all);
        all.n_repeats = 2 - c.overwrites; /* steps of different calls can race, too */
        pool_alignment = memo_test_int(0, 1) ? 1 : 8;
        /* A row with one key has a gradient of 0, which rounding of its output exceeds. */
        if (c.type)
            expect_right(&c, 4e-3, 3e-2, &all);
        else if (c.attracts > 0)
            expect_right(&c, 1e-5, 2e-5, &all);
        else
            expect_right(&c, 2e-6, 5e-6, &all);
    }
    pool_alignment = 8;
    report_worst();
}

/* Ring rank 1 computes nothing but has gradients of its keys: the results of a group are sent while
 * the group behind the next one sets its own.
 * The messages of ring rank 1 are late, and no rank's schedule has a race. */
TEST(late_cases_are_exact) {
    for (int i = 0; i < 4; i++) {
        attention_case c =
            CASE(2, 3, 3, 36, 36, 8, .sharding = MEMO_SHARDING_PLAIN, .mask = MEMO_MASK_FULL,
                 .n_keys = 24, .key_sharding = MEMO_SHARDING_PLAIN, .ulysses_groups = 3 + i / 2,
                 .sends_again = i % 2);
        world all;
        world_init(&all, &c, NULL);
        all.recorded_rank = ALL_RANKS;
        all.late_ring_rank = all.late_one_in = 1;
        all.n_late = INT32_MAX;
        expect_right(&c, 2e-6, 5e-6, &all);
    }
}

/* Images within which tokens see each other, in causal text; or any intervals whose ends do not
 * descend, with keys that nobody sees and queries that see none. */
TEST(any_intervals_are_exact) {
    for (int i = 0; i < (IS_SLOW ? 12 : 80); i++) {
        const int32_t ring = (int32_t)memo_test_int(1, 5);
        attention_case c = case_of(ring, ring > 3 ? 1 : (int32_t)memo_test_int(1, 3),
                                   memo_test_int(4, 150), 4, 2, 8);
        int64_t first[150], end[150], q = 0;
        c.sharding = (memo_sharding_kind)memo_test_int(0, 1);
        c.ulysses_groups = (int32_t)memo_test_int(0, 2);
        settle_groups(&c);
        c.has_sinks = (int32_t)memo_test_int(0, 1);
        c.mask = (memo_mask_kind)memo_test_int(0, 1);
        if (i % 4 == 3) c.n_keys = memo_test_int(1, 150);
        while (q < c.n_tokens && i % 2) { /* text, or an image */
            const int64_t n = memo_test_int(0, 1) ? memo_test_int(1, 40) : 1;
            const int64_t to = q + n < c.n_tokens ? q + n : c.n_tokens;
            for (; q < to; q++) {
                first[q] = 0;
                end[q] = to < keys_of(&c) ? to : keys_of(&c);
            }
        }
        for (; q < c.n_tokens; q++) {
            const int64_t before = q ? first[q - 1] : 0, last = q ? end[q - 1] : 0;
            first[q] = memo_test_int(0, 3) ? before : memo_test_int(before, keys_of(&c));
            end[q] = last > first[q] ? last : first[q];
            if (!memo_test_int(0, 3)) end[q] = memo_test_int(end[q], keys_of(&c));
        }
        c.key_first = first;
        c.key_end = end;
        /* Of rows with one key, which images do not have, gradients are all rounding. */
        if (i % 2 && i % 3 == 0) c.attracts = (double)memo_test_int(8, 20);
        if (i % 2 && i % 3 == 1) c.huge = 1e25;
        world all;
        world_init(&all, &c, NULL);
        if (i % 4 == 2) make_some_late(&all);
        expect_right(&c, c.attracts > 0 ? 1e-5 : 2e-6, c.attracts > 0 ? 2e-5 : 1e-5, &all);
    }
    report_worst();
}

TEST(errors_stay_small_at_1024) {
    attention_case c = case_of(4, 2, IS_SLOW ? 256 : 1024, 2, 2, 64);
    expect_exact(&c);
    c.ring = 1;
    c.ulysses = 1;
    c.n_q_heads = c.n_kv_heads = 1;
    c.head_size = 128;
    expect_exact(&c);
    report_worst();
}

/* With 16-bit inputs, sums on the ring are fp32: sixteen hops add no error. */
TEST(the_ring_adds_no_error_to_bf16) {
    static const int32_t rings[][2] = {{4, 1}, {16, 1}};
    attention_case c = case_of(1, 1, IS_SLOW ? 256 : 1024, 1, 1, 64);
    c.type = MEMO_TYPE_BF16;
    expect_no_worse(c, rings, 2, 1.02, 0);
}

/* d_k and d_v that travel as bf16: each step's contribution is rounded once. */
TEST(rounded_gradients_lose_little) {
    static const int rings[] = {1, 2, 4, 8, 16};
    static const double bounds[] = {1, 1.2, 1.3, 1.4, 1.5}; /* of the error of one rank */
    attention_case c = case_of(1, 1, IS_SLOW ? 256 : 1024, 1, 1, 64);
    double errors[2][N_TENSORS];
    own_whole w;
    world all;
    c.type = MEMO_TYPE_BF16;
    whole_create(&w, &c);
    reference_run(&c, &w);
    for (int i = 0; i < 5; i++) {
        c.ring = rings[i];
        c.rounds_gradients = 1;
        errors_of(&c, &w, errors[i > 0], &all);
        for (int t = D_Q; t < N_TENSORS; t++)
            CHECK_CASE(errors[i > 0][t] <= (t == D_Q ? 1.02 : bounds[i]) * errors[0][t],
                       "%s at ring %d", tensor_names[t], rings[i]);
        int64_t forward = 0, backward = 0;
        for (int r = 0; r < c.ring; r++) { /* gradients: as much as keys and values */
            const run_result* x = &all.results[r];
            forward += x->ring_forward_bytes;
            backward += x->ring_backward_bytes;
        }
        CHECK_IS(backward, ==, 2 * forward);
    }
}

TEST(the_16_bit_types_work_in_every_way) {
    for (int type = 0; type < 2; type++) {
        for (int i = 0; i < 12; i++) { /* from 6 on with softcaps below most scores */
            attention_case c =
                CASE(1 + i % 3, 1 + i % 6 / 2, 61, 6, i % 2 ? 2 : 3, 32,
                     .softcap = i < 6        ? 0
                                : i % 4 == 3 ? 0.5
                                             : 5,
                     .spread = i < 6 ? 0 : 3, .n_batch = 1 + i % 2,
                     .v_head_size = i % 3 == 1   ? 48
                                    : i % 3 == 2 ? 8
                                                 : 0,
                     .type = type ? MEMO_TYPE_F16 : MEMO_TYPE_BF16, .sends_again = i % 2,
                     .has_sinks = i / 2 % 2, .rounds_gradients = i / 3 % 2);
            expect_right(&c, type ? 3e-4 : 2e-3, (type ? 5e-4 : 3e-3) * (i < 6 ? 1 : 2), NULL);
        }
        printf("# %s\n", type ? "f16" : "bf16");
        report_worst();
    }
}

/* The host's attention alone, on one block. */
TEST(rows_without_a_segment_are_not_touched) {
    memo_attention attention;
    host_attention state;
    memo_stream stream;
    const memo_segment segment = {2, 3, 0, 2, MEMO_SEGMENT_FULL, 0};
    memo_run q_run = {6, 4}, k_run = {8, 3};
    float q[4 * 2], k[3 * 2], v[3 * 2], out[4 * 2], lse[4];
    float dots[4] = {0}, d_q[4 * 2] = {0}, d_k[6] = {0}, d_v[6] = {0};
    for (int i = 0; i < 8; i++) q[i] = (float)i;
    for (int i = 0; i < 6; i++) k[i] = v[i] = (float)(i + 1);
    for (int i = 0; i < 8; i++) out[i] = 99;
    for (int i = 0; i < 4; i++) lse[i] = 99;
    memo_attention_block block = {.scale = 1, .q = q, .k = k, .v = v, .out = out, .lse = lse};
    block.n_batch = block.n_q_heads = block.n_kv_heads = block.n_q_runs = block.n_k_runs = 1;
    block.q_runs = &q_run;
    block.k_runs = &k_run;
    block.head_size = block.v_head_size = 2;
    block.q_row_stride = block.k_row_stride = block.v_row_stride = block.out_row_stride = 2;
    block.lse_row_stride = 1;
    block.segments = (memo_segments){.n = 1, .host = &segment};
    own_device* device = open_device(&stream, &state, &attention);
    CHECK_OK(attention.forward(attention.user, stream, &block, &error));
    CHECK_OK(memo_stream_synchronize(device, stream, &error));
    for (int i = 0; i < 4; i++)
        if (i != 2) CHECK(out[2 * i] == 99 && out[2 * i + 1] == 99 && lse[i] == 99);
    CHECK(out[4] > 2 && out[4] <= 3 && lse[2] > 0 && lse[2] < 99);
    CHECK_IS(state.n_scores, ==, 2);
    block.d_out = q;
    block.row_dots = dots;
    block.d_q = d_q;
    block.d_k = d_k;
    block.d_v = d_v;
    CHECK_OK(attention.backward(attention.user, stream, &block, &error));
    CHECK_OK(memo_stream_synchronize(device, stream, &error));
    CHECK(d_q[0] == 0 && d_q[3] == 0 && d_q[6] == 0 && d_q[4] > 0);
    CHECK(d_k[4] == 0 && d_v[5] == 0 && d_v[2] > 0);
    WITH(block.head_size, HOST_ATTENTION_HEAD_SIZE + 1,
         CHECK_FAILS(attention.forward(attention.user, stream, &block, &error), UNSUPPORTED));
    WITH(block.v_head_size, HOST_ATTENTION_HEAD_SIZE + 1,
         CHECK_FAILS(attention.forward(attention.user, stream, &block, &error), UNSUPPORTED));
    block.type = MEMO_TYPE_I64;
    CHECK_FAILS(attention.forward(attention.user, stream, &block, &error), UNSUPPORTED);
}

/* Documents of 1, 30, 0, 1 and the other tokens. */
static void cut_up(attention_case* c) {
    static const int64_t begins[] = {0, 1, 31, 31, 32};
    memcpy(c->document_begins, begins, sizeof begins);
    c->document_begins[5] = c->n_tokens;
    c->n_documents = 5;
}

/* Blocks whose LSEs differ by more than 1e4, with close scores within a block.  An fp32 score of
 * 5e4 has an error of 4e-3, hence the bounds. */
TEST(extreme_scores_are_right) {
    static const int32_t degrees[][2] = {{4, 2}, {8, 1}, {1, 4}, {1, 1}};
    for (int i = 0; i < 4; i++)
        for (int sharding = 0; sharding < 3; sharding++)
            for (int documents = sharding == 2; documents < 2; documents++) {
                attention_case c = CASE(degrees[i][0], degrees[i][1], 96, 4, 2, 64,
                                        .sharding = (memo_sharding_kind)sharding,
                                        .mask = i == 3 ? MEMO_MASK_FULL : MEMO_MASK_CAUSAL);
                c.step = 131072;           /* of the scores: 16384, every 24 keys */
                c.window = i == 1 ? 3 : 0; /* most blocks see nothing of each other */
                if (documents) cut_up(&c);
                expect_right(&c, 2e-2, 2e-2, NULL);
            }
    report_worst();
}

/* Scores of -inf among others, in blocks without other scores, and in rows without other scores:
 * such rows have output and gradients 0.  Padded. */
TEST(infinite_scores_are_right) {
    static const int32_t degrees[][2] = {{4, 2}, {8, 1}, {1, 4}, {1, 1}};
    for (int i = 0; i < 4; i++)
        for (int sharding = 0; sharding < 3; sharding++)
            for (int documents = sharding == 2; documents < 2; documents++)
                for (int window = 0; window < 2; window++) {
                    attention_case c = CASE(
                        degrees[i][0], degrees[i][1], 93, 4, 2, 16, .huge = 1e25,
                        .sharding = (memo_sharding_kind)sharding, .window = window ? 1 + i % 2 : 0,
                        .mask = i >= 2 && window ? MEMO_MASK_FULL : MEMO_MASK_CAUSAL,
                        .type = (sharding + documents + i) % 2 ? MEMO_TYPE_BF16 : MEMO_TYPE_F32);
                    if (documents) cut_up(&c);
                    /* Where few keys are seen, differences of rounded outputs are small. */
                    expect_close(&c, 2e-3, 6e-3, NULL);
                }
    report_worst();
}

/* Nearly every row sees one key only, by far: its gradients of q and k are 0 but for rounding of
 * numbers of size spread.  Where two keys are nearly even, an fp32 score of 5e4 is off by 4e-3. */
TEST(saturated_scores_are_finite) {
    attention_case c = CASE(4, 2, 96, 2, 2, 32, .spread = 100);
    for (int sharding = 0; sharding < 2; sharding++) {
        world all;
        own_whole w;
        c.sharding = (memo_sharding_kind)sharding;
        whole_create(&w, &c);
        reference_run(&c, &w);
        world_init(&all, &c, &w);
        CHECK(world_run(&all));
        CHECK(error_of(&c, &w, OUT) < 2e-3 && error_of(&c, &w, D_V) < 2e-3);
        for (int t = D_Q; t <= D_K; t++) {
            double off = 0, norm = 0;
            for (int64_t i = 0; i < w.n[t]; i++) {
                off = hypot(off, typed_at(w.typed[t], i, c.type) - w.reference[t][i]);
                norm = hypot(norm, w.reference[t][i]);
            }
            CHECK_IS(off, <, 1e-5 * c.spread * sqrt((double)w.n[t]) + 1e-2 * norm);
        }
    }
}

/* Scores computed by each rank, forward and backward. */
static void count_scores(memo_sharding_kind sharding, int32_t ring, int64_t n_tokens,
                         int64_t n_scores[16]) {
    attention_case c = case_of(ring, 1, n_tokens, 1, 1, 4);
    world all;
    c.sharding = sharding;
    world_of(&c, &all);
    for (int32_t r = 0; r < ring; r++) n_scores[r] = all.results[r].n_scores;
}

/* A tile of queries on the diagonal computes at most so many scores that the mask hides. */
#define DIAGONAL(n_rows) ((n_rows) / HOST_TILE_Q * (HOST_TILE_Q * (HOST_TILE_Q - 1) / 2))

TEST(zigzag_is_balanced_and_plain_is_not) {
    static const int64_t lengths[] = {256, 250, 264, 1024};
    int64_t n[16], total, pairs, c, r;
    int64_t s = 1024;
    for (int i = 0; i < 4; i++) {
        IN_CASE("%d tokens", (int)lengths[i]);
        count_scores(MEMO_SHARDING_ZIGZAG, 4, lengths[i], n);
        for (r = 0, total = 0; r < 4; r++) total += n[r];
        pairs = 2 * (lengths[i] * (lengths[i] + 1) / 2);
        for (r = 0; r < 4; r++) /* padding is with rank 0 */
            CHECK(n[r] == n[1] ||
                  (r == 0 && n[0] < n[1] && i == 1 && n[1] - n[0] <= 2 * HOST_TILE_Q * 256));
        CHECK_IS(total, >=, pairs);
        CHECK_IS(total - pairs, <=, 2 * DIAGONAL(lengths[i] + 8 * HOST_TILE_Q));
    }
    count_scores(MEMO_SHARDING_PLAIN, 4, s, n);
    printf("# plain sharding, last rank over first: %.2f to 1\n", (double)n[3] / (double)n[0]);
    c = s /
        4; /* half a square against three and a half: 7 to 1 but for the tiles of the diagonal */
    CHECK(n[0] >= c * (c + 1) && n[0] - c * (c + 1) <= 2 * DIAGONAL(c));
    for (r = 1; r < 4; r++) CHECK_IS(n[r] - n[0], ==, 2 * r * c * c);
}

/* The expected call for these runs: the smallest range of runs that holds all queries that see a
 * key; in step 0 all keys, later those that are seen.
 * Adds to *pairs the visible pairs, and to *most_scores these and what tiles of queries hide: half
 * of a square at each end of the keys that moves. */
static int expected_call(const attention_case* c, const memo_run* q_runs, int32_t n_q_runs,
                         const memo_run* k_runs, int32_t n_k_runs, int is_whole,
                         asked_call* expected, int64_t* most_scores, int64_t* pairs) {
    int32_t q_first = -1, q_last = -1;
    own_memory char* seen = (char*)calloc((size_t)c->n_tokens, 1); /* by key */
    int64_t key;
    memset(expected, 0, sizeof *expected);
    for (int32_t q = 0; q < n_q_runs; q++)
        for (int64_t i = 0; i < q_runs[q].count; i++) {
            const int64_t query = q_runs[q].start + i, before = *pairs;
            for (int32_t k = 0; k < n_k_runs; k++)
                for (key = k_runs[k].start; key < k_runs[k].start + k_runs[k].count; key++) {
                    if (query >= c->n_tokens || key >= c->n_tokens) continue;
                    if (!is_visible(c, query, key)) continue;
                    seen[key] = 1;
                    ++*pairs;
                }
            if (*pairs == before) continue;
            *most_scores += *pairs - before + (1 + (c->window > 0)) * (HOST_TILE_Q - 1) / 2 + 1;
            if (q_first < 0) q_first = q;
            q_last = q;
        }
    if (q_last < 0) return 0;
    if (is_whole) {
        q_first = 0;
        q_last = n_q_runs - 1;
    }
    expected->q_start = q_runs[q_first].start;
    for (int32_t q = q_first; q <= q_last; q++) /* without padding */
        expected->q_rows += memoi_sharding_run_below(&q_runs[q], c->n_tokens);
    if (!expected->q_rows) return 0;
    for (key = c->n_tokens - 1; key >= 0; key--)
        if (seen[key] && !is_whole) {
            expected->k_start = key;
            expected->k_rows++;
        }
    for (int32_t k = 0; k < n_k_runs && is_whole; k++)
        expected->k_rows += memoi_sharding_run_below(&k_runs[k], c->n_tokens);
    if (is_whole) expected->k_start = k_runs[0].start;
    return 1;
}

/* Own keys of a part in backward: one call, or two that share the queries, the first and last of n.
 * Returns how many; 0: other calls. */
static int32_t own_calls(const asked_call* asked, int32_t n, int32_t n_parts,
                         const asked_call* expected, char* is_asked) {
    int64_t rows = 0, start = INT64_MAX;
    int32_t n_calls = 0;
    for (int32_t k = 0; k < n; k++) {
        if ((k >= n_parts && k < n - n_parts) || is_asked[k] ||
            asked[k].k_rows != expected->k_rows || asked[k].k_start != expected->k_start ||
            asked[k].n_q_heads != expected->n_q_heads)
            continue;
        if (rows + asked[k].q_rows > expected->q_rows) continue; /* of another part */
        rows += asked[k].q_rows;
        start = asked[k].q_start < start ? asked[k].q_start : start;
        is_asked[k] = 1;
        n_calls++;
    }
    return rows == expected->q_rows && start == expected->q_start && n_calls <= 2 ? n_calls : 0;
}

/* The calls of the local attention on every rank, and the scores that the host's attention computes
 * in each. */
static void expect_only_what_is_seen(const attention_case* c) {
    own_memory memo_run* runs = (memo_run*)calloc((size_t)(2 * c->n_tokens), sizeof *runs);
    memo_run* k_runs = runs + c->n_tokens;
    int32_t n_parts = c->others ? c->n_batch : 1; /* a call for each */
    memo_sharding sharding;
    world all;
    world_of(c, &all);
    for (int32_t r = 0; r < c->ring * c->ulysses; r++) {
        const run_result* result = &all.results[r];
        int32_t n_calls = 0, n_split = 0;
        int64_t most_scores = 0, pairs = 0,
                n_heads = result->sizes.heads.n_q * (c->n_batch / n_parts);
        char is_asked[2][MAX_ASKED] = {{0}}; /* steps come in any order; step 0 first, or last */
        for (int32_t s = 0; s < c->ring * n_parts; s++) {
            int32_t part = s % n_parts, step = s / n_parts, n_q_runs, n_k_runs;
            int32_t k_rank = (result->ring_rank - step + c->ring) % c->ring;
            const attention_case* own = case_of_row(c, part);
            asked_call expected;
            CHECK_OK(sharding_of_case(c, &sharding, &error));
            n_q_runs = memoi_sharding_ring_runs(&sharding, result->ring_rank, runs);
            n_k_runs = memoi_sharding_ring_runs(&sharding, k_rank, k_runs);
            if (!expected_call(own, runs, n_q_runs, k_runs, n_k_runs, step == 0, &expected,
                               &most_scores, &pairs))
                continue;
            expected.n_q_heads = result->sizes.heads.n_q;
            for (int32_t pass = 0; pass < 2; pass++) {
                const int32_t n = (int32_t)result->n_asked[pass];
                int32_t k = step ? 0 : pass ? n - n_parts + part : part;
                const int32_t end = step ? n : k + 1;
                if (pass && !step && c->ring > 1) {
                    const int32_t n_own =
                        own_calls(result->asked[pass], n, n_parts, &expected, is_asked[pass]);
                    CHECK_CASE(n_own > 0, "%s: rank %d, own keys", case_text(c), (int)r);
                    n_split += n_own - 1;
                    continue;
                }
                for (; k < end; k++) {
                    const asked_call* asked = &result->asked[pass][k];
                    if (!is_asked[pass][k] && asked->q_rows == expected.q_rows &&
                        asked->q_start == expected.q_start && asked->k_rows == expected.k_rows &&
                        asked->k_start == expected.k_start &&
                        asked->n_q_heads == expected.n_q_heads)
                        break;
                }
                CHECK_CASE(k < end, "%s: rank %d, step %d, pass %d", case_text(c), (int)r,
                           (int)step, (int)pass);
                if (k < end) is_asked[pass][k] = 1;
            }
            n_calls++;
        }
        IN_CASE("%s: rank %d", case_text(c), (int)r);
        for (int32_t i = 0; i < 2; i++)
            CHECK_IS(result->n_asked[i], ==, n_calls + (i ? n_split : 0));
        CHECK_IS(result->n_scores, >=, 2 * n_heads * pairs);       /* what is visible */
        CHECK_IS(result->n_scores, <=, 2 * n_heads * most_scores); /* what tiles hold */
    }
}

TEST(what_sees_nothing_is_not_computed) {
    static const int32_t degrees[][2] = {{1, 1}, {2, 1}, {4, 1}, {8, 1}, {2, 2}, {4, 2}};
    static const int64_t begins[] = {0, 8, 9, 9, 150, 217};
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i += 1 + (size_t)IS_SLOW)
        for (int sharding = 0; sharding < 3; sharding++)
            for (int window = 0; window < 2; window++)
                for (int documents = 0; documents < 2; documents++) {
                    attention_case c = CASE(degrees[i][0], degrees[i][1], 217, 2, 2, 2,
                                            .sharding = (memo_sharding_kind)sharding,
                                            .window = !window ? 0
                                                      : i % 2 ? 3
                                                              : 21,
                                            .mask = i % 3 == 2 && window ? MEMO_MASK_FULL
                                                                         : MEMO_MASK_CAUSAL,
                                            .window_after = i == 5 ? 4 : 0,
                                            .has_prefixes = i % 3 == 1, .prefixes = {5, 0, 0, 100}),
                                   others;
                    if (documents || c.sharding == MEMO_SHARDING_DOCUMENTS)
                        set_documents(&c, begins, 5);
                    expect_only_what_is_seen(&c);
                    others = c; /* the other sequence has other documents, and no window */
                    others.window = 0;
                    others.document_begins[1] = 109;
                    others.document_begins[2] = 217;
                    others.n_documents = 2;
                    c.n_batch = 2;
                    c.others = &others;
                    if (i % 2) expect_only_what_is_seen(&c);
                }
}

/* holders[position] = the ring rank that has it. */
static void find_holders(const memo_sharding* sharding, int32_t holders[600]) {
    for (int64_t i = 0; i < sharding->padded_tokens; i++) {
        const int32_t rank = (int32_t)(i / sharding->local_tokens);
        const int64_t row = i % sharding->local_tokens;
        const int64_t position = memo_sharding_position(sharding, rank, row);
        CHECK(position >= 0 && position < 600);
        holders[position] = rank / sharding->ulysses;
    }
}

/* Does a query of rank `reader` see the key? */
static int is_read_by(const attention_case* c, const int32_t* holders, int32_t reader,
                      int64_t key) {
    for (int64_t query = 0; query < c->n_tokens; query++)
        if (holders[query] == reader && is_visible(c, query, key)) return 1;
    return 0;
}

/* Each row goes once to each rank that reads it, and its gradient comes back once: no more and no
 * less, found pair by pair. */
TEST(only_rows_that_are_read_travel) {
    int64_t n_sent = 0, n_read = 0;
    for (int i = 0; i < (IS_SLOW ? 6 : 40); i++) {
        attention_case c = case_of((int32_t)memo_test_int(2, 6), (int32_t)memo_test_int(1, 2),
                                   memo_test_int(12, 150), 2, 2, 4);
        int64_t rows[2][6] = {{0}};
        int32_t holders[600];
        memo_sharding sharding;
        world all;
        c.sharding = (memo_sharding_kind)(i % 3);
        c.mask = (memo_mask_kind)(i % 5 == 4);
        c.window = memo_test_int(0, 2) ? memo_test_int(1, 40) : 0;
        if (c.sharding == MEMO_SHARDING_DOCUMENTS || memo_test_int(0, 1)) random_documents(&c, 6);
        if (c.n_documents && memo_test_int(0, 1)) {
            c.window = 0;
            random_tree(&c);
        }
        CHECK_OK(sharding_of_case(&c, &sharding, &error));
        find_holders(&sharding, holders);
        for (int64_t key = 0; key < c.n_tokens; key++)
            for (int32_t reader = 0; reader < c.ring; reader++) {
                if (holders[key] == reader || !is_read_by(&c, holders, reader, key)) continue;
                rows[0][holders[key]]++; /* keys */
                rows[1][reader]++;       /* gradients */
            }
        world_of(&c, &all);
        for (int32_t r = 0; r < c.ring * c.ulysses; r++) {
            const run_result* x = &all.results[r];
            const int64_t bytes = x->sizes.heads.n_kv * 2 * 4 * 4;
            const int64_t forward = x->ring_forward_bytes - rows[0][x->ring_rank] * bytes;
            const int64_t backward = x->ring_backward_bytes - forward -
                                     (rows[0][x->ring_rank] + rows[1][x->ring_rank]) * bytes;
            IN_CASE("%s: rank %d", case_text(&c), (int)r);
            CHECK_IS(forward, ==, 0); /* bytes more than are read */
            CHECK_IS(backward, ==, 0);
            n_read += (2 * rows[0][x->ring_rank] + rows[1][x->ring_rank]) * bytes;
            n_sent += x->ring_forward_bytes + x->ring_backward_bytes;
        }
    }
    CHECK_IS((double)n_sent, <=, 1.02 * (double)n_read);
}

/* Several answers to each prompt, at the positions that rows have: the prompt's rows are in the
 * batch once, and the pairs of the busiest rank are at most 1.05 of the mean. */
TEST(answers_share_a_prompt_in_equal_parts) {
    static const int64_t lengths[8] = {301, 40, 77, 23, 117, 64, 31, 90};
    static const int64_t parents[8] = {-1, 0, 0, 0, -1, 4, 4, 4};
    double worst = 0;
    for (int i = 0; i < 10; i++) {
        attention_case c = case_of(i ? 2 << i % 3 : 4, 1, 0, 1, 1, 4);
        double most = 0, sum = 0;
        memo_sharding sharding;
        c.sharding = MEMO_SHARDING_DOCUMENTS;
        c.has_tree = 1;
        for (c.n_documents = 0; c.n_documents < 8; c.n_documents++) {
            const int64_t k = c.n_documents, is_prompt = parents[k] < 0;
            c.parents[k] = parents[k];
            c.n_tokens +=
                !i ? lengths[k] : memo_test_int(is_prompt ? 200 : 20, is_prompt ? 400 : 150);
            c.document_begins[k + 1] = c.n_tokens;
        }
        CHECK_OK(sharding_of_case(&c, &sharding, &error));
        for (int32_t r = 0; r < c.ring; r++) {
            double n = 0;
            for (int64_t row = 0; row < sharding.local_tokens; row++) {
                const int64_t q = memo_sharding_position(&sharding, r, row);
                for (int64_t key = 0; key < c.n_tokens && q < c.n_tokens; key++)
                    n += is_visible(&c, q, key);
            }
            sum += n / c.ring;
            most = n > most ? n : most;
        }
        IN_CASE("case %d, ring %d", i, (int)c.ring);
        CHECK_IS(most, <=, 1.05 * sum);
        worst = fmax(worst, most / sum);
    }
    printf("# the busiest rank has at most %.3f of the mean pairs\n", worst);
}

static memo_status refusing_attention(MEMO_UNUSED void* user, MEMO_UNUSED memo_stream stream,
                                      MEMO_UNUSED const memo_attention_block* block,
                                      memo_error* e) {
    return memo_error_set(e, MEMO_STATUS_UNSUPPORTED, "not this one");
}

/* Plans, and computes nothing: its device is a recorder without one. */
static memo_sp_attention* attention_on_paper(memo_sp_attention_desc* desc, memo_recorder* recorder,
                                             memo_comm* ring) {
    desc->device = memo_recorder_get_device(recorder);
    CHECK_OK(memo_stream_create(desc->device, "compute", 0, &desc->stream, &error));
    desc->ring = ring;
    desc->attention.forward = desc->attention.backward = refusing_attention;
    desc->device_memory = (void*)((uintptr_t)1 << 40); /* never accessed */
    return attention_of(desc);
}

/* Rows of keys that a plan sends in a forward, and of gradients in a backward, within a node; and
 * those that it sends to other nodes. */
static void count_rows(const memo_exchange* plan, int64_t sent[2], int64_t crossed[2]) {
    const int32_t me = plan->shape.ring_rank, per = memoi_exchange_places(plan);
    memoi_ring ring = MEMO_ZERO(memoi_ring);
    ring.shape = &plan->shape;
    ring.plan = plan;
    for (int32_t i = 0; i < plan->n_turns[1]; i++) {
        const memoi_exchange_turn* turn = &plan->turns[1][i];
        if (turn->number % MEMOI_N_LINKS == MEMOI_LINK_NODES) {
            if (turn->reader >= 0) crossed[0] += plan->crossing_rows[turn->reader];
            if (turn->given) crossed[1] += memoi_exchange_held_of(plan, turn->given)->n_rows;
            continue;
        }
        if (turn->reader >= 0) sent[0] += memoi_ring_read_rows(&ring, turn->read_of, turn->reader);
        if (turn->given && plan->owners[turn->given] % per != me % per)
            sent[1] += memoi_ring_key_rows(&ring, turn->given);
    }
}

/* The rows of a rank's keys that another rank reads: all queries of the reader, one by one.  Query q
 * sees the keys from first[q] to end[q]; padding sees none. */
static int64_t rows_needed(const memo_sharding* sharding, const int64_t* first, const int64_t* end,
                           int32_t owner, int32_t reader) {
    int64_t n = 0, q;
    for (int64_t row = 0; row < sharding->local_tokens; row++) {
        const int64_t key = memo_sharding_position(sharding, owner, row);
        for (q = 0; q < sharding->local_tokens; q++) {
            const int64_t query = memo_sharding_position(sharding, reader, q);
            if (query < sharding->n_tokens && first[query] <= key && key < end[query]) break;
        }
        n += q < sharding->local_tokens;
    }
    return n;
}

/* No row travels that is not read: of any sharding, with any mask, and however many documents there
 * are. */
TEST(needed_rows_are_counted_before_they_are_sent) {
    enum { RING = 6, MOST = 150 };
    int64_t begins[MOST + 1], first[900], end[900];
    for (int i = 0; i < 24; i++) {
        const memo_sharding_kind kinds[] = {MEMO_SHARDING_DOCUMENTS, MEMO_SHARDING_ZIGZAG,
                                            MEMO_SHARDING_DOCUMENTS, MEMO_SHARDING_PLAIN};
        const int has_documents = kinds[i % 4] == MEMO_SHARDING_DOCUMENTS;
        const int64_t n_tokens = memo_test_int(600, 900), n = memo_test_int(1, i % 3 ? MOST : 5);
        memo_sharding_desc sharding = {.kind = kinds[i % 4], .ring = RING, .n_tokens = n_tokens};
        memo_mask_desc mask_desc = {.kind = i % 5 ? MEMO_MASK_CAUSAL : MEMO_MASK_FULL};
        memo_exchange_desc exchange_desc = {0};
        own_recorder* recorder = new_recorder((memo_recorder_desc){.on_paper = 1});
        memo_sp_attention_desc desc =
            desc_of(MEMO_SHARDING_ZIGZAG, RING, 1, n_tokens, 1, 1, 16, MEMO_TYPE_F32);
        const int32_t rank = (int32_t)memo_test_int(0, RING - 1);
        ring_paper paper;
        memo_comm ring = ring_paper_comm(&paper, rank, RING);
        int64_t needed[2] = {0, 0};
        begins[0] = 0;
        for (int64_t k = 1; k < n; k++)
            begins[k] =
                begins[k - 1] + memo_test_int(0, 2 * (n_tokens - begins[k - 1]) / (n - k + 1));
        begins[n] = n_tokens;
        sharding.document_begins = has_documents ? begins : NULL;
        sharding.n_documents = has_documents ? n : 0;
        CHECK_OK(keep_sharding(&sharding, &desc.sharding, &error));
        own_attention* attention = attention_on_paper(&desc, recorder, &ring);
        mask_desc.window_before = i / 4 % 2 ? memo_test_int(1, 20) : 0;
        mask_desc.n_tokens = n_tokens;
        mask_desc.document_begins = sharding.document_begins;
        mask_desc.n_documents = sharding.n_documents;
        if (i % 8 == 7) { /* gaps that no query sees */
            int64_t at = 0;
            for (int64_t q = 0; q < n_tokens; q++) {
                if (!memo_test_int(0, 99)) at += memo_test_int(0, 40);
                first[q] = at < n_tokens ? at : n_tokens;
                end[q] = at + 3 < n_tokens ? at + 3 : n_tokens;
            }
        }
        own_mask mask =
            i % 8 == 7 ? made_intervals(first, end, n_tokens, n_tokens) : made_mask(&mask_desc);
        exchange_desc.masks = &mask;
        for (int64_t q = 0; q < n_tokens; q++) made_mask_keys(&mask, q, &first[q], &end[q]);
        for (int32_t r = 0; r < RING; r++) {
            if (r == rank) continue;
            needed[0] += rows_needed(&desc.sharding, first, end, rank, r);
            needed[1] += rows_needed(&desc.sharding, first, end, r, rank);
        }
        int64_t sent[2] = {0, 0};
        own_exchange* exchange = exchange_of(attention, &exchange_desc);
        count_rows(exchange, sent, NULL);
        IN_CASE("case %d", i);
        CHECK_IS(exchange->last_step, <, RING);
        for (int k = 0; k < 2; k++) CHECK_IS(sent[k], ==, needed[k]);
    }
}

/* Each row crosses to each node that reads it once, and so do its gradients; within nodes a row
 * goes once to each rank that reads it.  Any mask, of trees, too. */
TEST(rows_cross_to_a_node_once) {
    for (int i = 0; i < 12; i++) {
        const int32_t n = 2 + i % 3, n_nodes = 2 + i / 3 % 3;
        attention_case c = case_of(n * n_nodes, 1, memo_test_int(60, 300), 1, 1, 4);
        memo_sharding sharding;
        int64_t sent[2] = {0, 0}, crossed[2] = {0, 0}, expected[2] = {0, 0};
        int32_t holders[600];
        c.sharding = (memo_sharding_kind)(i % 3);
        c.window = i % 2 ? memo_test_int(1, 80) : 0;
        if (c.sharding == MEMO_SHARDING_DOCUMENTS) random_documents(&c, 6);
        if (c.n_documents && !c.window) random_tree(&c);
        CHECK_OK(sharding_of_case(&c, &sharding, &error));
        find_holders(&sharding, holders);
        for (int64_t key = 0; key < c.n_tokens; key++)
            for (int32_t node = 0; node < n_nodes; node++) {
                int32_t n_readers = 0; /* but for the rank at the owner's place */
                int32_t is_read = 0;
                for (int32_t r = node * n; r < (node + 1) * n; r++) {
                    const int reads = is_read_by(&c, holders, r, key);
                    n_readers += reads && r % n != holders[key] % n;
                    is_read |= reads;
                }
                expected[0] += n_readers;
                expected[1] += is_read && holders[key] / n != node;
            }
        for (int32_t rank = 0; rank < c.ring; rank++) {
            own_recorder* recorder = new_recorder((memo_recorder_desc){.on_paper = 1});
            memo_sp_attention_desc desc = {.n_q_heads = 1, .n_kv_heads = 1, .head_size = 4};
            ring_paper paper;
            memo_comm ring = ring_paper_comm(&paper, rank, c.ring);
            memo_comm nodes = ring_paper_comm(&paper, rank / n, n_nodes);
            own_mask mask = mask_of_case(&c);
            memo_exchange_desc exchange_desc = {.masks = &mask};
            desc.sharding = sharding;
            desc.nodes = &nodes;
            desc.has_levels = c.has_tree;
            own_attention* attention = attention_on_paper(&desc, recorder, &ring);
            own_exchange* exchange = exchange_of(attention, &exchange_desc);
            count_rows(exchange, sent, crossed);
        }
        IN_CASE("case %d", i);
        for (int k = 0; k < 2; k++) {
            CHECK_IS(sent[k], ==, expected[0]);
            CHECK_IS(crossed[k], ==, expected[1]);
        }
    }
}

/* Of more ranges than there is room for, the narrowest gaps are read, too. */
TEST(only_narrow_gaps_travel) {
    for (int i = 0; i < 200; i++) {
        const int32_t most = (int32_t)memo_test_int(4, 8);
        int64_t gaps[40], at = 0, n = memo_test_int(1, 40), n_rows = 0, n_extra = 0, k, j;
        memoi_exchange_pieces p = {.n = 0};
        for (k = 0; k < n; k++) {
            const int64_t begin = at + (gaps[k] = memo_test_int(0, 30)), end = begin + 1 + i % 5;
            memoi_exchange_add_rows(&p, most, begin, end);
            if (i % 2) memoi_exchange_add_rows(&p, most, begin, end); /* again changes nothing */
            n_rows += end - begin;
            at = end;
        }
        for (k = 1; k < n; k++) { /* all gaps but the widest */
            int64_t n_wider = 0;
            for (j = 1; j < n; j++) n_wider += gaps[j] > gaps[k] || (gaps[j] == gaps[k] && j < k);
            if (n_wider >= most - 1) n_extra += gaps[k];
        }
        IN_CASE("case %d", i);
        CHECK_IS(p.n, <=, most);
        CHECK_IS(p.n_rows, ==, n_rows + n_extra);
        for (k = 0; k < p.n; k++) n_rows -= p.rows[k].end - p.rows[k].begin;
        CHECK_IS(n_rows + n_extra, ==, 0);
    }
    for (int i = 0; i < 4; i++) { /* more ranges of 64 sequences than one kernel packs */
        attention_case c = case_of(2 + i % 3, 1, 120, 1, 1, 4);
        c.n_batch = 64;
        c.sharding = MEMO_SHARDING_DOCUMENTS;
        c.window = i % 2 ? 5 : 0;
        random_documents(&c, MAX_DOCUMENTS);
        expect_exact(&c);
    }
}

/* Steps that leave room for the next one wait for the one before the last at the latest; each waits
 * for the latest step whose rows lay in its room, found row by row. */
TEST(steps_wait_only_for_room) {
    for (int i = 0; i < 300; i++) {
        const int64_t each = memo_test_int(1, 40), n_rows = (1 + i % 2) * ((each + 7) / 8 * 8);
        const int32_t n = (int32_t)memo_test_int(2, 40);
        int64_t sizes[40];
        int32_t users[80] = {0};
        memoi_exchange_room rooms[40];
        memoi_pool_stretch stretches[100];
        memoi_pool pool = {.stretches = stretches};
        for (int32_t s = 1; s < n; s++) sizes[s] = memo_test_int(0, 3) ? memo_test_int(0, each) : 0;
        if (i % 3 == 0)
            for (int32_t s = 1; s < n; s++) sizes[s] = each;
        memoi_pool_lay(&pool, n_rows, sizes, n, rooms);
        IN_CASE("case %d", i);
        for (int32_t s = 1; s < n; s++) {
            int32_t latest = 0;
            CHECK(rooms[s].row % 8 == 0 && rooms[s].row + sizes[s] <= n_rows);
            for (int64_t row = rooms[s].row; row < rooms[s].row + sizes[s]; row++) {
                latest = users[row] > latest ? users[row] : latest;
                users[row] = s;
            }
            CHECK_IS(rooms[s].after, ==, latest);
            if (i % 2) CHECK_IS(rooms[s].after, <=, (s > 2 ? s - 2 : 0));
        }
    }
}

/* Documents of log-normal lengths, and one sequence: on average a pass over free links takes little
 * longer than the mean of the ranks' computation.  With two buffers of fixed place it takes 1.2. */
TEST(documents_do_not_run_in_lockstep) {
    static const double sigmas[] = {0.5, 1, 1.5, 0};
    double sum = 0;
    int n_passes = 0;
    for (int i = 0; i < (IS_SLOW ? 8 : 24); i++)
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            const int32_t ring = i / 4 % 2 ? 16 : 8;
            const int64_t n_tokens = 512 * ring;
            int64_t begins[512] = {0}, n = 0;
            memo_sharding_desc sharding = {.kind = MEMO_SHARDING_DOCUMENTS, .ring = ring};
            memo_sp_attention_desc desc =
                desc_of(MEMO_SHARDING_ZIGZAG, ring, 1, n_tokens, 1, 1, 16, MEMO_TYPE_F32);
            memo_mask_desc mask_desc = {.n_tokens = n_tokens};
            ring_costs costs = {.forward_s_per_score = 1, .backward_s_per_score = 1};
            own_times* simulation = NULL;
            while (begins[n] < n_tokens && n < 511) {
                const double length =
                    (double)n_tokens / (4 * ring) * exp(sigmas[i % 4] * (test_normal() - 0.5));
                begins[n + 1] = begins[n] + 1 + (int64_t)length;
                n++;
            }
            begins[n] = n_tokens;
            sharding.n_tokens = n_tokens;
            sharding.document_begins = mask_desc.document_begins = begins;
            sharding.n_documents = mask_desc.n_documents = n;
            if (sigmas[i % 4] > 0)
                CHECK_OK(keep_sharding(&sharding, &desc.sharding, &error));
            else
                mask_desc.document_begins = NULL;
            own_mask mask = made_mask(&mask_desc);
            const double pairs = count_pairs_of(mask.segments, mask.n_segments);
            own_schedule* schedule = schedule_of(&desc, &mask, is_backward, &costs, &simulation);
            sum += simulation->makespan_s / (pairs / ring);
            n_passes++;
        }
    printf("# %.3f of the mean computation\n", sum / n_passes);
    CHECK_IS(sum / n_passes, <=, 1.06);
}

/* Buffers that the last steps of a group used wait for them in the next group, also on a rank whose
 * first steps there see nothing. */
TEST(groups_of_rings_have_no_race) {
    attention_case c = case_of(8, 2, 102, 4, 4, 8);
    c.ulysses_groups = 2;
    for (int32_t rank = 0; rank < 16; rank++) expect_recorded(&c, rank, 1, 2e-6, 5e-6);
}

static int32_t largest_group;
static memo_status count_messages(MEMO_UNUSED memo_comm* comm, MEMO_UNUSED memo_stream stream,
                                  MEMO_UNUSED const memo_message_call* calls, int32_t n,
                                  MEMO_UNUSED memo_error* e) {
    if (n > largest_group) largest_group = n;
    return MEMO_STATUS_OK;
}

/* Queries of both ranks see 64 keys of the other rank, far apart, so no number of pieces is enough. */
TEST(groups_of_a_ring_have_at_most_256_messages) {
    enum { N = 2048, HALF = N / 2, KEYS = 64, APART = HALF / KEYS };
    memo_segment segments[2 * KEYS];
    for (int64_t i = 0; i < 2 * KEYS; i++) {
        const int64_t q = i < KEYS ? i : HALF + i - KEYS, k = (i * APART + HALF) % N;
        const memo_segment one = {q, q + 1, k, k + 1, MEMO_SEGMENT_FULL, i >= KEYS};
        segments[i] = one;
    }
    const memo_mask mask = {segments, 2 * KEYS};
    const memo_exchange_desc exchange_desc = {.masks = &mask};
    for (int32_t n_batch = 1; n_batch <= 63; n_batch += n_batch < 5 ? 1 : 29) {
        memo_sp_attention_desc desc = desc_of(MEMO_SHARDING_PLAIN, 2, 1, N, 1, 1, 1, MEMO_TYPE_F32);
        ring_paper paper;
        memo_comm ring = ring_paper_comm(&paper, 0, 2);
        host_attention state;
        own_device* device = open_device(&desc.stream, &state, &desc.attention);
        own_memory float* rows = (float*)calloc((size_t)n_batch * N, 9 * sizeof *rows);
        char* share[N_TENSORS];
        for (int t = 0; t < N_TENSORS; t++) share[t] = (char*)(rows + t * n_batch * N);
        const memo_sp_attention_tensors t = tensors_of(share, rows + 8 * n_batch * N, NULL);
        ring.messages = count_messages;
        largest_group = 0;
        desc.device = device;
        desc.ring = &ring;
        desc.n_batch = n_batch;
        desc.has_levels = 1;
        own_attention* attention = attention_of(&desc);
        memo_exchange* exchange = exchange_of(attention, &exchange_desc);
        CHECK_OK(memo_sp_attention_forward(attention, exchange, &t, &error));
        CHECK_OK(memo_sp_attention_backward(attention, exchange, &t, &error));
        CHECK_OK(memo_stream_synchronize(device, desc.stream, &error));
        CHECK_CASE(largest_group <= 256 && largest_group > 110, "%d messages in a batch of %d",
                   (int)largest_group, (int)n_batch);
        memo_exchange_destroy(exchange);
    }
}

/* One object, a batch of two sequences after another; one rank of a ring of one, with its own
 * reference. */
TEST(documents_may_change_from_batch_to_batch) {
    static const int64_t begins[][4] = {{0, 5, 30, 40}, {0, 1, 20, 40}, {0, 39, 39, 40}};
    memo_sp_attention_desc desc = {0};
    memo_sp_attention* attention = NULL;
    host_attention state;
    own_device* device = open_device(&desc.stream, &state, &desc.attention);
    memo_sharding sharding, other;
    memo_exchange* none;
    long long n_mallocs;
    float lse[2 * 40 * 2];
    memo_sharding_desc sharding_desc = {.kind = MEMO_SHARDING_DOCUMENTS,
                                        .n_tokens = 40,
                                        .document_begins = begins[0],
                                        .n_documents = 1};
    memo_exchange_desc exchange_desc = {.sharding = &other};
    CHECK_FAILS(memo_sharding_make(&sharding_desc, &sharding, &error), INVALID_ARGUMENT);
    sharding_desc.n_documents = 3;
    CHECK_OK(keep_sharding(&sharding_desc, &sharding, &error));
    desc.device = device;
    desc.sharding = sharding;
    desc.n_batch = 2;
    desc.n_q_heads = desc.n_kv_heads = 2;
    desc.head_size = 4;
    CHECK_OK(memo_sp_attention_create(&desc, &attention, &error));
    for (int k = 0; k < 3; k++) {
        attention_case c =
            CASE(1, 1, 40, 2, 2, 4, .sharding = MEMO_SHARDING_DOCUMENTS, .n_batch = 2);
        own_whole w;
        set_documents(&c, begins[k], 3);
        whole_create(&w, &c);
        reference_run(&c, &w);
        CHECK_OK(sharding_of_case(&c, &other, &error));
        own_exchange* exchange = exchange_of(attention, &exchange_desc);
        n_mallocs = malloc_count;
        memo_sp_attention_tensors tensors = tensors_of(w.typed, lse, NULL); /* in their order */
        CHECK_OK(memo_sp_attention_forward(attention, exchange, &tensors, &error));
        CHECK_IS(malloc_count, ==, n_mallocs);
        CHECK_OK(memo_stream_synchronize(device, desc.stream, &error));
        CHECK_IS(error_of(&c, &w, OUT), <, 2e-6);
    }
    other = sharding;
    WITH(other.n_documents, 2,
         CHECK_FAILS(memo_exchange_create(attention, &exchange_desc, &none, &error),
                     INVALID_ARGUMENT)); /* the last of them ends before the sequence */
    other.n_tokens = 39;
    CHECK_FAILS(memo_exchange_create(attention, &exchange_desc, &none, &error), INVALID_ARGUMENT);
    CHECK(!none);
    memo_sp_attention_destroy(attention);
}

/* Exchanges end while the stream has not begun them; what it reads of them, on the host and on the
 * device, stays.  Behind it, others take what they had. */
TEST(exchanges_end_while_their_stream_runs) {
    enum { N = 5 };
    attention_case c[N];
    whole w[N];
    float lse[40 * 2];
    memo_sp_attention_desc desc = desc_of(MEMO_SHARDING_ZIGZAG, 1, 1, 40, 2, 2, 4, MEMO_TYPE_F32);
    held_stream held = {0, 0}, *args = &held;
    host_attention state;
    own_device* device = open_device(&desc.stream, &state, &desc.attention);
    desc.device = device;
    desc.attention.forward = launched_forward;
    desc.attention.launches = MEMO_LAUNCHES_VARLEN;
    own_attention* attention = attention_of(&desc);
    for (int round = 0; round < 2; round++) {
        held.is_released = 0;
        CHECK_OK(
            memo_host_device_launch(device, desc.stream, hold_stream, &args, sizeof args, &error));
        for (int k = 0; k < N; k++) {
            memo_mask_desc mask_desc = {.n_tokens = 40};
            c[k] = case_of(1, 1, 40, 2, 2, 4);
            random_documents(&c[k], 12);
            whole_create(&w[k], &c[k]);
            reference_run(&c[k], &w[k]);
            mask_desc.document_begins = c[k].document_begins;
            mask_desc.n_documents = c[k].n_documents;
            own_mask mask = made_mask(&mask_desc);
            const memo_exchange_desc exchange_desc = {.masks = &mask};
            memo_sp_attention_tensors t = tensors_of(w[k].typed, lse, NULL);
            memo_exchange* exchange = exchange_of(attention, &exchange_desc);
            CHECK_OK(memo_sp_attention_forward(attention, exchange, &t, &error));
            memo_exchange_destroy(exchange);
            CHECK_ERROR(memo_sp_attention_forward(attention, exchange, &t, &error), INVALID_STATE,
                        "exchange: destroyed");
            memo_exchange_destroy(exchange); /* again, which nothing has taken yet */
        }
        __atomic_store_n(&held.is_released, 1, __ATOMIC_RELEASE);
        CHECK_OK(memo_stream_synchronize(device, desc.stream, &error));
        CHECK(!held.is_late);
        for (int k = 0; k < N; k++) {
            CHECK_IS(error_of(&c[k], &w[k], OUT), <, 2e-6);
            whole_destroy(&w[k]);
        }
    }
}

/* Equal documents stay whole, so no byte travels, and all results have the bits of one rank. */
TEST(documents_on_one_rank_have_its_bits) {
    static const int64_t begins[] = {0, 24, 48, 72, 96, 120, 144, 168, 192};
    attention_case c =
        CASE(4, 1, 192, 4, 2, 16, .sharding = MEMO_SHARDING_DOCUMENTS, .type = MEMO_TYPE_BF16);
    char* results[N_TENSORS] = {NULL};
    own_whole w;
    world all;
    set_documents(&c, begins, 8);
    whole_create(&w, &c);
    for (c.ring = 4; c.ring >= 1; c.ring -= 3) {
        world_init(&all, &c, &w);
        CHECK(world_run(&all));
        for (int32_t r = 0; r < c.ring; r++) expect_bytes(&all.results[r], 0, 0, 0, 0);
        for (int t = OUT; t < N_TENSORS; t++) {
            const size_t n_bytes = (size_t)w.n[t] * (size_t)memo_type_bytes(c.type);
            if (t == D_OUT) continue;
            if (c.ring == 4)
                results[t] = (char*)memcpy(malloc(n_bytes), w.typed[t], n_bytes);
            else
                CHECK_CASE(!memcmp(results[t], w.typed[t], n_bytes), "%s", tensor_names[t]);
        }
    }
    for (int t = 0; t < N_TENSORS; t++) free(results[t]);
}

/* 65536 tokens over a ring of 8, a window of 128: rows of keys and values, and of their gradients
 * in fp32 counted twice, that the busiest rank sends.  A run's last 127
 * rows go to its successor: in zigzag those of a rank's two runs are one and seven steps away. */
TEST(a_window_sends_the_ends_of_runs) {
    for (int is_plain = 0; is_plain < 2; is_plain++)
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            memo_sp_attention_desc desc =
                desc_of(is_plain ? MEMO_SHARDING_PLAIN : MEMO_SHARDING_ZIGZAG, 8, 1, 65536, 8, 1,
                        64, MEMO_TYPE_BF16);
            int64_t n_rows = 0, rows_of[64] = {0}; /* by streams */
            int64_t expected = (is_plain ? 1 : 2) * (127 + is_backward * 2 * 127);
            const memo_mask_desc mask_desc = {.window_before = 128, .n_tokens = 65536};
            own_mask mask = made_mask(&mask_desc);
            own_schedule* schedule = schedule_of(&desc, &mask, is_backward, NULL, NULL);
            for (int64_t op = 0; op < schedule->n_ops; op++)
                if (strstr(memo_schedule_op_name(schedule, op), "ring exchange"))
                    rows_of[schedule->ops[op].stream] +=
                        schedule->ops[op].link_bytes / (2 * 64 * 2);
            for (int i = 0; i < 64; i++) n_rows = rows_of[i] > n_rows ? rows_of[i] : n_rows;
            printf("# %s, ring 8, 65536 tokens, window 128, %s: %d rows\n",
                   sharding_names[desc.sharding.kind], is_backward ? "backward" : "forward",
                   (int)n_rows);
            CHECK_IS(n_rows, ==, expected);
        }
}

/* Key heads that a rank needs, counted one by one. */
static int64_t kv_needed(const attention_case* c, int32_t rank) {
    int64_t n = 0;
    int32_t group = c->n_q_heads / c->n_kv_heads;
    for (int32_t k = 0; k < c->n_kv_heads; k++)
        for (int32_t h = c->n_q_heads * rank / c->ulysses;
             h < c->n_q_heads * (rank + 1) / c->ulysses; h++)
            if (h / group == k) {
                n++;
                break;
            }
    return n;
}

/* Rows of a zigzag ring rank's keys without padding. */
static int64_t rows_with_tokens(const attention_case* c, int32_t rank, int64_t n_padded) {
    const int64_t chunk = n_padded / (2 * c->ring);
    int64_t n = 0;
    for (int64_t key = 0; key < keys_of(c); key++)
        n += key / chunk == rank || key / chunk == 2 * c->ring - 1 - rank;
    return n;
}

/* The bytes that each rank sends follow from the heads that each rank needs, with key heads that
 * are split, replicated or cross the borders of ranks, and keys of another length. */
TEST(bytes_follow_the_heads_that_ranks_need) {
    static const int32_t cases[][4] = {/* ring, ulysses, query heads, key heads */
                                       {1, 4, 8, 2},  {1, 4, 6, 2},  {2, 4, 6, 2}, {2, 4, 8, 2},
                                       {4, 3, 12, 4}, {2, 2, 4, 1},  {2, 8, 8, 2}, {2, 4, 6, 6},
                                       {3, 3, 5, 1},  {2, 5, 12, 3}, {1, 8, 2, 1}, {4, 4, 4, 4},
                                       {1, 1, 8, 4},  {4, 1, 8, 4},  {1, 4, 8, 4}, {3, 2, 8, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += 1 + (size_t)IS_SLOW)
        for (int type = 0; type < 3; type++)
            for (int k = 0; k < 4; k++) { /* sends again, cross-attention */
                attention_case c = CASE(cases[i][0], cases[i][1], 47, cases[i][2], cases[i][3], 4,
                                        .sends_again = k % 2, .n_batch = 1 + type % 2,
                                        .v_head_size = i % 2 ? 6 : 0, .mask = MEMO_MASK_FULL);
                int64_t element = type ? 2 : 4, all_kv = 0, padded[2] = {47, 47}, both;
                int32_t rd = c.ring, ud = c.ulysses;
                world all;
                c.type = type == 0 ? MEMO_TYPE_F32 : type == 1 ? MEMO_TYPE_BF16 : MEMO_TYPE_F16;
                if (k / 2) c.n_keys = padded[1] = 95;
                both = c.head_size + (c.v_head_size ? c.v_head_size : c.head_size);
                for (int32_t r = 0; r < ud; r++) all_kv += kv_needed(&c, r);
                for (int32_t r = 0; r < 2; r++) /* zigzag */
                    while (padded[r] % (2 * rd) || padded[r] % (rd * ud)) padded[r]++;
                world_of(&c, &all);
                for (int32_t r = 0; r < rd * ud; r++) {
                    const run_result* x = &all.results[r];
                    int32_t u = x->ulysses_rank;
                    int64_t n_q = c.n_q_heads * (u + 1) / ud - c.n_q_heads * u / ud;
                    int64_t n_kv = kv_needed(&c, u);
                    int64_t n = c.n_batch * (padded[0] / (rd * ud)); /* local rows of queries */
                    int64_t m = c.n_batch * (padded[1] / (rd * ud)); /* of keys */
                    int64_t to_heads = ((c.n_q_heads - n_q) * 4 * n + (all_kv - n_kv) * both * m) *
                                       element; /* of ranks */
                    int64_t out = n_q * (ud - 1) * (both - 4) * n * element;
                    int64_t d_out = (c.n_q_heads - n_q) * (both - 4) * n * element;
                    int64_t dots = (c.n_q_heads - n_q) * n * 4;
                    int64_t d_q = n_q * (ud - 1) * 4 * n * element;
                    int64_t d_kv = n_kv * (ud - 1) * both * m *
                                   (all_kv > c.n_kv_heads ? 4 : element); /* of replicas fp32 */
                    int64_t backward = d_out + dots + d_q + d_kv + (c.sends_again ? to_heads : 0);
                    /* Of the keys' rows; padding stays. */
                    int64_t own = c.n_batch * rows_with_tokens(&c, x->ring_rank, padded[1]);
                    int64_t others = c.n_batch * keys_of(&c) - own;
                    int64_t ring = n_kv * both * own * (rd - 1) * element;
                    int64_t carried = n_kv * both * others * 4;
                    expect_bytes(x, to_heads + out, backward, ring, ring + carried);
                }
            }
}

/* Eight ranks add to the gradients of one key head.  Rounded to bf16 before or while they are
 * summed, the error would be 1.4 times as large or more. */
TEST(gradients_of_replicas_are_summed_in_fp32) {
    static const int32_t degrees[][2] = {{1, 8}, {2, 8}, {2, 4}};
    attention_case c = case_of(1, 1, IS_SLOW ? 64 : 256, 8, 1, 32);
    c.type = MEMO_TYPE_BF16;
    expect_no_worse(c, degrees, 3, 1.02, 0);
}

/* Of the operations whose names contain this. */
static int64_t link_bytes_of(const memo_sp_attention_desc* desc, int is_backward,
                             const char* name) {
    own_schedule* schedule = schedule_of(desc, NULL, is_backward, NULL, NULL);
    int64_t n_bytes = 0;
    for (int64_t i = 0; i < schedule->n_ops; i++)
        if (strstr(memo_schedule_op_name(schedule, i), name))
            n_bytes += schedule->ops[i].link_bytes;
    return n_bytes;
}

/* Activations sent by Ulysses over parameters sent by ZeRO, 12 h^2 of a block (unified SP paper,
 * Table 2). */
TEST(the_paper_s_table_2) {
    static const int64_t lengths[] = {8192, 32768, 65536};
    static const double ratios[] = {1.33, 5.33, 10.67};
    for (int i = 0; i < 3; i++) {
        memo_sp_attention_desc desc =
            desc_of(MEMO_SHARDING_ZIGZAG, 1, 8, lengths[i], 32, 32, 128, MEMO_TYPE_BF16);
        /* All ranks; the paper takes (n - 1) / n for 1. */
        double sent =
            (double)(link_bytes_of(&desc, 0, " to ") + link_bytes_of(&desc, 1, " to ")) * 8 * 8 / 7;
        double ratio = sent / (12.0 * 4096 * 4096 * 2);
        CHECK_CASE(fabs(ratio / ratios[i] - 1) < 0.005, "%g instead of %g", ratio, ratios[i]);
    }
}

/* Every rank of a ring of 5, of which most skip steps. */
TEST(ranks_that_skip_steps_have_no_race) {
    for (int i = 0; i < 3 * 5; i++) {
        attention_case c = CASE(5, 1, 60, 1, 1, 4, .window = i < 5 ? 0 : 20,
                                .sharding = i < 10 ? MEMO_SHARDING_PLAIN : MEMO_SHARDING_ZIGZAG);
        for (int n_repeats = 2; n_repeats; n_repeats--) {
            c.overwrites = n_repeats == 1; /* a second forward would need the keys */
            expect_recorded(&c, i % 5, n_repeats, 4e-3, 6e-3);
        }
    }
}

/* Gradients over the keys, with and without hops: two documents of half the tokens need none. */
TEST(keys_may_be_overwritten) {
    for (int i = 0; i < 16; i++) {
        attention_case c = CASE(1 + i % 2, 2 - i % 2, 40, 4, 2, 8, .document_begins = {0, 20, 40},
                                .n_documents = i / 2 % 2 ? 2 : 0, .rounds_gradients = i / 8,
                                .type = i / 4 % 2 ? MEMO_TYPE_BF16 : MEMO_TYPE_F32,
                                .sharding = MEMO_SHARDING_PLAIN, .overwrites = 1);
        expect_recorded(&c, 1, 1, 4e-3, 1e-2);
    }
}

/* Else the trainer's next call would be compared as a step of the ring. */
TEST(a_pass_that_fails_leaves_no_label) {
    static float tensor[100 * 16];
    own_recorder* recorder = new_recorder((memo_recorder_desc){.on_paper = 1});
    memo_sp_attention_desc desc = desc_of(MEMO_SHARDING_ZIGZAG, 3, 1, 300, 1, 1, 16, MEMO_TYPE_F32);
    memo_exchange_desc causal = {0};
    ring_paper paper;
    memo_comm ring = ring_paper_comm(&paper, 0, 3);
    own_attention* attention = attention_on_paper(&desc, recorder, &ring);
    memo_sp_attention_tensors t = {
        .q = tensor, .k = tensor, .v = tensor, .out = tensor, .lse = tensor};
    own_exchange* exchange = exchange_of(attention, &causal);
    CHECK_IS(memo_sp_attention_forward(attention, exchange, &t, &error), ==,
             MEMO_STATUS_UNSUPPORTED);
    CHECK(!ring.label.text && !ring.label.fields && !ring.label.is_first);
}

/* The same saved bytes, and the scratch memory of a group instead of all heads. */
TEST(groups_need_less_memory) {
    static const int32_t groups[] = {1, 2, 4, 8};
    int64_t device_bytes[2][4];
    for (int again = 0; again < 2; again++)
        for (int i = 0; i < 4; i++) {
            memo_sp_attention_desc desc =
                desc_of(MEMO_SHARDING_ZIGZAG, 2, 4, 1 << 20, 32, 32, 128, MEMO_TYPE_BF16);
            desc.sends_again = again;
            memo_sp_attention_sizes all = sizes_of(&desc);
            desc.ulysses_groups = groups[i];
            memo_sp_attention_sizes sizes = sizes_of(&desc);
            CHECK_IS(sizes.saved_bytes, ==, all.saved_bytes);
            CHECK_IS(sizes.lse_bytes, ==, all.lse_bytes);
            device_bytes[again][i] = sizes.device_bytes;
            printf(
                "# 2^20 tokens, ring 2 ulysses 4, 32 heads of 128, bf16%s, %d groups: %.2f GiB\n",
                again ? ", sends again" : "", groups[i], (double)sizes.device_bytes / (1 << 30));
        }
    for (int again = 0; again < 2; again++) {
        /* Two groups keep d_out, row dots and resent tensors twice, and results once more. */
        CHECK(device_bytes[again][1] < device_bytes[again][0]);
        CHECK(100 * device_bytes[again][2] < 52 * device_bytes[again][1]);
        CHECK(100 * device_bytes[again][3] < 52 * device_bytes[again][2]);
        CHECK(100 * device_bytes[again][3] < 25 * device_bytes[again][0]);
    }
}

/* Groups must be equal; the error names the most that are, below what was asked for. */
TEST(uneven_groups_are_refused) {
    static const int32_t cases[][4] = {/* query heads, ulysses, groups, what works */
                                       {32, 8, 3, 2},  {32, 3, 2, 1}, {6, 4, 2, 1},
                                       {16, 2, 16, 8}, {24, 2, 5, 4}, {12, 4, INT32_MAX, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memo_sp_attention_sizes sizes;
        char works[20];
        memo_sp_attention_desc desc = desc_of(MEMO_SHARDING_ZIGZAG, 1, cases[i][1], 1 << 20,
                                              cases[i][0], cases[i][0], 128, MEMO_TYPE_BF16);
        desc.ulysses_groups = cases[i][2];
        snprintf(works, sizeof works, "; %d would work", (int)cases[i][3]);
        CHECK_ERROR(memo_sp_attention_desc_get_sizes(&desc, &sizes, &error), INVALID_ARGUMENT,
                    works);
        CHECK_TEXT(error.message, "memo_sp_attention_desc.ulysses_groups");
        desc.ulysses_groups = cases[i][3];
        CHECK_OK(memo_sp_attention_desc_get_sizes(&desc, &sizes, &error));
        desc.sharding =
            desc_of(MEMO_SHARDING_ZIGZAG, 1, 1, 1 << 20, 1, 1, 1, MEMO_TYPE_F32).sharding;
        desc.ulysses_groups = cases[i][2]; /* not used */
        CHECK_OK(memo_sp_attention_desc_get_sizes(&desc, &sizes, &error));
    }
}

/* Makespan of forward with G equal groups, from the times alone: arrivals and departures take turns
 * on one stream. */
static double grouped_s(int n_groups, double arrive_s, double compute_s, double leave_s) {
    double exchange_s = arrive_s, arrived_s = arrive_s, computed_s = 0, left_s = 0;
    for (int g = 0; g < n_groups; g++) {
        double this_arrived_s = arrived_s;
        if (g + 1 < n_groups) arrived_s = exchange_s = exchange_s + arrive_s;
        computed_s = fmax(computed_s, this_arrived_s) + compute_s;
        if (computed_s < left_s) computed_s = left_s; /* its results need their buffer */
        left_s = exchange_s = fmax(exchange_s, computed_s) + leave_s;
    }
    return left_s;
}

TEST(groups_hide_the_exchange) {
    static const double ratios[] = {0.1, 0.5, 1, 3}; /* all exchanges over all computation */
    for (int k = 0; k < 4; k++)
        for (int n_groups = 1; n_groups <= 8; n_groups *= 2) {
            memo_sp_attention_desc desc =
                desc_of(MEMO_SHARDING_ZIGZAG, 1, 4, 1024, 32, 32, 64, MEMO_TYPE_F32);
            own_times* simulation = NULL;
            double compute_s = 8 * 1024 * 1025.0 / 2 * 1e-9, expected_s, exposed_s;
            desc.ulysses_groups = n_groups;
            ring_costs costs = {.forward_s_per_score = 1e-9,
                                .ulysses_bytes_per_s = (double)link_bytes_of(&desc, 0, " to ") /
                                                       (ratios[k] * compute_s)};
            own_schedule* schedule = schedule_of(&desc, NULL, 0, &costs, &simulation);
            expected_s = grouped_s(n_groups, 0.75 * ratios[k] * compute_s / n_groups,
                                   compute_s / n_groups, 0.25 * ratios[k] * compute_s / n_groups);
            IN_CASE("ratio %g, %d groups", ratios[k], n_groups);
            CHECK_IS(fabs(simulation->makespan_s / expected_s - 1), <, 1e-6);
            /* What is not hidden: the first arrival and the last departure, if links are fast. */
            exposed_s = simulation->makespan_s - compute_s;
            if (ratios[k] <= 0.5)
                CHECK_IS(fabs(exposed_s / (ratios[k] * compute_s / n_groups) - 1), <, 1e-6);
        }
}

/* Repeated calls give the same, and ask nobody for memory. */
TEST(nothing_is_allocated_once_created) {
    attention_case other = CASE(3, 2, 41, 4, 1, 16, .window = 5);
    attention_case c = CASE(3, 2, 41, 4, 1, 16, .ulysses_groups = 2, .has_sinks = 1);
    world all;
    for (int32_t has_others = 0; has_others < 2; has_others++) {
        c.n_batch = 1 + has_others;
        c.others = has_others ? &other : NULL;
        world_init(&all, &c, NULL);
        all.n_repeats = 5;
        expect_right(&c, 2e-6, 5e-6, &all);
        for (int32_t r = 0; r < 6; r++) CHECK_IS(all.results[r].n_mallocs, ==, 0);
    }
}

TEST(memory_does_not_grow_with_the_ring) {
    int64_t n_bytes[3];
    for (int i = 0; i < 3; i++) {
        int32_t ring = 2 << i;
        memo_sp_attention_desc desc =
            desc_of(MEMO_SHARDING_ZIGZAG, ring, 2, 1024 * ring, 8, 2, 64, MEMO_TYPE_BF16);
        memo_sp_attention_sizes sizes = sizes_of(&desc);
        n_bytes[i] = sizes.device_bytes + sizes.saved_bytes + sizes.lse_bytes;
    }
    CHECK(n_bytes[0] > 0 && n_bytes[0] == n_bytes[1] && n_bytes[1] == n_bytes[2]);
    /* Device memory matches the promised sizes, and does not grow. */
    for (int i = 0; i < 3; i++) {
        attention_case c = case_of(2 << i, 1, 16 << i, 2, 1, 8);
        world all;
        world_of(&c, &all);
        for (int32_t r = 0; r < c.ring; r++) {
            CHECK_IS(all.results[r].device_bytes, ==, all.results[0].sizes.device_bytes);
            if (i == 0 && r == 0) n_bytes[0] = all.results[r].device_bytes;
            CHECK_IS(all.results[r].device_bytes, ==, n_bytes[0]);
        }
    }
}

/* On one rank, in fp32: the local attention and nothing else; 16-bit types need a cast of the
 * output. */
TEST(degree_1_costs_nothing) {
    for (int type = 0; type < 2; type++)
        for (int is_backward = 0; is_backward < 2; is_backward++) {
            memo_sp_attention_desc desc = desc_of(MEMO_SHARDING_ZIGZAG, 1, 1, 1024, 8, 8, 64,
                                                  type ? MEMO_TYPE_BF16 : MEMO_TYPE_F32);
            memo_sp_attention_sizes sizes = sizes_of(&desc);
            CHECK_IS(sizes.saved_bytes, ==, 0);
            if (!type) CHECK_IS(sizes.device_bytes, ==, 1024 * 8 * 4); /* row dots */
            own_schedule* schedule = schedule_of(&desc, NULL, is_backward, NULL, NULL);
            /* Backward: row dots, three fills, attention. */
            CHECK_IS(schedule->n_ops, ==, (is_backward ? 5 + 3 * type : 1 + type));
            CHECK_IS(schedule->n_streams, ==, 1);
        }
}

/* Ulysses copies every element once, on the side that is ordered by rows, and nothing if whole rows
 * are exchanged.  Heads by rank, of one batch. */
TEST(ulysses_copies_one_side_only) {
    static const int32_t heads[][3] = {/* query heads, key heads, ulysses */
                                       {8, 8, 4}, {8, 4, 4}, {8, 2, 4}, {8, 1, 4},
                                       {6, 2, 4}, {6, 6, 2}, {7, 7, 3}, {12, 3, 8}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        for (int k = 0; k < 8; k++) { /* backward, a ring, sent again */
            memo_sp_attention_desc desc =
                desc_of(MEMO_SHARDING_ZIGZAG, k / 2 % 2 ? 2 : 1, heads[i][2], 64, heads[i][0],
                        heads[i][1], 4, MEMO_TYPE_F32);
            attention_case c = case_of(1, heads[i][2], 64, heads[i][0], heads[i][1], 4);
            int64_t n_copies = 0, n_bytes = 0, kv_heads = 0, kv_copies = 0, q_heads, q_copies;
            int is_backward = k % 2, is_replicated, to_heads;
            desc.sends_again = k / 4;
            /* A pack for each rank that needs some of the heads, and one copy of the heads that
             * stay. */
            q_heads = c.n_q_heads;
            q_copies = c.ulysses;
            for (int32_t p = 0; p < c.ulysses; p++) {
                int is_whole = kv_needed(&c, p) == c.n_kv_heads && p; /* rank 0 is asked */
                kv_heads += is_whole ? 0 : kv_needed(&c, p);
                kv_copies += !is_whole;
            }
            is_replicated = 0;
            for (int32_t p = 0; p < c.ulysses; p++) is_replicated += (int)kv_needed(&c, p);
            is_replicated = is_replicated > c.n_kv_heads;
            to_heads = !is_backward || desc.sends_again; /* q, k, v */
            int64_t row_bytes = desc.sharding.local_tokens * 4;
            int64_t expected_copies = to_heads ? q_copies + 2 * kv_copies : 0;
            int64_t expected_bytes = to_heads ? (q_heads + 2 * kv_heads) * 4 * row_bytes : 0;
            expected_copies += q_copies * (is_backward ? 3 : 1); /* out; d_out, dots, d_q */
            expected_bytes += q_heads * row_bytes * (is_backward ? 4 + 1 + 4 : 4);
            if (is_backward && !is_replicated) { /* replicas are added, not copied */
                expected_copies += 2 * c.ulysses;
                expected_bytes += 2 * (int64_t)c.n_kv_heads * 4 * row_bytes;
            }
            own_schedule* schedule = schedule_of(&desc, NULL, is_backward, NULL, NULL);
            for (int64_t op = 0; op < schedule->n_ops; op++) /* of ring rank 0 */
                if (schedule->ops[op].stream == 0 &&
                    !strcmp(memo_schedule_op_name(schedule, op), "on device")) {
                    n_copies++;
                    n_bytes += schedule->ops[op].link_bytes;
                }
            IN_CASE("%s, backward %d", case_text(&c), is_backward);
            CHECK_IS(n_copies, ==, expected_copies);
            CHECK_IS(n_bytes, ==, expected_bytes);
        }
}

/* Each step takes the longer of computation and transfer: when the steps of 4 ranks end, from the
 * two times alone. */
TEST(the_ring_s_schedule_overlaps) {
    static const double hops[] = {0.05, 0.4, 0.75, 1, 1.7, 6}; /* in steps */
    int is_backward;
    for (size_t k = 0; k < 2 * sizeof hops / sizeof *hops; k++) {
        memo_sp_attention_desc desc =
            desc_of(MEMO_SHARDING_ZIGZAG, 4, 1, 4096, 1, 1, 64, MEMO_TYPE_F32);
        const memo_mask_desc mask_desc = {.kind = MEMO_MASK_FULL, .n_tokens = 4096};
        own_mask mask = made_mask(&mask_desc);
        own_times* simulation = NULL;
        double step_s = 1024.0 * 1024 * 1e-9, hop_s = hops[k / 2] * step_s;
        double computed_s[5] = {0}, sent_s[5];
        int64_t n_steps = 0, n_exchanges = 0;
        n_steps = is_backward = k % 2;
        ring_costs costs = {.forward_s_per_score = 1e-9, .backward_s_per_score = 2e-9};
        if (is_backward) step_s *= 2;
        costs.ring_bytes_per_s = 2 * 1024 * 64 * 4 / hop_s;
        /* Exchange s brings the keys of step s + 1; in backward it returns what step s - 1 gave,
         * and step 0, which is one segment, comes last. */
        computed_s[0] = is_backward ? 0 : step_s;
        for (int s = 0; s < 5; s++) {
            const double used_s = s > 1 ? computed_s[s - 1] : 0; /* the buffer that it fills */
            sent_s[s] = fmax(s ? sent_s[s - 1] : 0, used_s) + (s < 3 ? hop_s : 0) +
                        (is_backward && s > 1 ? hop_s : 0);
            if (s) computed_s[s] = fmax(computed_s[s - 1], sent_s[s - 1]) + step_s;
        }
        if (is_backward) computed_s[4] = fmax(computed_s[3], sent_s[3]) + step_s;
        own_schedule* schedule = schedule_of(&desc, &mask, is_backward, &costs, &simulation);
        const double end_s = is_backward ? fmax(computed_s[4], sent_s[4]) : computed_s[3];
        IN_CASE("backward %d, hop %g", is_backward, hops[k / 2]);
        CHECK_IS(fabs(simulation->makespan_s / end_s - 1), <, 1e-6);
        for (int64_t op = 0; op < schedule->n_ops; op++) { /* of rank 0 */
            const char* name = memo_schedule_op_name(schedule, op);
            const char* stream = schedule->text + schedule->streams[schedule->ops[op].stream];
            const int is_exchange = strstr(name, "ring exchange") != NULL;
            if (stream[strlen(stream) - 1] != '0' || (!is_exchange && !strstr(name, "attention")))
                continue;
            const double expected_s = is_exchange ? sent_s[n_exchanges++] : computed_s[n_steps++];
            CHECK_CASE(fabs(simulation->end_s[op] / expected_s - 1) < 1e-6,
                       "%s ends at %g s, not %g", name, simulation->end_s[op], expected_s);
        }
        CHECK_IS(n_exchanges, ==, (is_backward ? 5 : 3));
        CHECK_IS(n_steps, ==, 4 + is_backward);
    }
}

/* Contributions that leave are rounded, one of each later step; the own one stays in fp32. */
TEST(only_contributions_that_leave_are_rounded) {
    enum { RING = 4 };
    const memo_mask_desc mask_desc = {.kind = MEMO_MASK_FULL, .n_tokens = 64};
    own_mask mask = made_mask(&mask_desc);
    const ring_costs costs = {0};
    int n_casts[2] = {0};
    for (int rounds = 0; rounds < 2; rounds++) {
        memo_sp_attention_desc desc =
            desc_of(MEMO_SHARDING_ZIGZAG, RING, 1, 64, 1, 1, 16, MEMO_TYPE_BF16);
        desc.rounds_gradients = rounds;
        own_schedule* schedule = schedule_of(&desc, &mask, 1, &costs, NULL);
        for (int64_t op = 0; op < schedule->n_ops; op++)
            n_casts[rounds] += !strcmp(memo_schedule_op_name(schedule, op), "cast");
    }
    CHECK_IS(n_casts[0], >, 0); /* of results */
    CHECK_IS(n_casts[1] - n_casts[0], ==, RING * (RING - 1));
}

TEST(layers_share_the_scratch) {
    for (int i = 0; i < 4; i++) {
        attention_case c =
            CASE(i == 1 ? 1 : 3, i == 2 ? 1 : 2, 50, 4, 1 + i % 2, 16, .sends_again = i == 3);
        world all;
        world_init(&all, &c, NULL);
        all.has_two_layers = 1;
        expect_right(&c, 2e-6, 5e-6, &all);
    }
}

/* ---- latent keys ---- */

static void expect_equal_bits(const attention_case* c, const whole* a, const whole* b, int t) {
    CHECK_CASE(!memcmp(a->typed[t], b->typed[t], (size_t)(a->n[t] * memo_type_bytes(c->type))),
               "%s has other bits", tensor_names[t]);
}

/* Outputs and d_q are those of the keys that latent rows stand for, bit by bit, with
 * any number of heads at a time.  Bytes of the ring are fewer by the ratio of the rows. */
TEST(latent_keys_have_the_bits_of_their_keys) {
    static const int32_t degrees[][2] = {{1, 1}, {4, 1}, {3, 2}, {1, 4}, {8, 1}};
    for (int i = 0; i < 5 * 4; i++) {
        attention_case c = CASE(degrees[i / 4][0], degrees[i / 4][1], 70, 8, 4, 12,
                                .latent_size = 8, .latent_heads = i % 3, .v_head_size = 8,
                                .window = i % 2 ? 30 : 0,
                                .type = i % 5 ? MEMO_TYPE_F32 : MEMO_TYPE_BF16),
                       expanded;
        own_whole latent, keys;
        world all, of_keys;
        whole_create(&latent, &c);
        whole_expand(&c, &latent, &expanded, &keys);
        world_init(&all, &c, &latent);
        world_init(&of_keys, &expanded, &keys);
        CHECK(world_run(&all) && world_run(&of_keys));
        expect_equal_bits(&c, &latent, &keys, OUT);
        expect_equal_bits(&c, &latent, &keys, D_Q);
        for (int32_t r = 0; r < c.ring * c.ulysses; r++) {
            const run_result *x = &all.results[r], *y = &of_keys.results[r];
            const int64_t heads = y->sizes.heads.n_kv;
            CHECK_IS(x->sizes.heads.n_kv, ==, heads);
            CHECK_IS(x->most_latent_heads, ==,
                     (c.latent_heads && c.latent_heads < heads ? c.latent_heads : heads));
            CHECK_IS(x->ring_forward_bytes * heads * (12 + 8), ==, y->ring_forward_bytes * 8);
            CHECK_IS(x->ring_backward_bytes * heads * (12 + 8), ==, y->ring_backward_bytes * 8);
        }
    }
}

/* DeepSeek-V2's shape: 512 + 64 numbers for 128 heads of 192 and 128, 71 times as many. */
TEST(latent_keys_send_71_times_less) {
    memo_sp_attention_desc desc =
        desc_of(MEMO_SHARDING_ZIGZAG, 8, 1, 131072, 128, 128, 192, MEMO_TYPE_BF16);
    memo_sp_attention_sizes sizes[2]; /* of keys, of latent keys */
    int64_t n_bytes[2][2];
    desc.v_head_size = 128;
    for (int i = 0; i < 2; i++) {
        desc.latent.size = i ? 512 + 64 : 0;
        desc.latent.n_heads = 16;
        desc.latent.expand = desc.latent.reduce = no_latent;
        sizes[i] = sizes_of(&desc);
        for (int is_backward = 0; is_backward < 2; is_backward++)
            n_bytes[i][is_backward] = link_bytes_of(&desc, is_backward, "ring exchange");
    }
    printf("# sent by a rank: forward %lld MiB, latent %lld; scratch %lld and %lld MiB\n",
           (long long)n_bytes[0][0] >> 20, (long long)n_bytes[1][0] >> 20,
           (long long)sizes[0].device_bytes >> 20, (long long)sizes[1].device_bytes >> 20);
    for (int i = 0; i < 2; i++) {
        CHECK_IS(n_bytes[1][i], >, 0);
        CHECK_IS(n_bytes[0][i], >, 71 * n_bytes[1][i]);
    }
    CHECK_IS(5 * sizes[1].device_bytes, <, sizes[0].device_bytes);
}

/* ---- slices of a sequence ---- */

typedef struct sliced_run {
    world all;
    int64_t slice_tokens;
} sliced_run;

#define MAX_SLICES 8

/* Slice k of a sequence, causal and in fp32: its queries against the keys of slices 0 .. k of all
 * ranks.  Adds up the gradients of these keys. */
static memo_status slice_run(sliced_run* run, thread_rank* r, const memo_mesh* mesh,
                             const memo_sharding* sharding, int64_t k,
                             float* const share[N_TENSORS], float* const sums[N_TENSORS],
                             memo_error* e) {
    const attention_case* c = run->all.c;
    const whole* w = run->all.w;
    run_result* result = &run->all.results[r->comm->rank];
    latent_args latent = {&run->all, result, r->device, {0}, 0, 0};
    host_attention state = {r->device, 0};
    memo_sp_attention_desc desc = desc_of_case(c, mesh, &latent);
    memo_exchange_desc exchange_desc = {.has_sinks = c->has_sinks};
    memo_mask_desc mask_desc = {.first_query = k * run->slice_tokens, .window_before = c->window};
    memo_sp_attention* attention = NULL;
    memo_exchange* exchange = NULL;
    int64_t documents[MAX_DOCUMENTS + 1];
    float d_sinks[MAX_HEADS];
    char* at[N_TENSORS];
    memo_sharding_slice(sharding, k, &desc.sharding, &desc.key_sharding);
    desc.device = r->device;
    desc.stream = r->stream;
    desc.attention = host_attention_functions(&state);
    for (int64_t i = 0; i <= c->n_documents; i++)
        documents[i] = c->document_begins[i] < desc.key_sharding.n_tokens
                           ? c->document_begins[i]
                           : desc.key_sharding.n_tokens;
    mask_desc.n_tokens = desc.sharding.n_tokens;
    mask_desc.document_begins = c->n_documents ? documents : NULL;
    mask_desc.n_documents = c->n_documents;
    own_mask mask = made_mask(&mask_desc);
    exchange_desc.masks = &mask;

    /* Rows of the slice, and all rows of keys so far. */
    for (int t = 0; t < N_TENSORS; t++) {
        const int64_t first = desc.key_sharding.local_tokens - desc.sharding.local_tokens;
        at[t] = (char*)(share[t] + !is_of_keys(t) * first * w->n_heads[t] * w->head_size[t]);
    }
    memo_status status = memo_sp_attention_desc_get_sizes(&desc, &result->sizes, e);
    memo_sp_attention_tensors t = tensors_of(at, calloc(1, (size_t)result->sizes.lse_bytes + 1),
                                             calloc(1, (size_t)result->sizes.saved_bytes + 1));
    t.sinks = c->has_sinks ? w->sinks : NULL;
    t.d_sinks = d_sinks;
    if (!status) status = memo_sp_attention_create(&desc, &attention, e);
    if (!status) status = memo_exchange_create(attention, &exchange_desc, &exchange, e);
    if (!status) status = memo_sp_attention_forward(attention, exchange, &t, e);
    if (!status) status = memo_sp_attention_backward(attention, exchange, &t, e);
    if (!status) status = memo_stream_synchronize(r->device, r->stream, e);
    for (int i = D_K; i <= D_V && !status; i++)
        for (int64_t x = 0; x < desc.key_sharding.local_tokens * w->n_heads[i] * w->head_size[i];
             x++)
            sums[i][x] += share[i][x];
    for (int32_t h = 0; h < c->n_q_heads && c->has_sinks && !status; h++)
        result->d_sinks[h] += d_sinks[h];
    memo_exchange_destroy(exchange);
    memo_sp_attention_destroy(attention);
    free(t.lse);
    free(t.saved);
    return status;
}

static memo_status sliced_rank(thread_rank* r, memo_error* e) {
    sliced_run* run = (sliced_run*)r->user;
    const attention_case* c = run->all.c;
    const whole* w = run->all.w;
    memo_mesh_desc mesh_desc = {.ring = c->ring, .ulysses = c->ulysses};
    memo_sharding_desc desc = {.kind = c->sharding,
                               .ring = c->ring,
                               .ulysses = c->ulysses,
                               .n_tokens = c->n_tokens,
                               .slice_tokens = run->slice_tokens};
    memo_mesh* mesh = NULL;
    memo_sharding sharding;
    float *share[N_TENSORS], *sums[N_TENSORS];
    if (memo_sharding_make(&desc, &sharding, e) || memo_mesh_create(r->comm, &mesh_desc, &mesh, e))
        return e->status;
    const int32_t rank = mesh->sequence_rank;
    memo_status status = MEMO_STATUS_OK;
    for (int t = 0; t < N_TENSORS; t++) {
        const int64_t row = w->n_heads[t] * w->head_size[t];
        share[t] = (float*)calloc((size_t)(sharding.local_tokens * row + 1), 4);
        sums[t] =
            is_of_keys(t) ? (float*)calloc((size_t)(sharding.local_tokens * row + 1), 4) : share[t];
        if (!is_result(t)) scatter_rows(&sharding, rank, 1, row * 4, w->typed[t], share[t]);
    }
    for (int64_t k = 0; k * run->slice_tokens < c->n_tokens && !status; k++)
        status = slice_run(run, r, mesh, &sharding, k, share, sums, e);
    for (int t = 0; t < N_TENSORS; t++) {
        const int64_t row = w->n_heads[t] * w->head_size[t];
        if (is_result(t)) gather_rows(&sharding, rank, 1, row * 4, sums[t], w->typed[t]);
        if (is_of_keys(t)) free(sums[t]);
        free(share[t]);
    }
    memo_mesh_destroy(mesh);
    return status;
}

/* Each rank's share of each slice, against all earlier keys of all ranks: any degrees and ways,
 * a short last slice, windows, documents, sinks, groups of heads and latent keys. */
TEST(slices_over_ranks_are_exact) {
    for (int i = 0; i < (IS_SLOW ? 10 : 100); i++) {
        static const int32_t degrees[][2] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {8, 1},
                                             {1, 2}, {1, 4}, {2, 2}, {3, 2}, {2, 4}};
        const int32_t ring = degrees[i % 10][0], ulysses = degrees[i % 10][1];
        const int32_t kv = (int32_t)memo_test_int(1, 4);
        static sliced_run run;
        attention_case c = case_of(ring, ulysses, 0, kv * (int32_t)memo_test_int(1, 3), kv, 8);
        own_whole w;
        run.slice_tokens = 2 * ring * ulysses * memo_test_int(1, 4);
        c.n_tokens = run.slice_tokens * memo_test_int(1, MAX_SLICES - 1) +
                     memo_test_int(1, run.slice_tokens);
        c.v_head_size = (int32_t)memo_test_int(0, 12);
        c.sharding = (memo_sharding_kind)memo_test_int(0, 1);
        c.window = memo_test_int(0, 1) ? 0 : memo_test_int(1, c.n_tokens);
        c.sends_again = (int32_t)memo_test_int(0, 1);
        c.ulysses_groups = (int32_t)memo_test_int(0, 3);
        settle_groups(&c);
        c.has_sinks = (int32_t)memo_test_int(0, 1);
        if (memo_test_int(0, 2) == 0) random_documents(&c, MAX_DOCUMENTS);
        if (memo_test_int(0, 2) == 0) c.latent_size = (int32_t)memo_test_int(1, 12);
        whole_create(&w, &c);
        reference_run(&c, &w);
        world_init(&run.all, &c, &w);
        IN_CASE("%s, slices of %d", case_text(&c), (int)run.slice_tokens);
        CHECK_OK(thread_ranks_run(ring * ulysses, sliced_rank, &run, &error));
        for (int t = OUT; t < N_TENSORS; t++)
            if (t != D_OUT) CHECK_IS(error_of(&c, &w, t), <=, (t == OUT ? 2e-6 : 5e-6));
        if (c.has_sinks) expect_sinks(&c, &w, &run.all, 5e-6);
        if (c.latent_size) expect_latent_weights(&c, &w, &run.all, 5e-6);
    }
}

/* A rank that cannot go on makes all others fail, in bounded time: whichever rank, of which the
 * local attention or a function of latent keys fails. */
TEST(a_failing_rank_is_seen_by_all) {
    for (int i = 0; i < 2 * 3 * 4; i++) {
        const int has_ring = i / 8 == 2, fails_latent = i % 3;
        attention_case c = CASE(has_ring ? 4 : 2, has_ring ? 1 : 2, 40, 4, 2, 8,
                                .latent_size = fails_latent ? 6 : 0, .are_peers = i / 3 % 2);
        world all;
        own_whole w;
        whole_create(&w, &c);
        world_init(&all, &c, &w);
        all.failing_rank = i % 4;
        all.fails_latent = fails_latent;
        CHECK(!world_run(&all));
        for (int32_t r = 0; r < 4; r++)
            CHECK_IS(all.results[r].status, ==,
                     (r == all.failing_rank ? MEMO_STATUS_DEVICE : MEMO_STATUS_COMM));
    }
}

/* ---- a rank whose desc, sharding, mask or pass differs ---- */

static memo_status disagree(thread_rank* rank, memo_error* e) {
    disagreement_run((const disagreement*)rank->user, rank->device, rank->stream, rank->comm);
    (void)e;
    return MEMO_STATUS_OK;
}

/* Over threads, and over peers. */
static void run_disagreement(disagreement* one) {
    memo_host_device_desc device_desc = {0};
    memo_comm_threads_desc desc = {0};
    for (desc.are_peers = 0; desc.are_peers < 2; desc.are_peers++)
        CHECK_OK(thread_ranks_run_on(&device_desc, &desc, one->ring * one->ulysses, disagree, one,
                                     &error));
}

/* In fp32 the messages of both passes have the same lengths and types.  Of each case: ring, ulysses,
 * the rank that calls backward. */
TEST(a_rank_in_another_pass_is_an_error_on_all_ranks) {
    static const int32_t cases[][3] = {{3, 1, 1}, {4, 1, 0}, {2, 1, 1}, {1, 2, 0}, {1, 4, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        disagreement one = {.field = "memo_sp_attention_backward on another",
                            .ring = cases[i][0],
                            .ulysses = cases[i][1],
                            .odd_rank = cases[i][2]};
        run_disagreement(&one);
    }
}

/* Documents end where chunks do, so no key travels and no later message could tell. */
TEST(every_exchange_compares_the_ranks) {
    static const char* const fields[] = {"masks", "has_sinks"};
    for (int i = 0; i < 6; i++) {
        disagreement one = {fields[i % 2], 2, 1, MEMO_SHARDING_PLAIN, i / 2 - 1, 1};
        run_disagreement(&one);
    }
}

/* An error on every rank that names the field, over a ring and over Ulysses. */
TEST(ranks_that_disagree_are_refused) {
    static const char* const fields[] = {
        "scale",       "softcap",          "masks",     "exchange_desc.sharding",
        "n_kv_heads",  "key_sharding",     "latent",    "n_batch",
        "sends_again", "rounds_gradients", "has_sinks", "ulysses_groups"};
    static const int32_t degrees[][2] = {{3, 1}, {1, 4}};
    size_t n = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (size_t k = 0; k < 2 * sizeof degrees / sizeof *degrees; k++) {
            disagreement one = {
                fields[i], degrees[k / 2][0], degrees[k / 2][1], MEMO_SHARDING_ZIGZAG, -1, 0};
            if (!strcmp(fields[i], "exchange_desc.sharding"))
                one.sharding = MEMO_SHARDING_DOCUMENTS;
            if (k % 2) one.odd_rank = (int32_t)memo_test_int(0, one.ring * one.ulysses - 1);
            if (!disagreement_is_possible(&one)) continue;
            run_disagreement(&one);
            n++;
        }
    printf("# %d runs\n", (int)n);
}

/* Refused, or as the formulas say; reckoned in floating point. */
TEST(sizes_that_overflow_are_refused) {
    int n_refused = 0;
    for (int i = 0; i < 2000; i++) {
        memo_sharding_kind kind = (memo_sharding_kind)memo_test_int(0, 1);
        int32_t rd = (int32_t)1 << memo_test_int(0, 20);
        int64_t n_tokens = memo_test_int(1, (int64_t)1 << memo_test_int(20, 60));
        memo_sp_attention_desc desc = desc_of(kind, rd, 1, n_tokens, 1, 1, 1, MEMO_TYPE_F32);
        memo_sp_attention_sizes sizes;
        desc.n_batch = (int32_t)1 << memo_test_int(0, 4);
        desc.n_q_heads = desc.n_kv_heads = (int32_t)1 << memo_test_int(0, 4);
        desc.head_size = (int32_t)1 << memo_test_int(0, 4);
        memo_status status = memo_sp_attention_desc_get_sizes(&desc, &sizes, &error);
        n_refused += status != MEMO_STATUS_OK;
        CHECK(!status || status == MEMO_STATUS_INVALID_ARGUMENT);
        if (status) continue;
        double ring = rd;
        double n =
            (double)desc.sharding.local_tokens * desc.n_batch * desc.n_kv_heads * desc.head_size;
        CHECK_CASE((double)sizes.device_bytes >= (ring > 1 ? 16 * n : 0),
                   "%lld tokens, ring %g: %lld bytes", (long long)n_tokens, ring,
                   (long long)sizes.device_bytes);
    }
    CHECK_CASE(n_refused > 100 && n_refused < 1900, "%d refused", n_refused);
}

/* Each request of host memory fails once: what create has made by then is given back. */
TEST(memory_that_ends_is_reported) {
    memo_sp_attention_desc desc = desc_of(MEMO_SHARDING_ZIGZAG, 2, 1, 16, 2, 2, 4, MEMO_TYPE_BF16);
    memo_comm ring = {.size = 2};
    memo_exchange_desc causal = {0};
    memo_sp_attention* attention = NULL;
    memo_exchange* exchange = NULL;
    ring_paper paper;
    host_attention state;
    memo_status status;
    int k = 0;
    own_device* device = open_device(&desc.stream, &state, &desc.attention);
    desc.device = device;
    desc.ring = &ring;
    do {
        failing_malloc = malloc_count + ++k;
        status = memo_sp_attention_create(&desc, &attention, &error);
        CHECK(status ? status == MEMO_STATUS_OUT_OF_HOST_MEMORY && !attention : attention != NULL);
        CHECK_IS((host_device_stats(device).device_bytes > 0), ==, (attention != NULL));
    } while (status && k < 100);
    CHECK_IS(k, >, 3);
    k = 0;
    ring = ring_paper_comm(&paper, 0, 2);
    do {
        failing_malloc = malloc_count + ++k;
        status = memo_exchange_create(attention, &causal, &exchange, &error);
        CHECK(status ? status == MEMO_STATUS_OUT_OF_HOST_MEMORY && !exchange : exchange != NULL);
    } while (status && k < 100);
    failing_malloc = 0;
    CHECK_IS(k, >, 5);
    memo_exchange_destroy(exchange);
    memo_sp_attention_destroy(attention);

    /* The plan of a tree, of a ring over nodes. */
    static const int64_t begins[] = {0, 7, 10, 16}, parents[] = {-1, 0, 0};
    const memo_mask_desc tree_desc = {
        .n_tokens = 16, .document_begins = begins, .n_documents = 3, .document_parents = parents};
    own_mask tree = made_mask(&tree_desc);
    memo_comm nodes = ring_paper_comm(&paper, 0, 2);
    ring = ring_paper_comm(&paper, 0, 4);
    desc.sharding = desc_of(MEMO_SHARDING_ZIGZAG, 4, 1, 16, 2, 2, 4, MEMO_TYPE_BF16).sharding;
    desc.nodes = &nodes;
    desc.has_levels = 1;
    causal.masks = &tree;
    own_attention* of_nodes = attention_of(&desc);
    for (k = 1, exchange = NULL; k < 400 && !exchange; k++) {
        failing_malloc = malloc_count + k;
        status = memo_exchange_create(of_nodes, &causal, &exchange, &error);
        CHECK(status ? status == MEMO_STATUS_OUT_OF_HOST_MEMORY && !exchange : exchange != NULL);
    }
    failing_malloc = 0;
    CHECK_IS(k, >, 20);
    CHECK_IS(k, <, 400);
    memo_exchange_destroy(exchange);
}

TEST(invalid_arguments_are_refused) {
    memo_sp_attention_desc good = desc_of(MEMO_SHARDING_ZIGZAG, 1, 1, 8, 2, 2, 4, MEMO_TYPE_F32);
    const memo_sharding made = good.sharding;
    memo_sharding of_two = desc_of(MEMO_SHARDING_ZIGZAG, 2, 1, 8, 2, 2, 4, MEMO_TYPE_F32).sharding;
    memo_sp_attention_desc desc;
    static const int64_t wrong_end[] = {0, 5, 9}, falling[] = {0, 7, 5, 8}, right[] = {0, 3, 8};
    static const int64_t ends[] = {1, 2, 3, 4, 5, 6, 7, 8}, too_far[] = {1, 2, 3, 4, 5, 6, 7, 9};
    static const int64_t parents[] = {-1, 0};
    int64_t wrong_first[8] = {0, 0, 1, 2, 3, 4, 5, 5};
    memo_sp_attention_sizes sizes;
    memo_sp_attention* attention = NULL;
    memo_exchange_desc exchange_desc = {0};
    memo_exchange* exchange = NULL;
    memo_mask_desc mask_desc = {.n_tokens = 8};
    host_attention state;
    float data[4][2 * 8 * 2 * 4];
    float lse[2 * 16], sinks[2] = {0, 0};
    float wrong_sinks[2][2] = {{0, (float)nan("")}, {0, (float)HUGE_VAL}};
    memo_device old;
    memset(data, 0, sizeof data);
#define REFUSED(change, text)                                                                      \
    do {                                                                                           \
        desc = good;                                                                               \
        change;                                                                                    \
        CHECK_ERROR(memo_sp_attention_desc_get_sizes(&desc, &sizes, &error), INVALID_ARGUMENT,     \
                    text);                                                                         \
    } while (0)
    CHECK_OK(memo_sp_attention_desc_get_sizes(&good, &sizes, &error));
    REFUSED(desc.n_kv_heads = 3, "n_kv_heads");
    REFUSED(desc.softcap = -1, "softcap");
    REFUSED(desc.scale = (float)nan(""), "scale");
    REFUSED(desc.scale = (float)HUGE_VAL, "scale");
    REFUSED(desc.scale = -(float)HUGE_VAL, "scale");
    for (int k = 0; k < 5; k++) { /* memory is counted from them */
        static const int64_t wrong[] = {0, 3, 7, -1, (int64_t)1 << 40};
        REFUSED(desc.sharding.ring_tokens = wrong[k], "sharding: changed");
        REFUSED(desc.sharding.padded_tokens = wrong[k], "sharding: changed");
        REFUSED((desc.key_sharding = made, desc.key_sharding.ring_tokens = wrong[k]),
                "key_sharding: changed");
    }
    REFUSED(desc.sharding.local_tokens = 3, "sharding: changed");
    good.sharding = desc_of(MEMO_SHARDING_PLAIN, 1, 1, 1, 2, 2, 4, MEMO_TYPE_F32).sharding;
    /* Sums of two that pass 2^31. */
    REFUSED(desc.head_size = INT32_MAX - 1, "head_size");
    REFUSED(desc.v_head_size = INT32_MAX - 1, "v_head_size");
    REFUSED(desc.latent.size = -1, "latent.size");
    REFUSED(desc.latent.size = 1 << 25, "latent.size");
    REFUSED(desc.latent.n_heads = -1, "latent.n_heads");
    good.sharding = made;
    REFUSED(desc.type = MEMO_TYPE_I32, "type");
    REFUSED(memset(&desc.sharding, 0, sizeof desc.sharding), "sharding");
    REFUSED(desc.ring_rank = 1, "rank");
    REFUSED(desc.n_nodes = -1, "n_nodes");
    REFUSED(desc.n_nodes = 2, "n_nodes: 2 nodes do not divide the ring (1)");
    REFUSED((desc.n_batch = 3, desc.n_masks = 2), "n_masks");
    desc.n_masks = 3;
    CHECK_OK(memo_sp_attention_desc_get_sizes(&desc, &sizes, &error));
    REFUSED(desc.key_sharding = of_two, "key_sharding"); /* keys of other degrees */
#undef REFUSED
    CHECK_IS(memo_sp_attention_create(&good, &attention, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    own_device* device = open_device(&good.stream, &state, &good.attention);
    good.device = device;
    desc = good;
    desc.sharding = of_two;
    CHECK_IS(memo_sp_attention_create(&desc, &attention, &error), ==, MEMO_STATUS_INVALID_ARGUMENT);
    desc = good;
    desc.latent.size = 3;
    CHECK_ERROR(memo_sp_attention_create(&desc, &attention, &error), INVALID_ARGUMENT,
                "latent.expand: NULL");
    desc.latent.expand = no_latent;
    CHECK_ERROR(memo_sp_attention_create(&desc, &attention, &error), INVALID_ARGUMENT,
                "latent.reduce: NULL");
    CHECK_OK(memo_sp_attention_create(&good, &attention, &error));
    memo_sp_attention_tensors tensors = {0};
    CHECK_OK(memo_exchange_create(attention, &exchange_desc, &exchange, &error));
    CHECK_FAILS(memo_sp_attention_forward(attention, exchange, &tensors, &error), INVALID_ARGUMENT);
    tensors = (memo_sp_attention_tensors){
        .q = data[0], .k = data[1], .v = data[2], .out = data[3], .lse = lse};
    CHECK_OK(memo_sp_attention_forward(attention, exchange, &tensors, &error));
    CHECK_FAILS(memo_sp_attention_backward(attention, exchange, &tensors, &error),
                INVALID_ARGUMENT);
    WITH(tensors.sinks, sinks,
         CHECK_ERROR(memo_sp_attention_forward(attention, exchange, &tensors, &error),
                     INVALID_ARGUMENT,
                     "sinks: not NULL")); /* which the exchange was not made for */
#define NULL_IS_REFUSED(call, argument)                                                            \
    CHECK_ERROR(call, INVALID_ARGUMENT, ": " argument ": NULL; pass one")
    NULL_IS_REFUSED(memo_sp_attention_forward(attention, NULL, &tensors, &error), "exchange");
    NULL_IS_REFUSED(memo_sp_attention_backward(attention, NULL, &tensors, &error), "exchange");
    NULL_IS_REFUSED(memo_sp_attention_forward(NULL, exchange, &tensors, &error), "attention");
    NULL_IS_REFUSED(memo_sp_attention_forward(attention, exchange, NULL, &error), "tensors");
    memo_exchange* none = exchange;
    NULL_IS_REFUSED(memo_exchange_create(NULL, &exchange_desc, &none, &error), "attention");
    CHECK(!none);
    NULL_IS_REFUSED(memo_exchange_create(attention, NULL, &none, &error), "desc");
    own_attention* other = attention_of(&good);
    CHECK_ERROR(memo_sp_attention_forward(other, exchange, &tensors, &error), INVALID_ARGUMENT,
                "another attention");
    memo_exchange_destroy(exchange);
    mask_desc.n_documents = 2;
    mask_desc.document_begins = right;
    own_mask mask = made_mask(&mask_desc);
    exchange_desc.masks = &mask;
    CHECK_OK(memo_exchange_create(attention, &exchange_desc, &exchange, &error));
    CHECK_OK(memo_sp_attention_forward(attention, exchange, &tensors, &error));
    memo_exchange_destroy(exchange);
    int64_t n_segments;
#define REFUSED(change, text)                                                                      \
    do {                                                                                           \
        memo_mask_desc wrong = mask_desc;                                                          \
        change;                                                                                    \
        CHECK_ERROR(memo_mask_documents(&wrong, NULL, &n_segments, &error), INVALID_ARGUMENT,      \
                    text);                                                                         \
    } while (0)
    REFUSED(wrong.document_begins = wrong_end, "document_begins");
    REFUSED((wrong.n_documents = 3, wrong.document_begins = falling), "document_begins");
    REFUSED((wrong.document_parents = parents, wrong.window_before = 3), "beside a window");
    REFUSED((wrong.document_parents = parents, wrong.first_query = 3, wrong.n_keys = 8),
            "beside first_query");
    REFUSED((wrong.document_begins = NULL, wrong.document_parents = parents), "without documents");
    REFUSED(wrong.first_query = -MEMOB_BYTES_MAX, "first_query");
    REFUSED(wrong.n_documents = 1000000000000000000, "n_documents");
    REFUSED(wrong.window_before = -1, "window_before");
    REFUSED(wrong.window_after = -1, "window_after");
    REFUSED(wrong.n_tokens = -1, "n_tokens");
    REFUSED(wrong.n_first_keys = -1, "n_first_keys");
    REFUSED((wrong.n_first_keys = 1, wrong.kind = MEMO_MASK_FULL), "n_first_keys");
    REFUSED(wrong.kind = MEMO_N_MASK_KINDS, "kind");
    for (int k = 0; k < 4; k++) { /* what is no tree */
        static const int64_t n_wrong[] = {3, 3, 4, 34}, four[] = {0, 2, 4, 6, 8};
        static const int64_t lists[4][4] = {{-1, 1, 0}, {0, -1, 1}, {-1, 0, -1, 1}, {0}};
        int64_t chain[34], begins[35] = {0, 1, 2};
        for (int i = 0; i < 34; i++) chain[i] = i - 1, begins[i + 1] = i < 7 ? i + 1 : 8;
        begins[n_wrong[k]] = 8;
        REFUSED((wrong.document_begins = k == 2 ? four : begins, wrong.n_documents = n_wrong[k],
                 wrong.document_parents = k == 3 ? chain : lists[k]),
                k == 3 ? "document_parents[32]: 32 ancestors" : "document_parents[");
    }
#undef REFUSED
#define REFUSED(first, end, text)                                                                  \
    CHECK_ERROR(memo_mask_intervals(first, end, 8, 8, NULL, &n_segments, &error),                  \
                INVALID_ARGUMENT, text)
    REFUSED(right, NULL, "key_end: NULL");
    REFUSED(NULL, right, "key_first: NULL");
    wrong_first[6] = 8;
    REFUSED(wrong_first, ends, "[6]: invalid (8, 7)");
    wrong_first[6] = 5;
    wrong_first[7] = 4;
    REFUSED(wrong_first, ends, "[7]: invalid (4, 8)");
    REFUSED(ends, too_far, "[7]: invalid (8, 9)");
    CHECK_ERROR(memo_mask_cross(falling, right, 3, NULL, &n_segments, &error), INVALID_ARGUMENT,
                "query_begins");
    CHECK_ERROR(memo_mask_cross(right, wrong_end, 0, NULL, &n_segments, &error), INVALID_ARGUMENT,
                "query_begins");
    CHECK_ERROR(memo_mask_cross(right, NULL, 2, NULL, &n_segments, &error), INVALID_ARGUMENT,
                "key_begins");
#undef REFUSED

    /* Lists of the caller. */
    own_attention* of_levels = NULL;
    desc = good;
    desc.has_levels = 1;
    CHECK_OK(memo_sp_attention_create(&desc, &of_levels, &error));
    static const struct {
        memo_segment list[2];
        const char* text;
    } wrong_lists[] = {
        {{{0, 4, 0, 4, MEMO_SEGMENT_CAUSAL, 0}, {3, 8, 4, 8, MEMO_SEGMENT_FULL, 0}}, "its queries"},
        {{{0, 4, 0, 4, MEMO_SEGMENT_CAUSAL, 0}, {4, 9, 4, 8, MEMO_SEGMENT_FULL, 0}}, "its queries"},
        {{{0, 4, 0, 4, MEMO_SEGMENT_CAUSAL, 0}, {4, 4, 4, 8, MEMO_SEGMENT_FULL, 0}}, "its queries"},
        {{{0, 4, 0, 4, MEMO_SEGMENT_CAUSAL, 0}, {4, 8, 4, 9, MEMO_SEGMENT_FULL, 0}}, "its keys"},
        {{{0, 4, 0, 4, MEMO_SEGMENT_CAUSAL, 0}, {4, 8, -1, 8, MEMO_SEGMENT_FULL, 0}}, "its keys"},
        {{{0, 4, 0, 4, MEMO_SEGMENT_CAUSAL, 0}, {4, 8, 5, 8, MEMO_SEGMENT_BAND, 0}},
         "fewer keys than queries"},
        {{{0, 4, 1, 5, MEMO_SEGMENT_FULL, 0}, {4, 8, 0, 8, MEMO_SEGMENT_FULL, 0}},
         "keys that descend"},
        {{{0, 4, 0, 4, MEMO_SEGMENT_INVERSE, 0}, {4, 8, 2, 8, MEMO_SEGMENT_FULL, 0}},
         "keys that descend"},
        {{{0, 4, 0, 4, MEMO_SEGMENT_CAUSAL, 0}, {4, 8, 4, 8, MEMO_N_SEGMENT_TYPES, 0}}, "its type"},
        {{{0, 4, 0, 4, MEMO_SEGMENT_CAUSAL, 0}, {4, 8, 4, 8, MEMO_SEGMENT_FULL, -1}}, "its level"},
        {{{0, 4, 0, 4, MEMO_SEGMENT_CAUSAL, 0}, {4, 8, 4, 8, MEMO_SEGMENT_FULL, 32}}, "its level"},
        {{{0, 4, 0, 4, MEMO_SEGMENT_CAUSAL, 1}, {4, 8, 4, 8, MEMO_SEGMENT_FULL, 0}}, "its level"},
        {{{0, 4, 0, 4, MEMO_SEGMENT_CAUSAL, 0}, {3, 8, 3, 8, MEMO_SEGMENT_CAUSAL, 1}},
         "levels 0 and 1 have the same pair"}};
    for (size_t k = 0; k < sizeof wrong_lists / sizeof *wrong_lists; k++) {
        const memo_mask wrong = {wrong_lists[k].list, 2};
        const memo_exchange_desc of_wrong = {.masks = &wrong};
        IN_CASE("list %d", (int)k);
        CHECK_ERROR(memo_exchange_create(of_levels, &of_wrong, &exchange, &error), INVALID_ARGUMENT,
                    wrong_lists[k].text);
        CHECK(!exchange);
    }
    const memo_segment two_levels[] = {{0, 8, 0, 8, MEMO_SEGMENT_CAUSAL, 0},
                                       {0, 4, 4, 8, MEMO_SEGMENT_FULL, 1}};
    const memo_mask of_two_levels = {two_levels, 2}, lost = {NULL, 2}, fewer = {two_levels, -1};
    memo_exchange_desc of_list = {.masks = &of_two_levels};
    CHECK_OK(memo_exchange_create(of_levels, &of_list, &exchange, &error));
    memo_exchange_destroy(exchange);
    CHECK_ERROR(memo_exchange_create(attention, &of_list, &exchange, &error), INVALID_ARGUMENT,
                "has_levels");
    of_list.masks = &lost;
    CHECK_ERROR(memo_exchange_create(attention, &of_list, &exchange, &error), INVALID_ARGUMENT,
                "segments: NULL");
    of_list.masks = &fewer;
    CHECK_ERROR(memo_exchange_create(attention, &of_list, &exchange, &error), INVALID_ARGUMENT,
                "fewer than none");
    CHECK_OK(memo_stream_synchronize(device, good.stream, &error));
    memo_sp_attention_destroy(attention);
    desc = good; /* only the second sequence's mask is wrong */
    desc.n_batch = desc.n_masks = 2;
    memo_mask masks[2] = {mask, lost};
    exchange_desc.masks = masks;
    own_attention* of_masks = attention_of(&desc);
    CHECK_ERROR(memo_exchange_create(of_masks, &exchange_desc, &exchange, &error), INVALID_ARGUMENT,
                "segments: NULL");
    desc = good; /* memory for the arrays of segments */
    desc.attention.launches = MEMO_LAUNCHES_RANGES;
    own_attention* of_ranges = attention_of(&desc);
    const memo_exchange_desc small = {.masks = &mask, .device_memory = lse, .device_bytes = 5 * 4};
    CHECK_ERROR(memo_exchange_create(of_ranges, &small, &exchange, &error), INVALID_ARGUMENT,
                "device_bytes: 20, but the segments need 40");
    CHECK_IS(memo_exchange_device_bytes(&desc, mask.n_segments), >=, 40);
    desc.attention.launches = MEMO_N_LAUNCH_KINDS;
    memo_sp_attention* of_no_kind = NULL;
    CHECK_ERROR(memo_sp_attention_create(&desc, &of_no_kind, &error), INVALID_ARGUMENT,
                "attention.launches");
    desc = good; /* documents that do not ascend, in the sharding alone */
    memo_sharding_desc of_documents = {
        .kind = MEMO_SHARDING_DOCUMENTS, .n_tokens = 8, .document_begins = right, .n_documents = 2};
    CHECK_OK(keep_sharding(&of_documents, &desc.sharding, &error));
    own_attention* sharded = attention_of(&desc);
    desc.sharding.document_begins = falling;
    desc.sharding.n_documents = 3;
    exchange_desc.masks = &mask;
    exchange_desc.sharding = &desc.sharding;
    CHECK_ERROR(memo_exchange_create(sharded, &exchange_desc, &exchange, &error), INVALID_ARGUMENT,
                "memo_exchange_desc.sharding.document_begins");
    exchange_desc = (memo_exchange_desc){.masks = &mask};
    desc = good;
    desc.head_size = HOST_ATTENTION_HEAD_SIZE + 1; /* the local attention's own limit */
    own_attention* wide = attention_of(&desc);
    own_exchange* of_wide = exchange_of(wide, &exchange_desc);
    CHECK_FAILS(memo_sp_attention_forward(wide, of_wide, &tensors, &error), UNSUPPORTED);
    tensors.sinks = sinks; /* a table of older code, and one without row kernels */
    exchange_desc.has_sinks = 1;
    for (int k = 0; k < 2; k++) {
        int64_t n_calls = state.n_scores;
        old = *device;
        if (k)
            old.row_kernel = NULL;
        else
            old.struct_bytes = (int64_t)offsetof(memo_device, row_kernel);
        desc = good;
        desc.device = &old;
        own_attention* one = attention_of(&desc);
        own_exchange* refused = exchange_of(one, &exchange_desc);
        CHECK_ERROR(memo_sp_attention_forward(one, refused, &tensors, &error), UNSUPPORTED,
                    "it has no row kernels");
        CHECK_OK(memo_stream_synchronize(device, good.stream, &error));
        CHECK_IS(state.n_scores, ==, n_calls); /* nothing was enqueued */
    }
#ifndef MEMO_TEST_STRICT          /* no GPU reads sinks to check them */
    for (int k = 0; k < 2; k++) { /* the host device finds it where the operation runs */
        own_device* fresh = open_device(&good.stream, &state, &good.attention);
        good.device = fresh;
        tensors.sinks = wrong_sinks[k];
        own_attention* one = attention_of(&good);
        own_exchange* promised = exchange_of(one, &exchange_desc);
        CHECK_OK(memo_sp_attention_forward(one, promised, &tensors, &error));
        CHECK_ERROR(memo_stream_synchronize(fresh, good.stream, &error), INVALID_ARGUMENT,
                    "sinks[1]: not a number, or too large");
    }
#endif
}
