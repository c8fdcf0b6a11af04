/* test_paper_tables.c - the reproduced tables of three papers: every promised threshold; and the
 * code below them (swap simulator, optimizer, scores) against slow, obvious twins. */
/* Functions that no table calls cost no compile time. */
#define MEMO_STATIC
#include "bench/papers/paper_common.h"
#include "bench/papers/paper_memo.h"
#include "bench/papers/paper_sp.h"
#include "bench/papers/paper_oases.h"

#define MEMO_TEST_OWN_MAIN
#include "owned.h"

/* ---- the promises ---------------------------------------------------------------------------- */

static swap_hardware a800, h200;
static swap_results memo;
static sp_results sp;
static oases_results oases;
static paper_criteria criteria;
static char printed[200000];

static void print_everything(void) {
    paper_output = tmpfile();
    if (!paper_output) return;
    a800 = swap_a800();
    h200 = swap_h200();
    swap_fit(&a800);
    swap_print_constants(&a800, &h200);
    sp_print_constants();
    oases_print_constants();
    memo = swap_report(&a800, &h200, &criteria);
    sp = sp_report(&criteria);
    oases = oases_report(&criteria);
    rewind(paper_output);
    size_t n = fread(printed, 1, sizeof printed - 1, paper_output);
    printed[n] = 0;
    (void)fclose(paper_output);
    paper_output = NULL;
}

TEST(memo_verdicts) {
    CHECK_IS(memo.n_right_ablation, ==, 24);
    CHECK_IS(memo.n_right_7b, ==, 12);
}

TEST(memo_intervals_contain_the_constants) {
    CHECK(memo.reserve_gib.low < 4 && 4 < memo.reserve_gib.high);
    CHECK(memo.logit_bytes.low < 6 && 6 < memo.logit_bytes.high);
    CHECK(memo.host_fraction.low < 0.6 && 0.6 < memo.host_fraction.high);
    /* 1.03 TB must fit, 1.546 TB must not. */
    CHECK_CASE(fabs(memo.host_fraction.low - 0.516) < 0.002, "%.4f", memo.host_fraction.low);
    CHECK_CASE(fabs(memo.host_fraction.high - 0.773) < 0.002, "%.4f", memo.host_fraction.high);
    CHECK(memo.host_fraction_rounded.low < 1 && 1 < memo.host_fraction_rounded.high);
}

TEST(memo_mfu_of_the_fitted_rows) {
    CHECK_IS(memo.n_fitted, ==, 16);
    CHECK_CASE(memo.ablation_error <= 0.75, "%.3f", memo.ablation_error);
}

TEST(memo_mfu_without_refitting) {
    CHECK_IS(memo.n_cells, ==, 44);
    CHECK_CASE(memo.cells_error <= 1.25, "%.3f", memo.cells_error);
    for (int i = 0; i < SWAP_N_MODELS; i++)
        CHECK_CASE(memo.model_error[i] <= 2, "%s: %.3f", swap_models[i].name, memo.model_error[i]);
}

TEST(memo_stated_pcie_cannot_explain_the_swap_row) {
    CHECK_IS(fabs(memo.swap_64k_fitted_pcie - 37.40), <, 2);
    CHECK_IS(memo.swap_64k_stated_pcie, >, 50);
}

TEST(memo_figure_1b) {
    CHECK_CASE(fabs(memo.hidden_from_k / 192 - 1) <= 0.25, "%.0fK", memo.hidden_from_k);
}

TEST(memo_plan_is_no_longer_than_the_published_alpha) {
    CHECK_IS(memo.n_plan_compared, >=, 40);
    CHECK_IS(memo.n_plan_longer, ==, 0);
    CHECK_CASE(memo.n_planned * swap_plan_every >= 40, "%d", memo.n_planned);
    CHECK_IS(memo.n_planned_longer, ==, 0);
}

