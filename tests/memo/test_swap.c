/* test_swap.c - the swap engine over random tables of rows: rows come back unchanged, the recorded
 * operations have no race, and every fault is a status. */
#define MEMO_STATIC
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#include "memo.h"
#define MEMO_PLAN_IMPLEMENTATION
#include "memo_plan.h"
#include "extras/memo_look.h"
#include "stats.h"
#include "owned.h"
#include "random_rows.h"
#include "swap_chain.h"

/* All random cases under `make test-all`, otherwise one of SHARE. */
#define SHARE (memo_test_all() ? 1 : 5)

/* --- random cases --- */

/* The border rule, written apart from memo.h: even layers swap their first rows, odd ones their
 * last. */
static int64_t first_swapped_row(int32_t layer, int64_t n_rows, int64_t n_swapped) {
    return layer % 2 ? n_rows - n_swapped : 0;
}
static int64_t first_other_row(int32_t layer, int64_t n_swapped) {
    return layer % 2 ? 0 : n_swapped;
}

static void random_table(chain* c) {
    c->has_rows = 1;
    random_rows(&c->desc, c->rows);
}

/* Kinds of layers; the first tensor belongs to all, as fused kernels write it early. */
static void random_kinds(chain* c) {
    int64_t n_kinds = memo_test_int(1, 4);
    c->has_kinds = 1;
    for (int32_t layer = 0; layer < CHAIN_LAYERS_MAX; layer++)
        c->layer_kinds[layer] = layer % chain_slices(c) ? c->layer_kinds[layer - 1]
                                                        : (int32_t)memo_test_int(0, n_kinds - 1);
    for (int32_t t = 1; t < c->desc.n_tensors; t++)
        c->tensors[t].kinds = memo_test_int(0, 2) ? (uint32_t)memo_test_int(1, 15) : 0;
    for (int32_t t = 0; t < c->desc.n_tensors; t++)
        c->tensors[t].kinds = c->tensors[item_leader(c->tensors, t)].kinds;
    for (int32_t t = 0; t < c->desc.n_tensors; t++)
        if (c->tensors[t].scope == MEMO_EDGE || c->tensors[t].scope == MEMO_INPUT ||
            chain_is_routed(c, t))
            c->tensors[t].kinds = 0;
    chain_set_kinds(c);
}

/* What cannot be recomputed. */
static void choose_moved(memo_item* item, int32_t scope) {
    item_choose(item, item->away == MEMO_KEEP ? MEMO_KEEP : MEMO_MOVE, scope, 0);
}

/* Slices, and the scopes that are for them. */
static void random_slices(chain* c) {
    const int32_t n_group = memo_test_int(0, 1) ? (int32_t)memo_test_int(2, 3) : 0;
    const int32_t n_of_batch = (int32_t)memo_test_int(n_group ? 1 : 2, n_group ? 3 : 5);
    int32_t t, n_slices = n_group ? n_group * n_of_batch : n_of_batch, handed = -1;
    const int64_t tile = c->desc.tile_rows ? c->desc.tile_rows : 1;
    c->desc.n_slices = n_slices;
    c->desc.n_group = n_group;
    c->desc.n_layers = n_slices * (int32_t)memo_test_int(1, CHAIN_LAYERS_MAX / n_slices);
    c->desc.n_rows = tile * memo_test_int(1, 2 + 8 / tile);
    if (n_of_batch > 1 && memo_test_int(0, 1))
        c->desc.layer_rows = (n_of_batch - 1) * c->desc.n_rows + memo_test_int(1, c->desc.n_rows);
    for (t = 0; t < c->desc.n_tensors; t++)
        if (memo_test_int(0, 2) == 0 && c->tensors[t].away != MEMO_WITH)
            c->tensors[t].scope = MEMO_LAYER;
    for (t = 0; t < c->desc.n_tensors; t++) {
        const int is_free = item_is_alone(c->tensors, c->desc.n_tensors, t);
        if (!is_free || memo_test_int(0, 1) || c->desc.n_tensors == 1) continue;
        if (handed < 0) item_choose(&c->tensors[t], MEMO_MOVE, MEMO_EDGE, 0);
        if (handed >= 0) choose_moved(&c->tensors[t], MEMO_INPUT);
        if (handed >= 0) c->tensors[t].row_bytes = c->tensors[handed].row_bytes;
        if (handed >= 0) break;
        handed = t;
    }
}

/* Tensors whose rows are known late. */
static void random_routing(chain* c) {
    c->desc.routed_rows_layer = memo_test_int(1, 40);
    c->desc.routed_rows_all =
        c->desc.routed_rows_layer + memo_test_int(0, 40 * (int64_t)c->desc.n_layers);
    for (int32_t t = 0; t < c->desc.n_tensors; t++) {
        const int is_free =
            item_is_alone(c->tensors, c->desc.n_tensors, t) &&
            (c->tensors[t].scope == MEMO_SLICE || c->tensors[t].scope == MEMO_LAYER);
        if (is_free && (t == 0 || memo_test_int(0, 1)))
            item_choose(&c->tensors[t], memo_test_int(0, 1) ? MEMO_ROWS : MEMO_MOVE, MEMO_SLICE,
                        MEMO_LATE_ROWS);
    }
}

/* A micro-batch's: balanced, all in a few layers, or anything that the desc allows. */
static void random_routes(chain* c) {
    int64_t left = c->desc.routed_rows_all, most = c->desc.routed_rows_layer;
    int64_t kind = memo_test_int(0, 2);
    for (int32_t layer = 0; layer < c->desc.n_layers; layer++) {
        int64_t n = memo_test_int(0, most);
        if (kind == 0) n = c->desc.routed_rows_all / c->desc.n_layers;
        if (kind == 1) n = memo_test_int(0, 3) ? 0 : most;
        c->routed[layer] = n > most ? most : n;
        if (c->routed[layer] > left) c->routed[layer] = left;
        left -= c->routed[layer];
    }
}

/* may_slice 2: some tensors are routed. */
static void random_chain(chain* c, int may_slice) {
    const int32_t n_layers = (int32_t)memo_test_int(1, memo_test_int(0, 3) ? 5 : 9);
    chain_init(c, (int32_t)memo_test_int(1, CHAIN_TENSORS_MAX));
    c->desc.n_layers = n_layers;
    c->desc.n_rows = memo_test_int(1, 40);
    c->desc.tile_rows = memo_test_int(0, 9);
    c->desc.alpha = memo_test_int(0, 2) ? (double)memo_test_int(0, 8) / 8 : memo_test_real();
    for (int32_t t = 0; t < c->desc.n_tensors; t++) {
        const int follows = t >= memo_test_int(1, c->desc.n_tensors);
        c->tensors[t].row_bytes = memo_test_int(0, 9) ? memo_test_int(1, 48) : 0;
        c->tensors[t].away = random_away(memo_test_int(0, 1) ? 4 : 2);
        if (memo_test_int(0, 4) == 0 && follows &&
            c->tensors[item_leader(c->tensors, t - 1)].row_bytes)
            c->tensors[t].away = MEMO_WITH;
        else if (memo_test_int(0, 5) == 0)
            choose_moved(&c->tensors[t], MEMO_CARRIED);
        /* Rows that begin anywhere, and rows that begin at multiples of 512. */
        if (memo_test_int(0, 5) == 0) c->tensors[t].row_bytes *= 512;
    }
    if (may_slice && memo_test_int(0, 1)) random_slices(c);
    if (may_slice == 2) random_routing(c);
    if (memo_test_int(0, 1)) random_kinds(c);
    int spills = memo_test_int(0, 1) != 0;
    if (spills && !c->desc.n_slices)
        c->desc.n_layers = (int32_t)memo_test_int(3, 9); /* enough for it to happen */
    if (memo_test_int(0, 1)) random_table(c);
    if (spills) {
        memo_swap_sizes sizes;
        c->desc.n_host_layers = (int32_t)memo_test_int(1, memo_test_int(0, 2) ? 2 : 6);
        c->desc.spill_directory = chain_folder();
        c->desc.rows = c->has_rows ? c->rows : NULL;
        CHECK_OK(memo_swap_desc_get_sizes(&c->desc, &sizes, &error));
    }
}

static const char* describe(const chain* c) {
    static char text[256];
    snprintf(
        text, sizeof text,
        "%s, %s slices %d of %d steps %d tensors %d rows %lld of %lld tile %lld alpha %g host %d",
        c->has_rows ? "table" : "alpha", c->has_kinds ? "kinds," : "", (int)c->desc.n_slices,
        (int)c->desc.n_group, (int)c->desc.n_layers, (int)c->desc.n_tensors,
        (long long)c->desc.n_rows, (long long)chain_rows(c), (long long)c->desc.tile_rows,
        c->desc.alpha, (int)c->desc.n_host_layers);
    return text;
}

/* The GPT layer of the paper: 16 b s h elements, of which input and attention output are swapped
 * whole. */
