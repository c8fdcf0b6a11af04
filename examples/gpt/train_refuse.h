/* train_refuse.h - why a run does not fit, and what would. */
#ifndef TRAIN_REFUSE_H
#define TRAIN_REFUSE_H

#include "train_plan.h"

static int fits_with(const train_options* o, memo_policy policy) {
    memo_step_plan* plan;
    if (train_plan(o, policy, NULL, &plan, NULL)) return 0;
    int fits = plan->fits;
    memo_step_plan_destroy(plan);
    return fits;
}

/* Returns the longest sequence of whole tiles that fits, between `fitting` and `beyond` tiles, up
 * to `unit` tiles. */
static int64_t longest_between(const train_options* o, memo_policy policy, int64_t fitting,
                               int64_t beyond, int64_t unit) {
    train_options other = *o;
    while (beyond - fitting > unit) {
        const int64_t middle = fitting + (beyond - fitting) / 2;
        other.sequence = middle * o->tile;
        if (fits_with(&other, policy))
            fitting = middle;
        else
            beyond = middle;
    }
    return fitting * o->tile;
}

/* Returns the longest sequence that fits the budgets, up to a 32nd; 0: none. */
static int64_t longest_sequence(const train_options* o) {
    train_options other = *o;
    int64_t n_tiles = 1, longest;
    other.alpha = 0; /* it takes least memory on the device */
    for (other.sequence = o->tile; other.sequence <= gpt_min(1 << 24, 64 * o->sequence) &&
                                   fits_with(&other, MEMO_POLICY_ALPHA);
         other.sequence = n_tiles * o->tile)
        n_tiles *= 2;
    longest = longest_between(&other, MEMO_POLICY_ALPHA, n_tiles / 2, n_tiles, (n_tiles + 63) / 64);
    return longest;
}

/* Prints the lengths that fit with and without slices, unless none does.  Slices that are not given
 * are a 32nd of the shorter one. */
static void print_longest(const train_options* o) {
    train_options other = *o;
    other.slice_rows = 0;
    int64_t without = longest_sequence(&other);
    other.slice_rows =
        o->slice_rows ? o->slice_rows : gpt_round_up(o->batch * without / 32 + 1, o->tile);
    int64_t with = longest_sequence(&other);
    if (with)
        printf("longest   %lld tokens a sequence fit in slices of %lld rows (--slice-rows), %lld "
               "without\n",
               (long long)with, other.slice_rows, (long long)without);
}

/* Writes ", --policy recompute" for each change with which the run fits. */
static void put_alternatives(const train_options* o, memo_policy except, memo_text* text) {
    enum { N_CHUNKS = 64 };
    train_options other = *o;

    /* Another policy. */
    if (o->alpha > 0) other.alpha = 0;
    for (int i = 0; i < train_n_policies(o); i++) {
        const memo_policy policy = policy_order[i];
        const int has_alpha = plans_rows(policy) && o->alpha >= 0;
        if (policy == except && !(has_alpha && o->alpha > 0)) continue;
        if (fits_with(&other, policy))
            memo_text_put(text, ", --policy %s%s", policy_names[policy],
                          has_alpha ? " --alpha 0" : "");
    }

    /* The MLP in chunks; cuDNN's backward in any order: the deterministic one takes memory for each
     * pair of a query and a key. */
    other = *o;
    other.mlp_rows = gpt_round_up((train_rows(o) + N_CHUNKS - 1) / N_CHUNKS, o->tile);
    if (!o->mlp_rows && fits_with(&other, except))
        memo_text_put(text, ", --mlp-rows %lld", other.mlp_rows);
    other = *o;
    other.is_deterministic = 0;
    if (o->is_deterministic && !o->compare && fits_with(&other, except))
        memo_text_put(text, ", --deterministic 0");

    /* A shorter sequence. */
    const int64_t fitting = longest_between(o, except, 0, (o->sequence + o->tile - 1) / o->tile, 1);
    if (fitting)
        memo_text_put(text, ", or --seq %lld", (long long)fitting);
    else
        memo_text_put(text, ", or a smaller --hidden or fewer --layers");
}

static const char* refused_policy(const train_options* o, memo_policy policy,
                                  const memo_step_plan* plan, char* text, size_t n_text) {
    const char* name = policy_names[policy];
    if (!plans_rows(policy))
        snprintf(text, n_text, "policy %s needs", name);
    else if (o->alpha > 0)
        snprintf(text, n_text, "policy %s needs at alpha %.4g", name, alpha_of(plan));
    else if (is_by_alpha(o, policy))
        snprintf(text, n_text, "policy %s needs, even at alpha 0,", name);
    else
        snprintf(text, n_text, "policy %s needs, even with all but layer inputs recomputed,", name);
    return text;
}

/* Explains why this plan cannot run, and suggests what would work. */
static memo_status refuse(const train_options* o, const memo_step_plan* plan, memo_error* error) {
    const gpt_config config = train_config(o);
    const memo_policy policy = (memo_policy)o->policy;
    const double peak = (double)plan->device_bytes, states = (double)gpt_state_bytes(&config);
    const double activations = (double)plan->activation_bytes;
    const int is_device = is_over(plan->device_bytes, plan->device_budget_bytes);
    char needs[80];
    memo_text text = {0};
    refused_policy(o, policy, plan, needs, sizeof needs);
    if (is_device && is_over(plan->host_bytes, plan->host_budget_bytes))
        memo_text_put(&text, " and --host-memory %s", bytes_option(plan->host_bytes));
    put_alternatives(o, policy, &text);
    const char* others = text.data ? text.data : "";

    if (is_device)
        memo_error_set(
            error, MEMO_STATUS_INFEASIBLE,
            "%s of device memory cannot hold this run: %s %s (parameters, gradients and optimizer "
            "%s, activations between forward and backward %s, the rest %s); try --device-memory "
            "%s%s",
            bytes_name((double)o->device_memory), needs, bytes_name(peak), bytes_name(states),
            bytes_name(activations), bytes_name(peak - states - activations),
            bytes_option(plan->device_bytes), others);
    else
        memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                       "%s of host memory cannot hold this run: %s %s; try --host-memory %s%s",
                       bytes_name((double)o->host_memory), needs,
                       bytes_name((double)plan->host_bytes), bytes_option(plan->host_bytes),
                       others);
    memo_text_free(&text);
    return MEMO_STATUS_INFEASIBLE;
}

/* The file of a plan must fit into --spill. */
static memo_status check_spill_room(const train_options* o, const memo_step_plan* plan,
                                    memo_error* error) {
    const int64_t free_bytes = plan->sizes.spill_bytes ? spill_bytes_free(o) : 0;
    if (plan->sizes.spill_bytes <= free_bytes) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                          "--spill %.300s: a rank's file of %s does not fit into %s of free space; "
                          "another folder, or more --host-memory, would work",
                          o->spill, bytes_name((double)plan->sizes.spill_bytes),
                          bytes_name((double)free_bytes));
}

/* Copies are measured from pinned memory beside the tokens. */
static memo_status check_measurement(const train_options* o, memo_error* error) {
    const gpt_config config = train_config(o);
    const int64_t least = gpt_staging_bytes(&config, o->accumulate) + 512;
    if (!o->host_memory || o->host_memory / 512 * 512 >= least) return MEMO_STATUS_OK;
    return memo_error_set(
        error, MEMO_STATUS_INFEASIBLE,
        "%s of host memory cannot hold the tokens of a step and the copies that are "
        "measured; try --host-memory %s",
        bytes_name((double)o->host_memory), bytes_option(least));
}

#endif