TEST(memo_unplanned_row_reorganizes_where_memory_is_short) {
    own_trace* trace = swap_unplanned_trace(128 * PAPER_K);
    caching_stats ample, tight;
    CHECK(trace != NULL);
    if (!trace) return;
    CHECK_IS(memo.n_unplanned, ==, 2 * SWAP_N_ABLATION);
    for (int i = 0; i < memo.n_unplanned; i += 2) {
        const caching_stats* s = &memo.unplanned[i];
        CHECK(s[1].refused_request >= 0 || s[1].n_retries_last >= s[0].n_retries_last);
    }
    caching_desc desc = {0};
    own_plan* plan = plan_of_trace(trace, 512);
    CHECK_OK(memo_plan_solve(plan, NULL, &error));
    CHECK_OK(caching_replay(trace, &desc, &ample, &error));
    desc.capacity_bytes = plan->peak_bytes + plan->peak_bytes / 100;
    CHECK_OK(caching_replay(trace, &desc, &tight, &error));
    CHECK(ample.n_retries == 0 && tight.n_retries > (tight.refused_request >= 0));
}

TEST(sp_attention_alone) { CHECK_CASE(sp.attention_mean >= 0.7, "%.3f", sp.attention_mean); }

TEST(sp_end_to_end_tables) {
    CHECK_CASE(sp.table5.spearman >= 0.8, "%.3f", sp.table5.spearman);
    CHECK_CASE(sp.table6.spearman >= 0.85, "%.3f", sp.table6.spearman);
    CHECK_CASE(sp.table6_64k.spearman >= 0.7, "%.3f", sp.table6_64k.spearman);
    CHECK_CASE(sp.table6_80k.spearman >= 0.7, "%.3f", sp.table6_80k.spearman);
    CHECK_IS(sp.table5.spearman, >, sp.table5.by_length);
    CHECK_IS(sp.table6.spearman, >, sp.table6.by_length);
}

TEST(sp_memory) {
    CHECK(sp.n_ran == 40 && sp.n_ran_right == sp.n_ran);
    CHECK_IS(sp.n_oom_right, ==, SP_N_OOM);
}

TEST(sp_seven_tips) {
    for (int i = 0; i < 7; i++) CHECK_CASE(sp.is_tip[i], "tip %d", i + 1);
}

TEST(sp_longest_lengths) {
    layout_cluster c = sp_a800(16);
    memo_parallel_layout sequence = layout_of(1, 1, 1, 8, 2, 1),
                         tensor = layout_of(1, 1, 8, 1, 2, 1);
    CHECK_IS(fabs(layout_longest_k(&sp_llama3_8b, &c, sequence) - 94), <, 0.5);
    CHECK_IS(fabs(layout_longest_k(&sp_llama3_8b, &c, tensor) - 220), <, 0.5);
    sequence.zero_stage = 3;
    for (int i = 0; i < 3; i++) { /* a growing ring */
        static const double expected[] = {227, 481, 989};
        c = sp_a800(16 << i);
        sequence.ring = 2 << i;
        CHECK_IS(fabs(layout_longest_k(&sp_llama3_8b, &c, sequence) - expected[i]), <, 0.5);
    }
}

TEST(oases_order_of_the_schedules) {
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            CHECK_CASE(oases.n_ordered[i][j] == 6, "%d", oases.n_ordered[i][j]);
}

TEST(oases_calibration_meets_the_megatron_row) {
    for (int i = 0; i < OASES_N_ROWS; i++) {
        oases_hardware hw = oases_calibrated(&oases_rows[i]);
        double got = oases_throughput(&oases_rows[i], &hw, OASES_DEFAULT, 1);
        CHECK_CASE(fabs(got / oases_rows[i].throughput[OASES_DEFAULT] - 1) < 1e-6, "row %d: %g", i,
                   got);
    }
}

TEST(oases_plans) {
    CHECK_IS(oases.n_equal_plans[0], >=, 5);
    CHECK_IS(oases.n_equal_plans[1], >=, 5);
    CHECK_IS(oases.n_slower_than_uniform, ==, 0);
}

/* ---- printed tables ------------------------------------------------------------------------- */

TEST(lines_fit_a_terminal_of_120_columns) {
    const char* line = printed;
    while (*line) {
        size_t n = strcspn(line, "\n");
        CHECK_CASE(n <= 120, "%.60s", line);
        line += n + (line[n] == '\n');
    }
}