static void gpt_table(chain* c, int64_t hidden_bytes, int32_t n_layers, int64_t n_rows) {
    static const int64_t widths[] = {1, 1, 1, 1, 1, 1, 1, 1, 4, 4};
    chain_init(c, CHAIN_TENSORS_MAX);
    c->desc.n_layers = n_layers;
    c->desc.n_rows = n_rows;
    for (int32_t t = 0; t < CHAIN_TENSORS_MAX; t++) {
        c->tensors[t].row_bytes = hidden_bytes * widths[t + 2];
        c->tensors[t].away = t < 2 ? MEMO_WHOLE : MEMO_ROWS;
    }
    c->tensors[2].row_bytes *= 3; /* q, k and v */
}

/* Opens a chain on a device of its own, whose copies have this rate (0: no limit). */
static void start(chain* c, double bytes_per_s) {
    c->device = c->host = new_host(bytes_per_s);
    CHECK_OK(chain_open(c));
}

/* The same, recorded. */
static memo_recorder* start_recorded(chain* c, double bytes_per_s) {
    c->host = new_host(bytes_per_s);
    memo_recorder* recorder = new_recorder((memo_recorder_desc){.device = c->host});
    c->device = memo_recorder_get_device(recorder);
    CHECK_OK(chain_open(c));
    return recorder;
}

/* What was recorded has no race. */
static memo_check* check_recorded(const chain* c, memo_recorder* recorder) {
    CHECK_OK(memo_stream_synchronize(c->device, c->compute, &error));
    memo_schedule* schedule = recorded(recorder);
    memo_check* check = check_of(schedule);
    CHECK_CASE(check->n_races == 0 && check->n_unrecorded_waits == 0, "%s", describe(c));
    return check;
}

/* Waits for the chain and closes it: no row has differed, and nothing stays allocated. */
static void finish(chain* c, memo_recorder* recorder) {
    CHECK_OK(memo_stream_synchronize(c->host, c->compute, &error));
    CHECK_CASE(c->n_wrong == 0, "%lld bytes differ: %s", (long long)c->n_wrong, describe(c));
    chain_close(c);
    memo_recorder_destroy(recorder);
    drop_device(&c->host);
}

/* The desc is invalid, for a reason with these words. */
static void refuses(const memo_swap_desc* desc, const char* words) {
    memo_swap_sizes sizes;
    CHECK_CASE(memo_swap_desc_get_sizes(desc, &sizes, &error) == MEMO_STATUS_INVALID_ARGUMENT &&
                   strstr(error.message, words),
               "%s, not: %s", error.message, words);
}

/* The sizes of a desc state the file that the engine fills, also if swapped layers do not
 * alternate between even and odd. */
TEST(sizes_state_the_file) {
    int n_files = 0;
    for (int round = 0; round < 300; round++) {
        chain c;
        random_chain(&c, 1);
        memo_swap_sizes sizes = sizes_of_desc(&c.desc);
        const int32_t n_places = c.desc.n_host_layers;
        const int32_t n_lacking = sizes.n_swapped_layers - n_places;
        if (!sizes.n_spilled_layers) continue;
        CHECK_IS(sizes.n_spilled_layers, ==, n_lacking + (n_places < 2 ? n_places : 2));
        start(&c, 0);
        c.n_rows = chain_rows(&c);
        CHECK_OK(chain_micro_batch(&c, 0, 1000));
        memo_swap_stats stats = stats_of_swap(c.swap);
        CHECK_CASE(stats.to_file_bytes <= sizes.spill_bytes &&
                       stats.from_file_bytes >= stats.to_file_bytes,
                   "%lld bytes are written, %lld read, of a file of %lld: %s",
                   (long long)stats.to_file_bytes, (long long)stats.from_file_bytes,
                   (long long)sizes.spill_bytes, describe(&c));
        n_files += stats.to_file_bytes > 0;
        finish(&c, NULL);
    }
    CHECK_CASE(n_files > 30, "%d files", n_files);
}

/* Random chains, several micro-batches, some given up half-way: every row comes back. */
TEST(values_come_back) {
    int64_t n_spilled = 0, n_abandoned = 0, n_tables = 0, n_of_alpha[2] = {0, 0};
    int64_t n_on_host = 0, n_short = 0;
    int64_t n_of_layers[4] = {0, 0, 0, 0};
    for (int round = 0; round < 150; round++) {
        chain c;
        int64_t n_calls;
        random_chain(&c, 1);
        if (round % 7 == 0) c.desc.spill_bytes_per_s = 8e6;
        n_of_layers[c.desc.n_layers < 4 ? c.desc.n_layers - 1 : 3]++;
        n_tables += c.has_rows;
        if (!c.has_rows && c.desc.alpha <= 0) n_of_alpha[0]++;
        if (!c.has_rows && c.desc.alpha >= 1) n_of_alpha[1]++;
        c.desc.computes_on_host = memo_test_int(0, 3) == 0;
        n_on_host += c.desc.computes_on_host;
        /* Slow copies make a missing wait visible to the eye, not only to a race detector. */
        start(&c, round % 10 ? 0 : 8e6);
        n_spilled += sizes_of_desc(&c.desc).n_spilled_layers;
        for (int64_t micro_batch = 0; micro_batch < 4; micro_batch++) {
            c.n_rows = memo_test_int(0, 1) ? chain_rows(&c) : memo_test_int(1, chain_rows(&c));
            n_short += c.n_rows < chain_rows(&c);
            if (memo_test_int(0, 4) == 0) { /* a forward that no backward follows */
                CHECK_OK(memo_swap_set_rows(c.swap, c.n_rows, 1, &error));
                CHECK_OK(chain_forward_only(&c, 100 + micro_batch));
            }
            CHECK_OK(memo_swap_set_rows(c.swap, c.n_rows, 0, &error));
            n_calls = memo_test_int(0, 2) ? 1000 : memo_test_int(0, 2 * c.desc.n_layers);
            n_abandoned += n_calls < 2 * c.desc.n_layers;
            CHECK_OK(chain_micro_batch(&c, micro_batch, n_calls));
        }
        finish(&c, NULL);
    }
    CHECK_CASE(n_spilled > 50, "only %lld layers were spilled", (long long)n_spilled);
    CHECK_CASE(n_of_layers[0] && n_of_layers[1] && n_of_layers[2] && n_of_layers[3] && n_tables &&
                   n_of_alpha[0] && n_of_alpha[1] && n_abandoned && n_on_host && n_short,
               "1, 2, 3 layers: %lld, %lld, %lld; tables: %lld; alpha 0, 1: %lld, %lld; "
               "abandoned: %lld",
               (long long)n_of_layers[0], (long long)n_of_layers[1], (long long)n_of_layers[2],
               (long long)n_tables, (long long)n_of_alpha[0], (long long)n_of_alpha[1],
               (long long)n_abandoned);
}

/* Rows known late: any routing within the declared numbers brings all rows back, without a race, in
 * memory that a plan of the balanced routing takes. */
TEST(routed_rows_come_back) {
    const int n_chains = memo_test_cases(100, 1000), n_routings = 10;
    int64_t n_surplus = 0, n_kept = 0, n_recomputed = 0, n_swapped = 0;
    for (int round = 0; round < n_chains; round++) {
        chain c;
        memo_recorder* recorder = NULL;
        random_chain(&c, 2);
        c.desc.computes_on_host = round % 5 == 4;
        if (round % 5 == 3)
            recorder = start_recorded(&c, 0);
        else
            start(&c, round % 20 ? 0 : 8e6);
        for (int i = 0; i < n_routings; i++) {
            random_routes(&c);
            c.n_rows = memo_test_int(0, 1) ? chain_rows(&c) : memo_test_int(1, chain_rows(&c));
            if (memo_test_int(0, 9) == 0) {
                CHECK_OK(memo_swap_set_rows(c.swap, c.n_rows, 1, &error));
                CHECK_OK(chain_forward_only(&c, 100 + i));
            }
            CHECK_OK(memo_swap_set_rows(c.swap, c.n_rows, 0, &error));
            CHECK_OK(chain_micro_batch(
                &c, i, memo_test_int(0, 9) ? 1000 : memo_test_int(0, 2 * c.desc.n_layers)));
            for (int32_t layer = 0; layer < c.desc.n_layers; layer++)
                for (int32_t t = 0; t < c.desc.n_tensors; t++) {
                    const memob_swap_place* place =
                        memob_swap_place_of(c.swap->placement, layer, t);
                    if (!place->is_routed) continue;
                    n_surplus +=
                        place->offset + place->n_routed * place->row_bytes > place->stack_end;
                    n_kept += place->moved_end == 0 && place->recompute_begin == place->n_routed;
                    n_swapped += place->moved_end > place->moved_begin;
                    n_recomputed += place->recompute_end > place->recompute_begin;
                }
        }
        if (recorder) memo_check_destroy(check_recorded(&c, recorder));
        finish(&c, recorder);
    }
    CHECK_CASE(n_surplus > n_chains && n_kept > n_chains && n_recomputed > n_chains &&
                   n_swapped > n_chains,
               "%lld, %lld, %lld, %lld", (long long)n_surplus, (long long)n_kept,
               (long long)n_recomputed, (long long)n_swapped);
}

