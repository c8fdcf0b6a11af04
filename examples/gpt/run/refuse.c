#include "gpt/run/plan.h"

#include "gpt/model/layout.h"
#include "gpt/show/report.h"

/* ---- what fits ------------------------------------------------------------------------------- */

enum { N_SLICES_TRIED = 16 };

/* Returns whether the run fits, in `most` slices or fewer.  Then *slice_rows is the rows of the
 * largest slice; 0: all at once. */
static int run_fits(const train_options* o, memo_policy policy, int64_t most, int64_t* slice_rows) {
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
static int fits_with(const train_options* o, memo_policy policy) {
    return fits_in(o, policy, N_SLICES_TRIED);
}

/* Returns the longest sequence of whole tiles that fits by plans of the policy, between `fitting`
 * and `beyond` tiles, up to `unit` tiles. */
static int64_t longest_between(const train_options* o, int64_t most_slices, int64_t fitting,
                               int64_t beyond, int64_t unit) {
    train_options other = *o;
    while (beyond - fitting > unit) {
        const int64_t middle = fitting + (beyond - fitting) / 2;
        other.sequence = middle * o->tile;
        if (fits_in(&other, (memo_policy)o->policy, most_slices))
            fitting = middle;
        else
            beyond = middle;
    }
    return fitting * o->tile;
}

/* Returns the longest sequence that fits the budgets, up to a 32nd; 0: none.  n_tiles: a length
 * that fits; 0: none is known. */
static int64_t longest_sequence(const train_options* o, int64_t n_tiles, int64_t most_slices) {
    const int64_t n_most = gpt_min(1 << 24, 64 * o->sequence) / o->tile + 1;
    train_options other = *o;
    int64_t beyond = n_tiles ? 2 * n_tiles : 1;
    for (; beyond <= n_most; beyond *= 2) {
        other.sequence = beyond * o->tile;
        if (!fits_in(&other, (memo_policy)o->policy, most_slices)) break;
        n_tiles = beyond;
    }
    return longest_between(&other, most_slices, n_tiles, beyond, (beyond + 63) / 64);
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

/* Writes ", --policy recompute". */
static void put_way(memo_text* text, const char* way, const char* more) {
    memo_text_put(text, "%s%s%s", text->n_bytes ? ", " : "", way, more);
}
/* The same if the run fits with these options.  Returns whether it does. */
static int put_fitting(memo_text* text, const train_options* other, memo_policy policy,
                       const char* way, const char* more) {
    const int fits = fits_with(other, policy);
    if (fits) put_way(text, way, more);
    return fits;
}

/* Writes the largest part of the batch that fits, with as many sequences in a step as before. */
static void put_batch(const train_options* o, memo_policy policy, memo_text* text) {
    const int64_t each = (o->data > 1 ? o->data : 1) * (o->sub_batches > 1 ? o->sub_batches : 1);
    const int64_t n = o->batch / each;
    train_options other = *o;
    int64_t n_parts = 2;

    /* If the smallest part does not fit, none does. */
    other.batch = each;
    other.accumulate = o->accumulate * n;
    if (n < 2 || other.accumulate > 65536 || !fits_with(&other, policy)) return;
    for (; n_parts < n; n_parts++) {
        other.batch = o->batch / n_parts;
        other.accumulate = o->accumulate * n_parts;
        if (n % n_parts == 0 && fits_with(&other, policy)) break;
    }
    put_way(text, "--batch ",
            text_of("%lld --accumulate %lld", o->batch / n_parts, o->accumulate * n_parts));
}

/* Writes each change of the computation with which the run fits; the cheapest first. */
static void put_cheap_ways(const train_options* o, memo_policy except, memo_text* text) {
    enum { N_CHUNKS = 64 };
    train_options other = *o;
    int64_t slice_rows;

    /* cuDNN's backward in any order is faster: the deterministic one takes memory for each pair of
     * a query and a key.  Slices, an MLP in chunks and parts of the batch add gradients in another
     * order. */
    other.is_deterministic = 0;
    if (o->is_deterministic && !o->compare && train_attention_bytes(o))
        put_fitting(text, &other, except, "--deterministic 0", "");
    other = *o;
    other.slice_rows = 0;
    if (o->slice_rows && run_fits(&other, except, N_SLICES_TRIED, &slice_rows))
        put_way(text, "--slice-rows ", text_of("%lld", (long long)slice_rows));
    other = *o;
    other.mlp_rows = gpt_round_up((train_rows(o) + N_CHUNKS - 1) / N_CHUNKS, o->tile);
    if (!o->mlp_rows && other.mlp_rows < train_rows(o))
        put_fitting(text, &other, except, "--mlp-rows ", text_of("%lld", other.mlp_rows));
    put_batch(o, except, text);

    /* Another policy; none takes less than memo with a fraction for each tensor. */
    other = *o;
    if (except == MEMO_POLICY_MEMO && o->alpha < 0) return;
    if (o->alpha > 0) other.alpha = 0;
    for (int i = 0; i < train_n_policies(o); i++) {
        const memo_policy policy = policy_order[i];
        const int has_alpha = plans_rows(policy) && o->alpha >= 0;
        if (policy == except && !(has_alpha && o->alpha > 0)) continue;
        if (put_fitting(text, &other, policy, "--policy ", policy_names[policy]) && has_alpha)
            memo_text_put(text, " --alpha 0");
    }
}

static int is_short(const int64_t* parts) { return is_over(parts[TIER_WHOLE], parts[TIER_LIMIT]); }

/* Writes the budgets in which this plan fits: of each tier that lacks memory. */
static void put_budgets(int64_t tiers[3][N_TIER_PARTS], memo_text* text) {
    static const char* const names[] = {"--device-memory ", "--host-memory ",
                                        "another --spill with free space of "};
    const char* between = text->n_bytes ? ", " : "";
    for (int tier = 0; tier < 3; tier++) {
        if (!is_short(tiers[tier])) continue;
        memo_text_put(text, "%s%s%s", between, names[tier], bytes_option(tiers[tier][TIER_WHOLE]));
        between = " and ";
    }
}

static void put_shorter(const train_options* o, memo_text* text) {
    const int64_t n_tiles = (o->sequence + o->tile - 1) / o->tile;
    const int64_t fitting = longest_between(o, N_SLICES_TRIED, 0, n_tiles, (n_tiles + 31) / 32);
    memo_text_put(text, "%s", text->n_bytes ? ", or " : "");
    if (fitting)
        memo_text_put(text, "--seq %lld", (long long)fitting);
    else
        memo_text_put(text, "a smaller --hidden or fewer --layers");
}

/* What the policy needs at least; of the host less may be enough, but for a given fraction. */
static void put_needs(const train_options* o, const memo_step_plan* plan, int is_device,
                      const int64_t* parts, memo_text* text) {
    const memo_policy policy = (memo_policy)o->policy;
    memo_text_put(text, "policy %s ", policy_names[policy]);
    if (!is_device && plans_rows(policy) && !(o->alpha > 0))
        memo_text_put(text, "takes");
    else if (!plans_rows(policy))
        memo_text_put(text, "needs");
    else if (o->alpha > 0)
        memo_text_put(text, "needs at alpha %.4g", alpha_of(plan));
    else if (is_by_alpha(o, policy))
        memo_text_put(text, "needs, even at alpha 0,");
    else
        memo_text_put(text, "needs, even with all but layer inputs recomputed,");
    memo_text_put(text, " %s", bytes_beside(parts[TIER_WHOLE], parts[TIER_LIMIT]));
    if (plan->swap.n_slices > 1 && !o->slice_rows)
        memo_text_put(text, " in slices of %lld rows", (long long)plan->swap.n_rows);
}

/* Writes ", cuDNN's deterministic backward 8.0 GiB", of which a plan's kernels have scratch. */
static void put_attention(const train_options* o, const memo_step_plan* plan, int64_t* rest,
                          memo_text* text) {
    train_options other = *o;
    if (plan->swap.n_slices > 1) other.slice_rows = plan->swap.n_rows;
    const int64_t n_bytes = train_attention_bytes(&other);
    if (!n_bytes) return;
    memo_text_put(text, ", cuDNN's %sbackward %s", o->is_deterministic ? "deterministic " : "",
                  bytes_name(n_bytes));
    *rest -= n_bytes;
}

memo_status refuse(const train_options* o, const memo_step_plan* plan, memo_error* error) {
    static const char* const names[] = {"device memory", "host memory", "free space in --spill"};
    int64_t tiers[3][N_TIER_PARTS];
    memo_text needs = {0}, ways = {0};
    int tier = 0;

    /* What lacks, and who needs it. */
    plan_tiers(o, plan, tiers);
    while (tier < 2 && !is_short(tiers[tier])) tier++;
    const int64_t* parts = tiers[tier];
    put_needs(o, plan, tier == 0, parts, &needs);
    if (tier == 0) {
        int64_t rest = parts[TIER_BUFFERS];
        memo_text_put(&needs,
                      " (parameters, gradients and optimizer %s, activations between forward and "
                      "backward %s",
                      bytes_name(parts[TIER_STATES]), bytes_name(parts[TIER_ACTIVATIONS]));
        put_attention(o, plan, &rest, &needs);
        memo_text_put(&needs, ", the rest %s)", bytes_name(rest));
    }
    put_cheap_ways(o, (memo_policy)o->policy, &ways);
    put_budgets(tiers, &ways);
    put_shorter(o, &ways);
    memo_error_set(error, MEMO_STATUS_INFEASIBLE, "%s of %s cannot hold this run: %s; try %s",
                   bytes_beside(parts[TIER_LIMIT], parts[TIER_WHOLE]), names[tier],
                   needs.data ? needs.data : "too large", ways.data ? ways.data : "less");
    memo_text_free(&needs);
    memo_text_free(&ways);
    return MEMO_STATUS_INFEASIBLE;
}