TEST(constants_come_first_and_each_says_where_from) {
    const char* end = strstr(printed, "Table 4: MFU");
    const char* line = printed;
    int n_constants = 0, n_fitted_memo = 0;
    CHECK(end != NULL);
    while (end && line < end) {
        size_t n = strcspn(line, "\n");
        if (n > 4 && strncmp(line, "    ", 4) == 0) {
            char text[160];
            (void)snprintf(text, sizeof text, "%.*s", (int)(n < 159 ? n : 159), line);
            n_constants++;
            CHECK_CASE(strstr(text, "stated by the paper") || strstr(text, "fitted") ||
                           strstr(text, "assumed") || strstr(text, "measured"),
                       "%s", text);
            n_fitted_memo += strstr(text, "Table 4's planned rows") != NULL;
        }
        line += n + (n > 0 || *line == '\n');
    }
    CHECK_IS(n_constants, >, 40);
    CHECK_IS(n_fitted_memo, ==, 4);
}

TEST(misses_are_printed_as_misses) {
    int n = 0;
    const char* at = printed;
    while ((at = strstr(at, "[MISS]")) != NULL) {
        n++;
        at++;
    }
    CHECK_IS(n, ==, criteria.n_missed);
    CHECK_IS(criteria.n_met + criteria.n_missed, >=, 30);
    CHECK(strstr(printed, "30B at 1408K, published oohm, predicted runs") != NULL);
    CHECK(strstr(printed, "65B at 128K, published runs, predicted oom") != NULL);
}

/* ---- the machinery --------------------------------------------------------------------------- */

TEST(fit_is_reproducible_and_a_minimum) {
    swap_hardware again = swap_a800(), trial;
    double v[4];
    swap_fit(&again);
    CHECK_IS(fabs(again.gemm_efficiency - a800.gemm_efficiency), <, 1e-12);
    CHECK_IS(fabs(again.attention[0].forward_flops / a800.attention[0].forward_flops - 1), <,
             1e-12);
    CHECK_IS(fabs(again.attention[0].backward_flops / a800.attention[0].backward_flops - 1), <,
             1e-12);
    CHECK_IS(fabs(again.pcie_bytes_per_s / a800.pcie_bytes_per_s - 1), <, 1e-12);
    v[0] = a800.gemm_efficiency;
    v[1] = a800.attention[0].forward_flops / a800.peak_flops;
    v[2] = a800.attention[0].backward_flops / a800.peak_flops;
    v[3] = a800.pcie_bytes_per_s / PAPER_GB;
    trial = a800;
    double fitted = swap_fit_objective(v, &trial);
    for (int i = 0; i < 4; i++)
        for (int sign = -1; sign <= 1; sign += 2) {
            double old = v[i];
            v[i] *= 1 + 0.005 * sign;
            CHECK_CASE(swap_fit_objective(v, &trial) >= fitted, "variable %d", i);
            v[i] = old;
        }
}

static double rosenbrock(const double* v, void* user) {
    (void)user;
    return 100 * (v[1] - v[0] * v[0]) * (v[1] - v[0] * v[0]) + (1 - v[0]) * (1 - v[0]);
}
TEST(optimizer_finds_a_known_minimum) {
    double v[2] = {-1.2, 1};
    paper_minimize(v, 2, rosenbrock, NULL);
    CHECK_CASE(fabs(v[0] - 1) < 1e-3 && fabs(v[1] - 1) < 1e-3, "%g %g", v[0], v[1]);
}

TEST(spearman_of_known_rankings) {
    double a[5] = {1, 2, 3, 4, 5}, b[5] = {10, 20, 30, 40, 50}, c[5] = {5, 4, 3, 2, 1};
    double d[5] = {1, 1, 2, 3, 3}, e[5] = {7, 7, 7, 7, 7}, f[5] = {2, 1, 4, 3, 5};
    CHECK_IS(fabs(paper_spearman(a, b, 5) - 1), <, 1e-12);
    CHECK_IS(fabs(paper_spearman(a, c, 5) + 1), <, 1e-12);
    CHECK_IS(fabs(paper_spearman(a, f, 5) - 0.8), <, 1e-12); /* 1 - 6 * 4 / (5 * 24) */
    CHECK_IS(fabs(paper_spearman(a, d, 5) - 9 / sqrt(90)), <, 1e-12);
    CHECK_IS(fabs(paper_spearman(a, e, 5)), <, 1e-12);
}

/* The swap schedule again, as operations with dependencies, relaxed until no time changes. */
typedef struct operation {
    double duration, end;
    int n_before, before[4];
} operation;