TEST(bad_routings_are_refused) {
    chain c;
    chain_init(&c, 1);
    c.tensors[0].row_bytes = 8;
    item_choose(&c.tensors[0], MEMO_MOVE, MEMO_SLICE, MEMO_LATE_ROWS);
    c.desc.n_layers = 3, c.desc.n_rows = 9;
    c.desc.routed_rows_layer = 4, c.desc.routed_rows_all = 3;
    memo_swap_sizes sizes;
    CHECK_ERROR(memo_swap_desc_get_sizes(&c.desc, &sizes, &error), INVALID_ARGUMENT,
                "memo_swap_desc.routed_rows_layer: 4, routed_rows_all 3");
    c.desc.routed_rows_all = 6;
    c.desc.n_tensors = 2;
    c.tensors[1].row_bytes = 8;
    c.tensors[1].away = MEMO_WITH;
    CHECK_ERROR(memo_swap_desc_get_sizes(&c.desc, &sizes, &error), INVALID_ARGUMENT,
                "memo_swap_desc.tensors[1] (unnamed): the MEMO_EDGE, MEMO_INPUT or MEMO_LATE_ROWS "
                "before it is made alone");
    c.desc.n_tensors = 1;
    start(&c, 0);
    CHECK_OK(memo_swap_forward_begin(c.swap, 0, &error));
    CHECK_ERROR(chain_route(&c, 0, 5), INVALID_ARGUMENT,
                "memo_session_set_routed.n_rows: out of range (5); 0 to 4 are valid");
    CHECK(!memo_swap_get_address(c.swap, 0, 0));
    CHECK_OK(chain_route(&c, 0, 4));
    CHECK(memo_swap_get_address(c.swap, 0, 0) != NULL);
    CHECK_FAILS(memo_swap_forward_begin(c.swap, 1, &error), INVALID_STATE);
    CHECK_OK(memo_swap_forward_end(c.swap, 0, &error));
    CHECK_OK(memo_swap_forward_begin(c.swap, 1, &error));
    CHECK_ERROR(chain_route(&c, 1, 3), INVALID_ARGUMENT,
                "memo_session_set_routed.n_rows so far: out of range (7); 0 to 6 are valid");
    finish(&c, NULL);
}

/* Device memory is the rows of the steps that are kept, and of the worst layer. */
TEST(routed_rows_take_what_is_planned) {
    enum { N = 16, W = 900, ALL = 4000, BYTES = 2048 };
    for (int k = 0; k <= N; k++) {
        chain c;
        chain_init(&c, 1);
        c.tensors[0].row_bytes = BYTES;
        item_choose(&c.tensors[0], MEMO_MOVE, MEMO_SLICE, MEMO_LATE_ROWS);
        c.desc.n_layers = N, c.desc.n_rows = 500;
        c.desc.routed_rows_layer = W, c.desc.routed_rows_all = ALL;
        for (int i = 0; i < N; i++) c.rows[i] = i < k ? MEMO_ROWS_KEPT : 500;
        c.desc.rows = c.rows;
        memo_swap_sizes sizes = sizes_of_desc(&c.desc);
        CHECK_CASE((double)sizes.device_bytes <= 1.05 * (W + (double)ALL * k / N) * BYTES,
                   "%d layers kept: %lld bytes", k, (long long)sizes.device_bytes);
        CHECK_CASE((double)sizes.host_bytes <= 1.05 * (ALL - (double)ALL * k / N) * BYTES + 20000,
                   "%d layers kept: %lld bytes", k, (long long)sizes.host_bytes);
    }
}

/* Fused kernels: two layers are open at a time, values come back, and the enqueued operations have
 * no race. */
TEST(fused_layers_are_ordered) {
    for (int round = 0; round < 100 / SHARE; round++) {
        chain c;
        random_chain(&c, 0);
        memo_recorder* recorder = start_recorded(&c, round % 10 ? 0 : 8e6);
        for (int64_t micro_batch = 0; micro_batch < 3; micro_batch++)
            CHECK_OK(chain_fused_micro_batch(&c, micro_batch));
        memo_check_destroy(check_recorded(&c, recorder));
        finish(&c, recorder);
    }
}

/* The table that is in force. */
static int64_t cell(const chain* c, int32_t layer, int32_t t) {
    static int64_t rows[CHAIN_LAYERS_MAX * CHAIN_TENSORS_MAX];
    if (!chain_has(c, layer, t)) return MEMO_ROWS_KEPT;
    if (c->has_rows) return c->rows[layer * c->desc.n_tensors + t];
    CHECK_OK(memob_swap_fill_rows(&c->desc, rows, &error));
    return rows[layer * c->desc.n_tensors + t];
}

/* Does row of tensor t stay at its place from the forward of layer to its backward, neither swapped
 * nor recomputed? */
static int stays(const chain* c, int32_t layer, int32_t t, int64_t row) {
    int64_t begin, end, swapped = cell(c, layer, t), moved;
    memo_swap_get_recompute_rows(c->swap, layer, t, &begin, &end);
    if (row >= begin && row < end) return 0;
    moved = first_swapped_row(layer, c->desc.n_rows, swapped);
    if (swapped == MEMO_ROWS_KEPT || row < moved || row >= moved + swapped) return 1;
    for (int32_t j = layer + 2; j < c->desc.n_layers; j += 2)
        for (int32_t u = 0; u < c->desc.n_tensors; u++)
            if (cell(c, j, u) > 0 || (cell(c, j, u) == 0 && c->tensors[u].kinds)) return 0;
    return 1;
}

/* Bytes of tensors that must hold their rows at the same time are never shared, and every address
 * is a multiple of 512. */
TEST(places_are_disjoint) {
    for (int round = 0; round < 200; round++) {
        chain c;
        random_chain(&c, 0);
        start(&c, 0);
        for (int32_t i = 0; i < c.desc.n_layers; i++) {
            for (int32_t t = 0; t < c.desc.n_tensors; t++) {
                uint64_t address = (uint64_t)(uintptr_t)memo_swap_get_address(c.swap, i, t);
                CHECK_CASE(address % 512 == 0 && (address == 0) == !chain_has(&c, i, t), "%llx",
                           (unsigned long long)address);
                for (int64_t row = 0; row < c.desc.n_rows && address; row++) {
                    memo_range a = chain_range(&c, i, t, row, row + 1);
                    if (a.begin == a.end) break;
                    int is_there = stays(&c, i, t, row);
                    /* In its own layer every row has separate bytes; in later layers only the rows
                     * that stay. */
                    for (int32_t j = i; j < c.desc.n_layers && (j == i || is_there); j++) {
                        for (int32_t u = 0; u < c.desc.n_tensors; u++) {
                            memo_range b = chain_range(&c, j, u, 0, c.desc.n_rows);
                            if ((i == j && t == u) || b.begin == b.end) continue;
                            CHECK_CASE(a.end <= b.begin || a.begin >= b.end,
                                       "row %lld of layer %d tensor %d, and layer %d tensor %d: %s",
                                       (long long)row, (int)i, (int)t, (int)j, (int)u,
                                       describe(&c));
                        }
                    }
                }
            }
        }
        finish(&c, NULL);
    }
}

/* Asked of the desc before an engine exists, and of the engine: the same rows, and the right
 * ones. */
TEST(rows_to_recompute_are_known_before) {
    int64_t n_needed = 0, n_needless = 0;
    for (int round = 0; round < 200; round++) {
        chain c;
        random_chain(&c, 0);
        start(&c, 0);
        for (int32_t layer = 0; layer < c.desc.n_layers; layer++) {
            for (int32_t t = 0; t < c.desc.n_tensors; t++) {
                int64_t begin, end, n = c.desc.n_rows;
                int64_t swapped = cell(&c, layer, t), n_expected = 0;
                memo_swap_get_recompute_rows(c.swap, layer, t, &begin, &end);
                /* Recomputed if a later layer writes over any of their bytes; never in the last. */
                for (int32_t later = layer + 1; later < c.desc.n_layers; later++)
                    for (int32_t u = 0; u < c.desc.n_tensors; u++) {
                        int64_t first = first_other_row(layer, swapped);
                        memo_range mine = chain_range(&c, layer, t, first, first + n - swapped);
                        memo_range theirs = chain_range(&c, later, u, 0, n);
                        if (swapped >= 0 && swapped < n && cell(&c, later, u) >= 0 &&
                            mine.begin < theirs.end && theirs.begin < mine.end)
                            n_expected = n - swapped;
                    }
                CHECK_CASE(end - begin >= n_expected, "%s", describe(&c));
                CHECK_CASE(end == begin || end - begin == n - swapped, "%s", describe(&c));
                CHECK(layer + 1 < c.desc.n_layers || begin == end);
                n_needless += end - begin > n_expected;
                n_needed += n_expected > 0;
                CHECK_CASE(!n_expected || begin == first_other_row(layer, swapped), "%s",
                           describe(&c));
            }
        }
        finish(&c, NULL);
    }
    CHECK_CASE(n_needed > 100 && n_needless < n_needed / 4, "%lld needed, %lld needless",
               (long long)n_needed, (long long)n_needless);
}

