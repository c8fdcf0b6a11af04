#include "gpt/run/plan.h"

#include "gpt/model/layout.h"
#include "gpt/show/report.h"

/* ---- what fits ------------------------------------------------------------------------------- */

enum { N_SLICES_TRIED = 16 };

int run_fits(const train_options* o, memo_policy policy, int64_t most, int64_t* slice_rows) {
    memo_step_plan* plan;
    const int fits = !train_plan(o, policy, most, NULL, NULL, &plan, NULL) && plan->fits;
    if (fits) *slice_rows = plan->swap.n_slices > 1 ? plan->swap.n_rows : 0;
    memo_step_plan_destroy(plan);
    return fits;
}

/* The same, sooner: policy memo fits if all is recomputed, or if what cannot be recomputed is
 * swapped.  Only other plans of this policy need a search. */
static int fits_in(const train_options* o, memo_policy policy, int64_t most) {
    train_options swaps = *o;
    int64_t slice_rows;
    swaps.alpha = 0;
    if (policy == MEMO_POLICY_MEMO && o->alpha < 0 &&
        (run_fits(&swaps, MEMO_POLICY_RECOMPUTE, most, &slice_rows) ||
         run_fits(&swaps, MEMO_POLICY_ALPHA, most, &slice_rows)))
        return 1;
    return run_fits(o, policy, most, &slice_rows);
}

/* Returns the longest sequence of whole tiles that fits the budgets, up to a 32nd; 0: none.
 * n_tiles: a length that fits; 0: none is known. */
static int64_t longest_sequence(const train_options* o, int64_t n_tiles, int64_t most_slices) {
    const int64_t n_most = gpt_min(1 << 24, 64 * o->sequence) / o->tile + 1;
    train_options other = *o;
    int64_t beyond = n_tiles ? 2 * n_tiles : 1, unit, middle;
    for (; beyond <= n_most; beyond *= 2) {
        other.sequence = beyond * o->tile;
        if (!fits_in(&other, (memo_policy)o->policy, most_slices)) break;
        n_tiles = beyond;
    }
    unit = (beyond + 63) / 64;
    while (beyond - n_tiles > unit) {
        middle = n_tiles + (beyond - n_tiles) / 2;
        other.sequence = middle * o->tile;
        *(fits_in(&other, (memo_policy)o->policy, most_slices) ? &n_tiles : &beyond) = middle;
    }
    return n_tiles * o->tile;
}

void print_longest(const train_options* o, int64_t given_rows) {
    const int64_t n_slices = o->slice_rows ? (train_rows(o) - 1) / o->slice_rows + 1 : 1;
    const int64_t most_slices = gpt_round_up(n_slices, N_SLICES_TRIED);
    train_options other = *o;
    int64_t slice_rows = given_rows;
    other.slice_rows = given_rows;
    const int64_t with = longest_sequence(&other, o->sequence / o->tile, most_slices);
    other.sequence = with;
    if (with && !given_rows) run_fits(&other, (memo_policy)o->policy, most_slices, &slice_rows);
    other.sequence = o->sequence;
    other.slice_rows = (int64_t)1 << 28; /* one slice */
    const int64_t without = longest_sequence(&other, 0, 1);
    if (with && slice_rows)
        printf(
            "longest   %lld tokens a sequence fit in %sslices of %lld rows (--slice-rows%s), %lld "
            "without\n",
            (long long)with, given_rows ? "" : text_of("up to %lld ", (long long)most_slices),
            (long long)slice_rows, given_rows ? "" : "; smaller slices may hold more",
            (long long)without);
    else if (with)
        printf("longest   %lld tokens a sequence fit, without slices\n", (long long)with);
}

/* Halves slices up to three times, as long as the step that estimates predict gets shorter by a
 * fiftieth at least, which a step can only if it waits or recomputes for so long.  The best single
 * alpha is planned sooner than the best rows, and is hardly slower. */
void print_faster_slices(const train_options* o, const memo_step_plan* plan) {
    const double least_gain = 0.02;
    const memo_swap_plan* times = plan->times;
    const gpt_config config = train_config(o);
    train_options own = *o;
    int64_t fastest = 0;
    if (!times || o->profile || !plans_rows(o->policy)) return;
    double best_s = times->step_s;
    if (times->stall_s + times->recompute_s < least_gain * best_s) return;

    for (int64_t n = 2; n <= 8; n *= 2) {
        own.slice_rows = gpt_cut_slices(&config, gpt_slice_rows(&config), n);
        if (!own.slice_rows) break;
        memo_profile profile;
        memo_step_plan* trial;
        estimate_profile(&own, &profile);
        if (train_plan(&own, MEMO_POLICY_ALPHA, 0, &profile, NULL, &trial, NULL)) break;
        const double step_s = trial->fits && trial->times ? trial->times->step_s : 0;
        memo_step_plan_destroy(trial);
        if (!(step_s > 0) || step_s > (1 - least_gain) * best_s) break;
        best_s = step_s;
        fastest = own.slice_rows;
    }
    if (fastest)
        printf("faster    in slices of %lld rows (--slice-rows): predicted %.1f ms a step\n",
               (long long)fastest, 1e3 * best_s);
}