static double relax(operation* operations, int n) {
    int has_moved = 1;
    double makespan = 0;
    for (int i = 0; i < n; i++) operations[i].end = operations[i].duration;
    while (has_moved) {
        has_moved = 0;
        for (int i = n - 1; i >= 0; i--) { /* against the order, so that order cannot help */
            double end = operations[i].duration;
            for (int j = 0; j < operations[i].n_before; j++) {
                double candidate = operations[operations[i].before[j]].end + operations[i].duration;
                if (candidate > end) end = candidate;
            }
            if (end > operations[i].end) {
                operations[i].end = end;
                has_moved = 1;
            }
        }
    }
    for (int i = 0; i < n; i++)
        if (operations[i].end > makespan) makespan = operations[i].end;
    return makespan;
}

static void after(operation* o, int before) {
    if (before >= 0) o->before[o->n_before++] = before;
}

TEST(swap_simulation_against_relaxation) {
    for (int round = 0; round < 200; round++) {
        enum { MAX = 12 };
        operation o[5 * MAX + 1];
        swap_schedule s;
        int n = (int)memo_test_int(3, MAX), i, head = 5 * n;
        s.n_layers = n;
        s.forward = memo_test_real();
        s.backward = 2 * memo_test_real();
        s.recompute = memo_test_real();
        s.head = memo_test_real();
        s.offload = 2 * memo_test_real();
        s.fetch = 2 * memo_test_real();
        s.n_resident = (int)memo_test_int(1, 2);
        memset(o, 0, sizeof o);
        /* forward i, offload n + i, fetch 2n + i, recompute 3n + i, backward 4n + i */
        o[head].duration = s.head;
        after(&o[head], n - 1);
        for (i = 0; i < n; i++) {
            o[i].duration = s.forward;
            after(&o[i], i - 1);
            if (i >= 2) after(&o[i], n + i - 2);
            if (i < n - 2) {
                o[n + i].duration = s.offload;
                after(&o[n + i], i);
                if (i > 0) after(&o[n + i], n + i - 1);
                o[2 * n + i].duration = s.fetch;
                after(&o[2 * n + i], n + i);
                after(&o[2 * n + i], 4 * n + i + 2);
                if (i < n - 3) after(&o[2 * n + i], 2 * n + i + 1);
            }
            o[3 * n + i].duration = i < n - s.n_resident ? s.recompute : 0;
            after(&o[3 * n + i], i == n - 1 ? head : 4 * n + i + 1);
            if (i < n - 2) after(&o[3 * n + i], 2 * n + i);
            o[4 * n + i].duration = s.backward;
            after(&o[4 * n + i], 3 * n + i);
        }
        double got = swap_simulate(&s);
        double expected = relax(o, 5 * n + 1);
        CHECK_CASE(fabs(got - expected) < 1e-9, "%d layers: %g, not %g", n, got, expected);
    }
}

TEST(swap_without_a_bottleneck_costs_nothing) {
    swap_schedule s = {32, 1, 2, 0, 0.5, 0.99, 0.99, 2};
    CHECK_IS(fabs(swap_simulate(&s) - (32 * 3 + 0.5)), <, 1e-9);
}

/* The tables use the library's schedules and planner of degrees: test_blocks_schedule and
 * test_degrees compare them with closed forms and brute force. */
TEST(oases_makespans) { CHECK_IS(oases_n_right_makespans(), ==, 12); }

TEST(layouts_are_refused_in_words) {
    layout_cluster c = sp_a800(16);
    memo_parallel_layout l = layout_of(1, 1, 16, 1, 1, 1);
    char text[128];
    const char* reason = layout_refusal(&sp_llama3_8b, &c, l, 1, text, sizeof text);
    CHECK(reason && strstr(reason, "key/value heads"));
    l.tensor = 2;
    reason = layout_refusal(&sp_llama3_8b, &c, l, 1, text, sizeof text);
    CHECK(reason && strstr(reason, "number of GPUs, 16"));
    l.tensor = 1;
    l.data = 16;
    reason = layout_refusal(&sp_llama3_8b, &c, l, 1, text, sizeof text);
    CHECK(reason && strstr(reason, "1 sequences of the batch"));
    CHECK(layout_refusal(&sp_llama3_8b, &c, l, 16, text, sizeof text) == NULL);
}

int main(int argc, char** argv) {
    memo_test_begin(argc, argv);
    if (!memo_test_all()) swap_plan_every = 8;
    print_everything();
    return memo_test_run_all();
}