/* --- sizes --- */

TEST(sizes_follow_the_formulas) {
    const int64_t h = 512, s = 4096;
    for (int eighths = 0; eighths <= 8; eighths++) {
        chain c;
        double alpha = eighths / 8.0;
        gpt_table(&c, h, 32, s);
        c.desc.alpha = alpha;
        c.desc.tile_rows = 64;
        memo_swap_sizes sizes = sizes_of_desc(&c.desc);
        CHECK_IS(sizes.layer_bytes, ==, 16 * s * h);
        CHECK_IS(sizes.alpha, ==, alpha);
        CHECK_IS(sizes.device_bytes, ==, (int64_t)((18 + 14 * alpha) * (double)(s * h)));
        CHECK_IS(sizes.layer_swapped_bytes, ==, (int64_t)((2 + 14 * alpha) * (double)(s * h)));
        CHECK_IS(sizes.n_swapped_layers, ==, 30);
        CHECK_IS(sizes.host_bytes, ==, 30 * sizes.layer_swapped_bytes);
    }
}

/* Device memory of a slice does not depend on the length, beside what later slices read; a host
 * device that has no more is enough. */
TEST(slices_take_what_the_formula_says) {
    for (int32_t n_slices = 2; n_slices <= 5; n_slices++) {
        const int64_t length = n_slices * 8 - memo_test_int(0, 7), keeps = memo_test_int(0, 3);
        chain c, one;
        gpt_table(&c, 512, 4, 8);
        c.desc.alpha = (double)memo_test_int(0, 4) / 4;
        one = c;
        one.desc.tensors = one.tensors;
        for (int32_t t = 3; t < 6; t++) one.tensors[t].row_bytes = 0;
        memo_swap_sizes slice = sizes_of_desc(&one.desc);
        item_choose(&c.tensors[0], MEMO_MOVE, MEMO_INPUT, 0);
        item_choose(&c.tensors[3], MEMO_MOVE, MEMO_EDGE, 0);
        for (int32_t t = 4; t < 6; t++) item_choose(&c.tensors[t], MEMO_MOVE, MEMO_LAYER, 0);
        c.desc.n_layers = 4 * n_slices;
        c.desc.n_slices = n_slices;
        c.desc.layer_rows = length;
        CHECK_OK(memob_swap_fill_rows(&c.desc, c.rows, &error));
        c.has_rows = 1;
        c.desc.rows = c.rows;
        for (int32_t step = 0; step < 2 * n_slices; step++) /* of the first two layers */
            if (keeps >> step / n_slices & 1) c.rows[step * c.desc.n_tensors + 4] = MEMO_ROWS_KEPT;
        memo_swap_sizes sizes = sizes_of_desc(&c.desc);
        CHECK_IS(sizes.device_bytes, ==,
                 slice.device_bytes + 2 * 512 * (2 * length + 8) +
                     ((keeps & 1) + (keeps >> 1)) * 512 * length);
        CHECK_IS(sizes.host_bytes, <=,
                 (4 * n_slices - 2) * slice.layer_swapped_bytes + 512 * (2 * 2 * length + length) +
                     4096);

        c.device = c.host =
            new_device((memo_host_device_desc){.device_memory_bytes = sizes.device_bytes});
        CHECK_OK(chain_open(&c));
        CHECK_OK(chain_micro_batch(&c, 0, 1000));
        finish(&c, NULL);
    }
}

/* EDGE and INPUT tensors of 0 bytes, before and behind those that have some, take no place. */
TEST(absent_handed_tensors_take_no_place) {
    for (int32_t absent = 0; absent < 2; absent++) {
        chain c;
        gpt_table(&c, 64, 6, 8);
        c.desc.n_slices = 3;
        for (int32_t t = 0; t < 4; t++) {
            item_choose(&c.tensors[t], MEMO_MOVE, t % 2 ? MEMO_INPUT : MEMO_EDGE, 0);
            c.tensors[t].row_bytes = t / 2 == absent ? 0 : 512; /* three pages of a layer */
        }
        start(&c, 0);
        CHECK_OK(chain_micro_batch(&c, 0, 1000));
        finish(&c, NULL);
    }
}

/* A desc of slices that cannot be meant is refused with what would work. */
TEST(bad_slices_are_refused) {
    static const char* const words[] = {
        "whole layers",          "split a tile", "are not 3 slices",       "each of one item",
        "of which it is a copy", "same kind",    "all slices of the layer"};
    memo_swap_sizes sizes;
    for (int k = 0; k < 7; k++) {
        chain c;
        gpt_table(&c, 64, 6, 8);
        c.desc.n_slices = 3;
        item_choose(&c.tensors[0], MEMO_MOVE, MEMO_EDGE, 0);
        item_choose(&c.tensors[1], MEMO_MOVE, MEMO_INPUT, 0);
        item_choose(&c.tensors[2], MEMO_MOVE, MEMO_LAYER, 0);
        CHECK_OK(memo_swap_desc_get_sizes(&c.desc, &sizes, &error));
        if (k == 0) c.desc.n_layers = 7;
        if (k == 1) c.desc.tile_rows = 3;
        if (k == 2) c.desc.layer_rows = 16;
        if (k == 3) c.tensors[2].scope = MEMO_INPUT;
        if (k == 4) c.tensors[1].row_bytes++;
        c.layer_kinds[1] = k == 5;
        if (k == 5) c.desc.layer_kinds = c.layer_kinds;
        CHECK_OK(k == 6 ? memob_swap_fill_rows(&c.desc, c.rows, &error) : MEMO_STATUS_OK);
        if (k == 6) c.desc.rows = c.rows;
        c.rows[2] = MEMO_ROWS_KEPT;
        refuses(&c.desc, words[k]);
    }
}

/* Sizes that are no multiples of 512: at most 1 KiB a tensor more than its rows. */
TEST(alignment_costs_little) {
    for (int round = 0; round < 200; round++) {
        chain c;
        int32_t n_tensors = CHAIN_TENSORS_MAX;
        int64_t rows_bytes = 0, swapped;
        gpt_table(&c, memo_test_int(1, 100), 7, 1);
        c.desc.n_rows = 10 * memo_test_int(1, 50);
        c.desc.tile_rows = 10;
        c.desc.alpha = memo_test_real();
        memo_swap_sizes sizes = sizes_of_desc(&c.desc);
        for (int32_t t = 0; t < n_tensors; t++) {
            swapped = cell(&c, 0, t);
            rows_bytes += (c.desc.n_rows + swapped) * c.tensors[t].row_bytes;
        }
        CHECK_CASE(sizes.device_bytes >= rows_bytes &&
                       sizes.device_bytes <= rows_bytes + n_tensors * 1536,
                   "%lld, rows %lld", (long long)sizes.device_bytes, (long long)rows_bytes);
    }
}

TEST(bad_descs_are_refused) {
    chain c;
    gpt_table(&c, 64, 4, 8);
    memo_swap_sizes sizes = sizes_of_desc(&c.desc);
    WITH(c.desc.alpha, 1.5, refuses(&c.desc, "1.5"));
    WITH(c.desc.alpha, memo_test_nan(), refuses(&c.desc, "alpha"));
    WITH(c.desc.n_rows, 0, refuses(&c.desc, "n_rows"));
    WITH(c.desc.n_rows, INT64_MAX / 2, refuses(&c.desc, "2^58"));
    WITH(c.tensors[3].row_bytes, -1, refuses(&c.desc, "tensors[3].row_bytes"));
    for (int32_t away = MEMO_KEEP; away < MEMO_N_AWAYS; away++) {
        const memo_item item = c.tensors[3];
        item_choose(&c.tensors[3], away, MEMO_SLICE, MEMO_BY_BACKWARD);
        if (away == MEMO_ROWS || away == MEMO_WHOLE)
            (void)sizes_of_desc(&c.desc);
        else
            refuses(&c.desc, away == MEMO_WITH ? "a MEMO_WITH item has the scope and the rows of"
                                               : "MEMO_BY_BACKWARD works with MEMO_ROWS and");
        c.tensors[3].is = 4;
        refuses(&c.desc, "is: invalid; sums of MEMO_LATE_ROWS and MEMO_BY_BACKWARD are valid");
        c.tensors[3] = item;
    }
    c.desc.tile_rows = -1;
    CHECK_IS(memo_swap_desc_get_sizes(&c.desc, &sizes, NULL), ==, MEMO_STATUS_INVALID_ARGUMENT);
}