void print_least(const train_options* o) {
    train_options other = *o;
    other.device_memory = 1;
    other.host_memory = 0;
    other.alpha = -1;
    memo_step_plan* plan;
    if (!train_plan(&other, MEMO_POLICY_MEMO, N_SLICES_TRIED, NULL, NULL, &plan, NULL))
        printf("least     a device of %s, with %s on the host, can train this model\n",
               bytes_name(plan->device_bytes), bytes_name(plan->host_bytes));
    memo_step_plan_destroy(plan);
}

/* ---- what would work ------------------------------------------------------------------------- */

/* Writes ", --policy recompute" if the run fits with these options. */
static void put_way(const train_options* other, memo_policy policy, const char* way,
                    memo_text* text) {
    if (fits_in(other, policy, N_SLICES_TRIED))
        memo_text_put(text, "%s%s", text->n_bytes ? ", " : "", way);
}

/* Writes other options of the computation with which the run fits. */
static void put_ways(const train_options* o, memo_text* text) {
    const memo_policy policy = (memo_policy)o->policy;
    train_options other = *o;

    /* cuDNN's deterministic backward takes memory for each pair of a query and a key. */
    other.is_deterministic = 0;
    if (o->is_deterministic && !o->compare) put_way(&other, policy, "--deterministic 0", text);
    other = *o;
    other.alpha = 0;
    if (o->alpha > 0) put_way(&other, policy, "--alpha 0", text);
    if (policy == MEMO_POLICY_MEMO && o->alpha < 0) return; /* no other takes less */
    for (int i = 0; i < train_n_policies(o); i++)
        if (policy_order[i] != policy)
            put_way(o, policy_order[i], text_of("--policy %s", memo_policy_name(policy_order[i])),
                    text);
}

/* Returns a budget of the device or the host in which the run fits.  This plan needs whole_bytes,
 * but others may trade memory for time: so it halves what lies between them and the limit. */
static int64_t least_budget(const train_options* o, int tier, int64_t limit_bytes,
                            int64_t whole_bytes) {
    enum { PARTS = 256 };
    train_options other = *o;
    long long* budget = tier == MEMO_TIER_DEVICE ? &other.device_memory : &other.host_memory;
    while (tier != MEMO_TIER_FILE && whole_bytes - limit_bytes > whole_bytes / PARTS) {
        *budget = limit_bytes + (whole_bytes - limit_bytes) / 2;
        *(fits_in(&other, (memo_policy)o->policy, N_SLICES_TRIED) ? &whole_bytes : &limit_bytes) =
            *budget;
    }
    return whole_bytes;
}

/* Writes the budgets in which the run fits: of each tier that lacks memory. */
static void put_budgets(const train_options* o, int64_t tiers[MEMO_N_TIERS][N_TIER_PARTS],
                        memo_text* text) {
    static const char* const names[] = {"--device-memory ", "--host-memory ",
                                        "another --spill with free space of "};
    MEMOB_TABLE_OF(MEMO_N_TIERS, names);
    const char* between = text->n_bytes ? ", " : "";
    int n_short = 0;
    for (int tier = 0; tier < MEMO_N_TIERS; tier++) n_short += is_short(tiers[tier]);
    for (int tier = 0; tier < MEMO_N_TIERS; tier++) {
        int64_t n_bytes = tiers[tier][TIER_WHOLE];
        if (!is_short(tiers[tier])) continue;
        if (n_short == 1) n_bytes = least_budget(o, tier, tiers[tier][TIER_LIMIT], n_bytes);
        memo_text_put(text, "%s%s%s", between, names[tier], bytes_option(n_bytes));
        between = " and ";
    }
}

memo_status refuse(const train_options* o, const memo_step_plan* plan, memo_error* error) {
    static const char* const names[] = {"device memory", "host memory", "free space in --spill"};
    MEMOB_TABLE_OF(MEMO_N_TIERS, names);
    int64_t tiers[MEMO_N_TIERS][N_TIER_PARTS];
    memo_text ways = {0};
    int tier = 0;
    plan_tiers(o, plan, tiers);
    while (tier < MEMO_N_TIERS - 1 && !is_short(tiers[tier])) tier++;
    const int64_t* parts = tiers[tier];
    put_ways(o, &ways);
    put_budgets(o, tiers, &ways);
    memo_error_set(
        error, MEMO_STATUS_INFEASIBLE,
        "%s of %s cannot hold this run: policy %s needs %s%s (parameters, gradients and "
        "optimizer %s, activations between forward and backward %s, the rest %s); try %s",
        bytes_beside(parts[TIER_LIMIT], parts[TIER_WHOLE]), names[tier],
        memo_policy_name((memo_policy)o->policy),
        bytes_beside(parts[TIER_WHOLE], parts[TIER_LIMIT]),
        plan->swap.n_slices > 1 && !o->slice_rows
            ? text_of(" in slices of %lld rows", (long long)plan->swap.n_rows)
            : "",
        bytes_name(parts[TIER_STATES]), bytes_name(parts[TIER_ACTIVATIONS]),
        bytes_name(parts[TIER_BUFFERS]), ways.data ? ways.data : "less");
    memo_text_free(&ways);
    return MEMO_STATUS_INFEASIBLE;
}