TEST(calls_out_of_order_are_refused) {
    chain c;
    gpt_table(&c, 16, 3, 8);
    start(&c, 0);
    CHECK_ERROR(memo_swap_forward_begin(c.swap, 1, &error), INVALID_STATE,
                "forward_begin(0) comes next");
    CHECK_IS(memo_swap_backward_begin(c.swap, 2, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_IS(memo_swap_forward_end(c.swap, 0, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_ERROR(memo_swap_set_rows(c.swap, 9, 0, &error), INVALID_ARGUMENT,
                "out of range (9); 1 to 8");
    CHECK_OK(memo_swap_forward_begin(c.swap, 0, &error));
    CHECK_IS(memo_swap_set_rows(c.swap, 8, 0, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_swap_forward_begin(c.swap, 1, &error));
    CHECK_ERROR(memo_swap_forward_begin(c.swap, 2, &error), INVALID_STATE,
                "forward_end(0) comes next");
    CHECK_IS(memo_swap_forward_end(c.swap, 1, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_swap_abandon(c.swap, &error));
    CHECK_OK(chain_forward(&c, 0, 0));
    CHECK_IS(memo_swap_forward_begin(c.swap, 0, &error), ==, MEMO_STATUS_INVALID_STATE);
    CHECK_OK(memo_swap_abandon(c.swap, &error));
    CHECK_OK(chain_micro_batch(&c, 1, 1000));
    finish(&c, NULL);
}

/* --- order of the operations that were enqueued --- */

/* The law has no transfer without bytes, which the engine would leave out: others would then wait
 * for more than they need. */
TEST(transfers_have_bytes) {
    int64_t n_transfers = 0;
    memo_device* host = new_host(0);
    for (int round = 0; round < 1000; round++) {
        chain c;
        random_chain(&c, 1);
        c.desc.device = host;
        if (chain_rows(&c) < chain_slices(&c) * c.desc.n_rows) continue;
        c.desc.rows = c.has_rows ? c.rows : NULL;
        c.desc.spill_directory = NULL;
        CHECK_OK(memob_swap_create(&c.desc, 1, NULL, NULL, &c.swap, &error));
        const memob_law* law = &c.swap->law;
        const int64_t* copied_bytes = c.swap->own_sink.engine.memory.copied_bytes;
        for (int32_t k = 0; k < law->n_ops; k++) {
            const int32_t kind = law->ops[k].kind;
            const int64_t before_bytes = copied_bytes[0] + copied_bytes[1];
            if (kind != MEMOB_OP_STORE && kind != MEMOB_OP_LOAD) continue;
            memoi_moves_enqueue(c.swap->sink, &c.swap->rows.of, &c.swap->rows.moves, &law->ops[k]);
            CHECK_CASE(copied_bytes[0] + copied_bytes[1] > before_bytes, "round %d: %s", round,
                       describe(&c));
            n_transfers++;
        }
        memo_swap_destroy(c.swap);
    }
    CHECK_IS(n_transfers, >, 2000);
    drop_device(&host);
}

/* The recorded schedule of random chains has no race and no redundant wait, whatever the table of
 * rows. */
TEST(recorded_steps_are_ordered) {
    int64_t n_waits = 0, n_short = 0, n_redundant = 0; /* the last two: with a short last slice */
    for (int round = 0; round < 100; round++) {
        chain c;
        int64_t abandoned = 0;
        random_chain(&c, 1);
        memo_recorder* recorder = start_recorded(&c, 0);
        for (int64_t micro_batch = 0; micro_batch < 3; micro_batch++) {
            int64_t n_calls = memo_test_int(0, 4) ? 1000 : memo_test_int(0, 2 * c.desc.n_layers);
            abandoned += n_calls < 2 * c.desc.n_layers;
            CHECK_OK(chain_micro_batch(&c, micro_batch, n_calls));
        }
        own_check* check = check_recorded(&c, recorder);
        /* memo_swap_abandon makes the compute stream wait for all copies.  A short last slice
         * leaves bytes alone for which the law waits, see memo.h. */
        const int is_short = chain_rows(&c) < chain_slices(&c) * c.desc.n_rows;
        CHECK_CASE(abandoned || is_short || check->n_redundant_waits == 0,
                   "round %d: %lld of %lld waits: %s", round, (long long)check->n_redundant_waits,
                   (long long)check->n_waits, describe(&c));
        n_waits += check->n_waits;
        if (!abandoned && is_short) {
            n_short += check->n_waits;
            n_redundant += check->n_redundant_waits;
        }
        finish(&c, recorder);
    }
    CHECK_IS(n_waits, >, 500);
    CHECK_CASE(100 * n_redundant <= n_short, "%lld of %lld waits are redundant",
               (long long)n_redundant, (long long)n_short);
}

/* Hides the k-th wait of the engine from the recorder: made, but not written down. */
static struct {
    const memo_device *recording, *host;
    int64_t n_waits, dropped;
} dropping;

static memo_status dropping_wait(void* context, memo_event event, memo_stream stream,
                                 memo_error* e) {
    if (dropping.n_waits++ == dropping.dropped)
        return memo_event_wait(dropping.host, event, stream, e);
    return dropping.recording->event_wait(context, event, stream, e);
}

/* Runs complete micro-batches without wait `dropped` (-1: none) and compares the recording with
 * memo_swap_generate.  *n_waits: the number of the engine's waits. */
static memo_status run_and_compare(chain* c, int32_t n_micro_batches, int64_t dropped,
                                   int64_t* n_waits) {
    memo_recorder* recorder = start_recorded(c, 0);
    const memo_swap_plan_desc step = {.swap = &c->desc, .micro_batches = n_micro_batches};
    own_schedule* promised = schedule_of_swap(&step, 1);
    dropping.recording = c->device;
    dropping.host = c->host;
    dropping.n_waits = 0;
    dropping.dropped = dropped;
    c->swap->sink->engine.device.event_wait = dropping_wait;
    for (int32_t i = 0; i < n_micro_batches; i++) CHECK_OK(chain_micro_batch(c, i, 1000));
    memo_schedule* recorded = NULL;
    CHECK_OK(memo_recorder_get_schedule(recorder, &recorded, &error));
    memo_status status = memo_schedule_compare(promised, recorded, &error);
    own_check* check = check_of(promised);
    CHECK_CASE(check->n_races == 0 && check->n_unrecorded_waits == 0, "%s", describe(c));
    if (n_waits) *n_waits = check->n_waits;
    finish(c, recorder);
    return status;
}

/* Over random chains: operation by operation, dependency by dependency. */
TEST(the_engine_does_what_was_promised) {
    for (int round = 0; round < 200 / SHARE; round++) {
        chain c;
        int32_t n_micro_batches = (int32_t)memo_test_int(1, 3);
        random_chain(&c, (int)memo_test_int(1, 2));
        for (int32_t layer = 0; layer < c.desc.n_layers; layer++) /* as in the schedule */
            c.routed[layer] =
                memob_min(c.desc.routed_rows_layer, c.desc.routed_rows_all / c.desc.n_layers);
        c.desc.is_timed = (int32_t)memo_test_int(0, 1);
        CHECK_CASE(run_and_compare(&c, n_micro_batches, -1, NULL) == MEMO_STATUS_OK,
                   "round %d: %s: %s", round, error.message, describe(&c));
    }
}

/* A wait that the engine leaves out is noticed, whichever it is. */
TEST(a_broken_promise_is_noticed) {
    int64_t n_waits = 0, n_noticed = 0;
    chain c;
    do {
        random_chain(&c, 0);
        c.desc.n_layers = 5;
        c.desc.is_timed = 0;
        c.has_rows = c.has_kinds = 0;
        chain_set_kinds(&c);
        c.desc.rows = NULL;
        c.desc.n_host_layers = 1;
        c.desc.spill_directory = chain_folder();
        CHECK_OK(run_and_compare(&c, 1, -1, &n_waits));
    } while (!n_waits);
    CHECK_IS(n_waits, ==, 4 * 3 + 4 * 2);
    for (int64_t k = 0; k < n_waits; k++)
        n_noticed += run_and_compare(&c, 1, k, NULL) == MEMO_STATUS_INVALID_ARGUMENT;
    CHECK_CASE(n_noticed == n_waits, "%lld of %lld", (long long)n_noticed, (long long)n_waits);
}

/* Slices stay, but for those of a group.  With one slice an EDGE moves if there is a loss. */
static void set_random_order(chain* c) {
    const int32_t n_slices = chain_batch_slices(c), t = (int32_t)memo_test_int(0, 7);
    int is_free = t < c->desc.n_tensors && item_is_alone(c->tensors, c->desc.n_tensors, t);
    for (int32_t u = 0; u < c->desc.n_tensors; u++)
        is_free &= c->tensors[u].scope != MEMO_EDGE && c->tensors[u].scope != MEMO_INPUT;
    c->desc.n_group = 0;
    c->desc.n_slices = n_slices > 1 ? n_slices : 0;
    c->desc.n_order = random_order(c->order, &c->desc.n_places);
    const int32_t most = CHAIN_LAYERS_MAX / n_slices / c->desc.n_places;
    c->desc.n_layers = n_slices * c->desc.n_places * (int32_t)memo_test_int(1, most < 4 ? most : 4);
    c->desc.has_loss = (int32_t)memo_test_int(0, 1);
    if (n_slices == 1 && c->desc.has_loss && is_free)
        item_choose(&c->tensors[t], MEMO_MOVE, MEMO_EDGE, 0);
    for (int32_t k = 0; k < c->desc.n_order; k++) c->ends[k] = memo_test_int(0, 2) != 0;
    if (c->has_kinds) random_kinds(c);
    if (c->has_rows) random_table(c);
}

/* Rows of a tensor that the places of an order take, by the formula of the header: in each region
 * the most of any step, and n_rows for each step that keeps the tensor.  LAYER: of whole layers. */
static int64_t rows_in_flight(const chain* c, int32_t t) {
    const int32_t n_slices = chain_is_layer(c, t) ? chain_slices(c) : 1;
    const int32_t n = c->desc.n_layers / c->desc.n_places;
    const int64_t n_rows = n_slices > 1 ? chain_rows(c) : c->desc.n_rows;
    int64_t most[2] = {0, 0}, scratch = 0, kept = 0;
    if (c->tensors[t].scope == MEMO_EDGE)
        return n_rows * (chain_slices(c) > 1 || (c->desc.has_loss && c->desc.n_places > 1) ? 2 : 1);
    for (int32_t step = 0; step < c->desc.n_layers; step += n_slices) {
        const int64_t swapped = cell(c, step, t), others = n_slices > 1 ? 0 : n_rows - swapped;
        const int32_t odd = (step / n + step % n / n_slices) % 2; /* first layers alternate too */
        const int64_t taken = n_slices > 1 ? n_rows : swapped;
        if (swapped < 0) {
            kept += n_rows;
            continue;
        }
        if (taken > most[odd]) most[odd] = taken;
        if (others > scratch) scratch = others;
    }
    return most[0] + scratch + most[1] + kept;
}

/* A whole chain, in multiples of 512 bytes. */
static int64_t bytes_in_flight(const chain* c) {
    int64_t sum = 0;
    for (int32_t t = 0; t < c->desc.n_tensors; t++)
        sum += rows_in_flight(c, t) * c->tensors[t].row_bytes;
    return sum;
}

/* Pages of the file that operations use: what is written is read before it is written again.
 * Returns the bytes that are written. */
static int64_t check_file(const memo_schedule* schedule, int64_t file_bytes) {
    static char is_written[1 << 16], is_read[1 << 16];
    const int64_t n_pages = file_bytes / 4096;
    int64_t sum = 0;
    CHECK(file_bytes % 4096 == 0 && n_pages <= (int64_t)sizeof is_written);
    memset(is_written, 0, sizeof is_written);
    memset(is_read, 0, sizeof is_read);
    for (int64_t k = 0; k < schedule->n_ops; k++) {
        const memo_op* op = &schedule->ops[k];
        for (int64_t r = 0; r < op->n_reads + op->n_writes && op->kind == MEMO_OP_RUN; r++) {
            const memo_range* range = &schedule->ranges[op->first_range + r];
            const int64_t begin = (int64_t)(range->begin & (((uint64_t)1 << 48) - 1));
            const int64_t n_bytes = (int64_t)(range->end - range->begin);
            if (!(range->begin >> 63)) continue;
            CHECK(begin % 4096 == 0 && begin + n_bytes <= file_bytes);
            for (int64_t at = begin / 4096; at < (begin + n_bytes) / 4096; at++) {
                if (r < op->n_reads) {
                    CHECK(is_written[at]);
                    is_read[at] = 1;
                } else {
                    CHECK(is_written[at] == is_read[at]);
                    is_written[at] = 1, is_read[at] = 0;
                }
            }
            if (r >= op->n_reads) sum += n_bytes;
        }
    }
    for (int64_t at = 0; at < n_pages; at++) CHECK(is_written[at] == is_read[at]);
    return sum;
}

TEST(micro_batches_in_flight_come_back) {
    int64_t n_moved = 0, n_abandoned = 0, n_deep = 0, n_spilled = 0, n_again = 0;
    int64_t n_waits = 0, n_redundant = 0, n_sliced = 0, n_handed = 0, n_whole = 0;
    for (int round = 0; round < 400 / SHARE; round++) {
        chain c;
        int is_whole = 1;
        random_chain(&c, 1);
        set_random_order(&c);
        n_deep += c.desc.n_places > 2;
        n_sliced += c.desc.n_slices > 1 && c.desc.n_places > 1;
        memo_recorder* recorder = start_recorded(&c, round % 10 ? 0 : 8e6);
        const memo_swap_sizes sizes = sizes_of_desc(&c.desc);
        n_moved += sizes.swapped_bytes > 0;
        n_handed += c.swap->placement->handed >= 0 && c.desc.n_places > 1;
        n_whole += c.swap->placement->handed >= 0 && !c.desc.n_slices;
        for (int64_t step = 0; step < 3; step++) {
            int64_t n_calls = memo_test_int(0, 3) ? 1000 : memo_test_int(0, 40);
            n_abandoned += n_calls < 40;
            c.n_rows = memo_test_int(0, 2) ? chain_rows(&c) : memo_test_int(1, chain_rows(&c));
            is_whole &= n_calls == 1000 && c.n_rows == chain_slices(&c) * c.desc.n_rows;
            CHECK_OK(memo_swap_set_rows(c.swap, c.n_rows, 0, &error));
            CHECK_OK(chain_micro_batch(&c, step, n_calls));
        }
        own_check* check = check_recorded(&c, recorder);
        /* By a table, the packs of two layers may have no byte in common. */
        const int has_packs = c.has_rows && c.has_kinds;
        CHECK_CASE(!is_whole || has_packs || check->n_redundant_waits == 0,
                   "round %d: %lld of %lld waits: %s", round, (long long)check->n_redundant_waits,
                   (long long)check->n_waits, describe(&c));
        if (is_whole && has_packs) {
            CHECK_IS(5 * check->n_redundant_waits, <=, check->n_waits);
            n_waits += check->n_waits;
            n_redundant += check->n_redundant_waits;
        }
        const int64_t written_bytes = stats_of_swap(c.swap).to_file_bytes;
        finish(&c, recorder);

        /* The file holds each of its layers once, also if a list writes it several times. */
        const memo_swap_plan_desc step = {.swap = &c.desc, .micro_batches = 1};
        own_schedule* schedule = schedule_of_swap(&step, 3);
        const int64_t sum = check_file(schedule, sizes.spill_bytes);
        CHECK_CASE(is_whole ? written_bytes == sum : written_bytes <= sum,
                   "round %d: %lld bytes are written, not %lld: %s", round,
                   (long long)written_bytes, (long long)sum, describe(&c));
        n_spilled += sizes.n_spilled_layers;
        n_again += sum > 3 * sizes.spill_bytes;
        CHECK_CASE(run_and_compare(&c, 2, -1, NULL) == MEMO_STATUS_OK, "round %d: %s: %s", round,
                   error.message, describe(&c));
    }
    printf("# %lld layers go to the file, %lld files are written several times in an order; "
           "%lld of %lld waits for packs are redundant\n",
           (long long)n_spilled, (long long)n_again, (long long)n_redundant, (long long)n_waits);
    CHECK(n_moved > 60 / SHARE && n_abandoned > 20 / SHARE && n_deep > 40 / SHARE);
    CHECK(n_sliced > 60 / SHARE && n_handed > 60 / SHARE && n_whole > 15 / SHARE);
    CHECK(n_spilled > 200 / SHARE && n_again > 20 / SHARE);

    for (int round = 0; round < 500; round++) {
        chain c;
        random_chain(&c, 1);
        set_random_order(&c);
        c.desc.n_host_layers = 0;
        c.has_kinds = c.has_rows = 0;
        chain_set_kinds(&c);
        for (int32_t t = 0; t < c.desc.n_tensors; t++) {
            const int32_t scope = c.tensors[t].scope;
            c.tensors[t].row_bytes = 512 * memo_test_int(1, 3);
            if (scope != MEMO_EDGE)
                item_choose(&c.tensors[t], random_away(4),
                            scope == MEMO_LAYER ? MEMO_LAYER : MEMO_SLICE, 0);
        }
        random_table(&c);
        c.desc.rows = c.rows, c.desc.order = c.order;
        memo_swap_sizes sizes = sizes_of_desc(&c.desc);
        CHECK_IS(sizes.device_bytes, ==, bytes_in_flight(&c));
    }
}

/* The rows of place 1 that a short micro-batch has are recomputed, and none comes back.  They lie
 * where rows of place 3 still leave, for which the backward waits all the same. */
TEST(short_micro_batches_in_flight_wait) {
    static const int32_t order[] = {0, 1, 2, 3, -2, -4, -1, -3};
    static const int64_t rows[] = {8, 1, 8, 8};
    chain c;
    chain_init(&c, 1);
    c.tensors[0].row_bytes = 512;
    c.has_kinds = c.has_rows = 1;
    c.tensors[0].kinds = 1;
    c.desc.n_layers = c.desc.n_places = 4, c.desc.n_rows = 8;
    c.desc.n_order = 8;
    memcpy(c.order, order, sizeof order);
    memcpy(c.rows, rows, sizeof rows);
    memo_recorder* recorder = start_recorded(&c, 8e6);
    c.n_rows = 4;
    CHECK_OK(memo_swap_set_rows(c.swap, c.n_rows, 0, &error));
    CHECK_OK(chain_micro_batch(&c, 0, 1000));
    memo_check_destroy(check_recorded(&c, recorder));
    finish(&c, recorder);
}

/* A chain of an EDGE alone, of which three places are in flight at once. */
static void edge_chain(chain* c, int64_t row_bytes, int32_t n_layers, int32_t has_loss) {
    static const int32_t order[] = {0, 1, 2, -1, -2, -3};
    chain_init(c, 1);
    c->tensors[0].row_bytes = row_bytes;
    item_choose(&c->tensors[0], MEMO_MOVE, MEMO_EDGE, 0);
    c->desc.n_layers = n_layers, c->desc.n_rows = 8, c->desc.n_places = 3;
    c->desc.has_loss = has_loss;
    c->desc.n_order = 6;
    memcpy(c->order, order, sizeof order);
}

/* Of places 0 and 2, which share an address, the last outputs wait on the host, but not those of
 * turns whose backward begins with a gradient that comes from elsewhere. */
TEST(only_the_loss_brings_outputs_back) {
    for (int32_t ends = 0; ends < 8; ends++) {
        chain c;
        edge_chain(&c, 8, 6, 1);
        for (int32_t k = 0; k < 6; k++) c.ends[k] = ends >> k % 3 & 1;
        start(&c, 0);
        CHECK_OK(chain_micro_batch(&c, 0, 1000));
        const memo_swap_stats stats = stats_of_swap(c.swap);
        CHECK_IS(stats.to_host_bytes, ==, 64 * ((ends & 1) + (ends >> 2)));
        CHECK_IS(stats.to_device_bytes, ==, stats.to_host_bytes);
        finish(&c, NULL);
    }

    /* In slices rows wait on the host between two layers, too: those of one place at a time, unless
     * outputs wait. */
    for (int32_t has_loss = 0; has_loss < 2; has_loss++) {
        chain c;
        edge_chain(&c, 512, 24, has_loss);
        c.desc.n_slices = 4;
        for (int32_t k = 0; k < 6; k++) c.ends[k] = 1;
        start(&c, 0);
        CHECK_IS(sizes_of_desc(&c.desc).host_bytes, ==, (has_loss ? 3 : 1) * 4 * 8 * 512);
        CHECK_OK(chain_micro_batch(&c, 0, 1000));
        finish(&c, NULL);
    }
}

TEST(bad_orders_are_refused) {
    static const struct {
        const char* words;
        int32_t n_places, n, order[6];
    } bad[] = {{"n_places: 3, but", 3, 2, {0, -1}},
               {"names a place", 2, 4, {0, 1, -1, -3}},
               {"has two forwards of a place", 2, 4, {0, 0, -1, -1}},
               {"has a backward of a place without a forward", 2, 4, {0, -1, -1, 1}},
               {"ends before the last backward", 2, 3, {0, 1, -1}},
               {"leaves out a place", 2, 2, {0, -1}},
               {"2 steps are not whole layers of 4 slices", 2, 4, {0, 1, -1, -2}},
               {"does not work with MEMO_LATE_ROWS", 2, 4, {0, 1, -1, -2}},
               {"does not work with n_group", 2, 4, {0, 1, -1, -2}}};
    for (int k = 0; k < 9; k++) {
        chain c;
        chain_init(&c, 1);
        c.tensors[0].row_bytes = 8;
        c.desc.n_layers = 4, c.desc.n_rows = 8;
        c.desc.n_places = bad[k].n_places;
        c.desc.n_order = bad[k].n;
        c.desc.order = bad[k].order;
        if (k == 6) c.desc.n_slices = 4;
        if (k == 8) c.desc.n_slices = c.desc.n_group = 2;
        if (k == 7) item_choose(&c.tensors[0], MEMO_MOVE, MEMO_SLICE, MEMO_LATE_ROWS);
        if (k == 7) c.desc.routed_rows_layer = c.desc.routed_rows_all = 4;
        refuses(&c.desc, bad[k].words);
        if (!k) continue; /* the number of places is wrong */
        c.desc.n_order = INT32_MAX;
        refuses(&c.desc, "is NULL or too long");
        c.desc.n_order = bad[k].n, c.desc.order = NULL;
        refuses(&c.desc, "is NULL or too long");
    }
    chain c;
    chain_init(&c, 1);
    c.tensors[0].row_bytes = 8;
    c.desc.n_layers = 4, c.desc.n_rows = 8, c.desc.n_places = 2;
    c.order[1] = 1, c.order[2] = -1, c.order[3] = -2, c.desc.n_order = 4;
    start(&c, 0);
    CHECK_OK(chain_forward(&c, 0, 0));
    CHECK_OK(chain_forward(&c, 1, 0));
    CHECK_ERROR(memo_swap_backward_begin(c.swap, 1, &error), INVALID_STATE,
                "forward_begin(2) comes next");
    CHECK_OK(memo_swap_abandon(c.swap, &error));
    finish(&c, NULL);
}

/* The example of the header: all that varies by layer, and the sizes that follow. */
TEST(tables_of_rows_have_their_sizes) {
    chain c;
    chain_init(&c, 1);
    c.desc.n_layers = 5;
    c.desc.n_rows = 10;
    c.desc.tile_rows = 2;
    c.desc.rows = c.rows;
    c.tensors[0].row_bytes = 512;
    for (int32_t layer = 0; layer < 5; layer++) c.rows[layer] = 4;
    memo_swap_sizes sizes = sizes_of_desc(&c.desc);
    CHECK_IS(sizes.device_bytes, ==, 512 * (2 * 4 + 6));
    CHECK(sizes.host_bytes == 512 * 3 * 4 && sizes.swapped_bytes == sizes.host_bytes);
    CHECK(sizes.n_swapped_layers == 3 && sizes.layer_swapped_bytes == 512 * 4);
    c.rows[2] = MEMO_ROWS_KEPT; /* layer 0 is then followed by layer 4 */
    CHECK_OK(memo_swap_desc_get_sizes(&c.desc, &sizes, &error));
    CHECK_IS(sizes.device_bytes, ==, 512 * (2 * 4 + 6 + 10));
    CHECK_IS(sizes.n_swapped_layers, ==, 2);
    c.rows[1] = 3;
    refuses(&c.desc, "layer 1");
    CHECK(strstr(error.message, "tile_rows 2") != NULL);
    c.rows[1] = 11;
    refuses(&c.desc, "11 of 10 rows");
    for (int32_t layer = 1; layer < 3; layer++) {
        WITH(c.rows[layer], INT64_MIN,
             refuses(&c.desc, "is out of range")); /* make asan-ubsan shows an overflow */
    }
    WITH(c.tensors[0].away, MEMO_WHOLE, refuses(&c.desc, "is MEMO_WHOLE; swap all rows or none"));
    WITH(c.tensors[0].away, MEMO_MOVE,
         refuses(&c.desc, "is MEMO_MOVE, so it cannot be recomputed"));
    WITH(c.tensors[0].away, MEMO_KEEP, refuses(&c.desc, "is MEMO_KEEP; MEMO_ROWS_KEPT is valid"));
    c.desc.n_rows = INT64_MAX / 2;
    refuses(&c.desc, "2^58");

    /* Places for five layers, each as large as the first, which is eight times the others. */
    c.tensors[0].row_bytes = (int64_t)1 << 58;
    c.desc.n_rows = c.desc.n_layers = 8;
    c.desc.tile_rows = 1;
    c.desc.n_host_layers = 5;
    for (int32_t layer = 0; layer < 8; layer++) c.rows[layer] = layer ? 1 : 8;
    refuses(&c.desc, "8 rows of these tensors in 8 layers exceed 2^58");
    WITH(c.tensors[0].row_bytes, INT64_MAX, refuses(&c.desc, "2^58"));

    /* The most: two packs, of which one follows the other (make asan-ubsan shows an overflow). */
    c.tensors[0].row_bytes = ((int64_t)1 << 54) - 512;
    c.desc.n_layers = 2;
    c.desc.n_host_layers = 0;
    c.has_kinds = 1;
    c.tensors[0].kinds = 1;
    chain_set_kinds(&c);
    c.rows[0] = c.rows[1] = 0;
    CHECK_OK(memo_swap_desc_get_sizes(&c.desc, &sizes, &error));
    CHECK_IS(sizes.device_bytes, ==, 8 * c.tensors[0].row_bytes);
    c.tensors[0].row_bytes += 512;
    refuses(&c.desc, "2^58");
}

/* Bytes of the area for whole tensors, from the sets of tensors alone: every two layers that follow
 * each other there, one even and one odd, need what one swaps and all of the other. */
static int64_t area_of(const chain* c) {
    int64_t all[2] = {0, 0}, swapped[2] = {0, 0}, area = 0;
    for (int32_t layer = 0; layer < c->desc.n_layers; layer++) {
        int64_t sum = 0, sum_swapped = 0, other = !(layer & 1);
        for (int32_t t = 0; t < c->desc.n_tensors; t++) {
            int64_t bytes = c->desc.n_rows * c->tensors[t].row_bytes;
            if (!c->tensors[t].kinds || cell(c, layer, t) < 0) continue;
            sum += bytes;
            if (cell(c, layer, t)) sum_swapped += bytes;
        }
        if (!sum) continue;
        if (sum + swapped[other] > area) area = sum + swapped[other];
        if (all[other] + sum_swapped > area) area = all[other] + sum_swapped;
        all[layer & 1] = sum;
        swapped[layer & 1] = sum_swapped;
    }
    return area;
}

/* Layers of several kinds: dense ones before experts, local and global attention.  Tensors that
 * only some kinds have take what two neighbors of the worst pair need, and get_address is NULL
 * where a layer lacks a tensor. */
TEST(kinds_take_what_two_neighbors_need) {
    for (int round = 0; round < 500; round++) {
        chain c, rest;
        chain_init(&c, CHAIN_TENSORS_MAX);
        c.desc.n_layers = (int32_t)memo_test_int(1, CHAIN_LAYERS_MAX);
        c.desc.n_rows = 4;
        for (int32_t t = 0; t < CHAIN_TENSORS_MAX; t++) {
            c.tensors[t].row_bytes = 512 * memo_test_int(1, 5);
            c.tensors[t].away = MEMO_WHOLE;
        }
        random_kinds(&c);
        random_table(&c);
        c.desc.rows = c.rows;
        memo_swap_sizes with_kinds = sizes_of_desc(&c.desc);
        rest = c; /* the tensors of all kinds alone, and those that layers keep */
        rest.desc.tensors = rest.tensors;
        rest.desc.rows = rest.rows;
        for (int32_t t = 0; t < CHAIN_TENSORS_MAX; t++) {
            int64_t kept = 0;
            if (!c.tensors[t].kinds) continue;
            rest.tensors[t].row_bytes = 0;
            for (int32_t layer = 0; layer < c.desc.n_layers; layer++)
                kept += chain_has(&c, layer, t) &&
                        c.rows[layer * CHAIN_TENSORS_MAX + t] == MEMO_ROWS_KEPT;
            with_kinds.device_bytes -= kept * c.desc.n_rows * c.tensors[t].row_bytes;
        }
        memo_swap_sizes common = sizes_of_desc(&rest.desc);
        CHECK_CASE(with_kinds.device_bytes == common.device_bytes + area_of(&c),
                   "round %d: %lld, not %lld and %lld", round, (long long)with_kinds.device_bytes,
                   (long long)common.device_bytes, (long long)area_of(&c));
    }
}

TEST(bad_kinds_are_refused) {
    chain c;
    gpt_table(&c, 64, 4, 8);
    c.has_kinds = 1;
    chain_set_kinds(&c);
    c.layer_kinds[2] = 32;
    refuses(&c.desc, "layer_kinds[2]: out of range (32)");
    c.layer_kinds[2] = -1;
    refuses(&c.desc, "layer_kinds[2]: out of range (-1)");
    c.layer_kinds[2] = 31;
    c.tensors[3].away = MEMO_WITH;
    c.tensors[3].kinds = 2;
    refuses(&c.desc, "tensors[3] (tensor): MEMO_WITH needs an item before it that has bytes");
    c.tensors[2].kinds = 2;
    (void)sizes_of_desc(&c.desc);
}

/* --- faults --- */

/* For every k of a short run: a status with a message, nothing leaked, and, started again, right
 * results.  Late: a copy fails later, on its stream: the error is kept, later operations are
 * skipped, and no call hangs. */
static void check_faults(int is_late) {
    memo_status status = MEMO_STATUS_DEVICE;
    int64_t k, n_failed = 0;
    for (k = 1; status && k < 5000; k++) {
        memo_faults f;
        chain c;
        memo_swap_stats stats;
        memset(&error, 0, sizeof error);
        gpt_table(&c, 24, 5, 10);
        c.desc.tile_rows = 3;
        c.desc.alpha = 0.5;
        c.desc.is_timed = 1;
        c.desc.n_host_layers = 1;
        c.desc.spill_directory = chain_folder();
        c.host = new_host(0);
        memo_faults_init(&f, c.host);
        f.failing_call = k;
        f.is_late = is_late;
        c.device = &f.device;
        status = chain_open(&c);
        if (!status) {
            status = chain_micro_batch(&c, 0, 1000);
            if (!status) status = memo_stream_synchronize(c.device, c.compute, &error);
            if (!status) status = memo_swap_get_stats(c.swap, &stats, &error);
            if (status && !is_late) {
                CHECK_OK(memo_swap_abandon(c.swap, &error));
                CHECK_OK(chain_micro_batch(&c, 1, 1000));
                CHECK_OK(memo_stream_synchronize(c.host, c.compute, &error));
            }
            chain_close(&c);
            CHECK_CASE(c.n_wrong == 0, "after a fault at call %lld", (long long)k);
            /* The last operations of the copies are waited for here. */
            if (!status) status = memo_device_status(c.host, &error);
        }
        CHECK_CASE(!status == !f.failed && (!status || strstr(error.message, "on purpose")),
                   "call %lld, %s: %d, %s", (long long)k, f.failed, (int)status, error.message);
        n_failed += strstr(error.message, is_late ? "late" : "on purpose") != NULL;
        drop_device(&c.host);
    }
    CHECK_CASE(!status && n_failed > (is_late ? 20 : 50), "%lld calls, %lld failed", (long long)k,
               (long long)n_failed);
}
TEST(every_fault_is_a_status) { check_faults(0); }
TEST(a_late_fault_is_a_status) { check_faults(1); }

/* A host memory too small is refused at creation, with the figures, and nothing stays allocated. */
TEST(too_little_memory_is_refused) {
    chain c;
    gpt_table(&c, 512, 6, 64);
    c.desc.alpha = 1;
    c.device = c.host = new_device((memo_host_device_desc){.host_memory_bytes = 65536});
    CHECK_IS(chain_open(&c), ==, MEMO_STATUS_OUT_OF_HOST_MEMORY);
    drop_device(&c.host);
}

/* Waits are measured: copies slower than the computation show as stall, and only then. */
TEST(stalls_are_measured) {
    double stall_s[2];
    for (int i = 0; i < 2; i++) {
        chain c;
        gpt_table(&c, 160, 5, 64);
        c.desc.alpha = 1;
        c.desc.is_timed = 1;
        start(&c, i ? 4e6 : 0); /* a layer's 160 KiB then take 40 ms */
        CHECK_OK(chain_micro_batch(&c, 0, 1000));
        CHECK_OK(memo_stream_synchronize(c.host, c.compute, &error));
        memo_swap_stats stats = stats_of_swap(c.swap);
        CHECK_IS(stats.to_host_bytes, ==, 3 * sizes_of_desc(&c.desc).layer_swapped_bytes);
        CHECK_IS(stats.to_device_bytes, ==, stats.to_host_bytes);
        stall_s[i] = stats.forward_stall_s + stats.backward_stall_s;
        CHECK(stats.forward_stall_s >= 0 && stats.backward_stall_s >= 0);
        finish(&c, NULL);
    }
    CHECK_CASE(stall_s[1] > 0.1, "%g s", stall_s[1]);
    CHECK_CASE(stall_s[0] < stall_s[1], "%g s and %g s", stall_s[0], stall_s[1]);
}

/* The tensors of two layers stay, so no visit waits: the time of the calls is no stall. */
TEST(visits_that_need_no_wait_have_no_stall) {
    chain c;
    gpt_table(&c, 16, 2, 8);
    c.desc.alpha = 1;
    c.desc.is_timed = c.desc.computes_on_host = 1;
    start(&c, 0);
    CHECK_OK(chain_micro_batch(&c, 0, 1000));
    memo_swap_stats stats = stats_of_swap(c.swap);
    CHECK(!(stats.forward_stall_s > 0) && !(stats.backward_stall_s > 0));
    finish(&c, NULL);
}
