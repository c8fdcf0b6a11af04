/* train_plan.h - before anything is allocated: what a run needs under each policy, and which alpha.
 *
 * A candidate is a policy with its alpha and the plan that follows: a dry run of the model records
 * what one micro-batch requests, and memo_plan_solve lays it out.  Single translation unit:
 * everything is static. */
#ifndef TRAIN_PLAN_H
#define TRAIN_PLAN_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "memo.h"
#include "memo_plan.h"
#include "gpt_model.h"
#include "train_options.h"
#include "train_report.h"

typedef struct candidate {
    gpt_desc desc; /* without devices: a dry run */
    memo_swap_sizes sizes;
    int64_t device_bytes; /* all of the plan */
    int64_t host_bytes;   /* pinned: swapped rows, and the way in for tokens */
    memo_trace* trace;
    memo_plan* plan;
} candidate;

/* What an allocation takes of a capacity: the host device hands out units of 512 bytes. */
static int64_t counted_bytes(int64_t size_bytes) { return (size_bytes + 511) / 512 * 512; }

static gpt_config train_config(const train_options* o) {
    gpt_config config;
    memset(&config, 0, sizeof config);
    config.n_layers = (int32_t)o->layers;
    config.hidden = (int32_t)o->hidden;
    config.n_heads = (int32_t)o->heads;
    config.n_kv_heads = (int32_t)o->kv_heads;
    config.sequence = o->sequence;
    config.batch = o->batch;
    config.tile_rows = o->tile;
    config.dropout = o->dropout;
    config.seed = (uint64_t)o->seed;
    config.data = (int32_t)o->data;
    config.ring = (int32_t)o->ring;
    config.ulysses = (int32_t)o->ulysses;
    config.zero = (int32_t)o->zero;
    return config;
}

/* Of a rank. */
static int64_t train_rows(const train_options* o) {
    const gpt_config config = train_config(o);
    return gpt_n_rows(&config);
}

static void candidate_destroy(candidate* c) {
    memo_plan_destroy(c->plan);
    memo_trace_destroy(c->trace);
    memset(c, 0, sizeof *c);
}

/* Records one micro-batch without computing, and plans it. */
static memo_status candidate_plan(candidate* c, memo_error* error) {
    gpt_model* model = NULL;
    gpt_desc desc = c->desc;
    memo_plan_desc plan_desc = memo_plan_desc_default();
    memo_status status;
    plan_desc.time_limit_s = 1;
    if ((status = gpt_swap_sizes(&desc, &c->sizes, error))) return status;
    c->host_bytes =
        counted_bytes(c->sizes.host_bytes) + counted_bytes(gpt_staging_bytes(&desc.config));
    if ((status = memo_trace_create(&c->trace, error))) return status;
    desc.trace = c->trace;
    status = gpt_create(&desc, &model, error);
    if (!status) status = gpt_micro_batch(model, NULL, NULL, 0, 0, 1, error);
    gpt_destroy(model);
    if (!status) status = memo_plan_from_trace(c->trace, 0, &c->plan, error);
    if (!status) status = memo_plan_solve(c->plan, &plan_desc, error);
    if (!status) c->device_bytes = counted_bytes(c->plan->peak_bytes);
    return status;
}

static memo_status candidate_create(const train_options* o, gpt_policy policy, double alpha,
                                    int32_t n_resident_layers, candidate* c, memo_error* error) {
    memo_status status;
    memset(c, 0, sizeof *c);
    c->desc.config = train_config(o);
    c->desc.policy = policy;
    c->desc.alpha = alpha;
    c->desc.n_resident_layers = n_resident_layers;
    status = candidate_plan(c, error);
    if (status) candidate_destroy(c);
    return status;
}

/* ---- does it fit ---------------------------------------------------------------------------- */

static int device_fits(const train_options* o, const candidate* c) {
    return !o->device_memory || c->device_bytes <= o->device_memory;
}
static int host_fits(const train_options* o, const candidate* c) {
    return !o->host_memory || c->host_bytes <= o->host_memory;
}
static int candidate_fits(const train_options* o, const candidate* c) {
    return device_fits(o, c) && host_fits(o, c);
}

/* Two resident last layers, as in the paper, where they fit; else one. */
static memo_status candidate_create_fitting(const train_options* o, gpt_policy policy, double alpha,
                                            candidate* c, memo_error* error) {
    memo_status status = candidate_create(o, policy, alpha, o->layers > 1 ? 2 : 1, c, error);
    if (status || device_fits(o, c) || policy == GPT_POLICY_KEEP || o->layers == 1) return status;
    candidate_destroy(c);
    return candidate_create(o, policy, alpha, 1, c, error);
}

/* Bytes that travel in a step, both ways. */
static int64_t moved_bytes(const train_options* o, const candidate* c) {
    return 2 * o->accumulate * c->sizes.swapped_bytes;
}

/* "device: needs 163.0 MiB of 48.0 MiB"; empty where the candidate fits. */
static const char* shortage(const train_options* o, const candidate* c, char* text, size_t n_text) {
    *text = 0;
    if (!device_fits(o, c))
        snprintf(text, n_text, "device: needs %s of %s", bytes_name((double)c->device_bytes),
                 bytes_name((double)o->device_memory));
    else if (!host_fits(o, c))
        snprintf(text, n_text, "host: needs %s of %s", bytes_name((double)c->host_bytes),
                 bytes_name((double)o->host_memory));
    return text;
}

/* ---- refusal -------------------------------------------------------------------------------- */

/* ", --policy recompute" for each other policy that fits, or nothing. */
static void append_fitting_policies(const train_options* o, gpt_policy except, char* text,
                                    size_t n_text) {
    int policy;
    for (policy = GPT_POLICY_KEEP; policy <= GPT_POLICY_MEMO; policy++) {
        candidate c;
        size_t used = strlen(text);
        if (policy == (int)except && !(policy == GPT_POLICY_MEMO && o->alpha > 0)) continue;
        if (candidate_create_fitting(o, (gpt_policy)policy, 0, &c, NULL)) continue;
        if (candidate_fits(o, &c))
            snprintf(text + used, n_text - used, ", --policy %s%s", policy_names[policy],
                     policy == GPT_POLICY_MEMO && o->alpha > 0 ? " --alpha 0" : "");
        candidate_destroy(&c);
    }
}

static const char* refused_policy(const train_options* o, const candidate* c, char* text,
                                  size_t n_text) {
    if (c->desc.policy != GPT_POLICY_MEMO)
        snprintf(text, n_text, "policy %s needs", policy_names[c->desc.policy]);
    else if (o->alpha > 0)
        snprintf(text, n_text, "policy memo needs at alpha %.4g", c->sizes.alpha);
    else
        snprintf(text, n_text, "policy memo needs, even at alpha 0,");
    return text;
}

/* Why this candidate, the least demanding of its policy, cannot run, and what could. */
static memo_status refuse(const train_options* o, const candidate* c, memo_error* error) {
    char policy[64], others[160] = "";
    double peak = (double)c->device_bytes, rounding = (double)c->sizes.device_bytes;
    double states = (double)gpt_state_bytes(&c->desc.config);
    refused_policy(o, c, policy, sizeof policy);
    append_fitting_policies(o, c->desc.policy, others, sizeof others);
    if (!device_fits(o, c))
        return memo_error_set(
            error, MEMO_STATUS_INFEASIBLE,
            "%s of device memory cannot hold this run: %s %s (parameters, gradients and optimizer "
            "%s, activations between forward and backward %s, the rest %s); try --device-memory "
            "%s%s%s",
            bytes_name((double)o->device_memory), policy, bytes_name(peak), bytes_name(states),
            bytes_name(rounding), bytes_name(peak - states - rounding),
            bytes_option(c->device_bytes), others,
            states < (double)o->device_memory ? ", or a shorter --seq"
                                              : ", or a smaller --hidden or fewer --layers");
    return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                          "%s of host memory cannot hold this run: %s %s; try --host-memory "
                          "%s%s, or a shorter --seq",
                          bytes_name((double)o->host_memory), policy,
                          bytes_name((double)c->host_bytes), bytes_option(c->host_bytes), others);
}

/* ---- alpha ---------------------------------------------------------------------------------- */

typedef struct copy_profile {
    double layer_forward_s; /* median over layers; 0: not measured */
    double bytes_per_s;     /* of copies to the host, median over layers; 0: not measured */
} copy_profile;

typedef struct alpha_choice {
    memo_alpha result;
    copy_profile profile;
    int is_chosen; /* 0: pinned, or the policy has none */
} alpha_choice;

/* One tile's share of the rows of a micro-batch. */
static double tile_fraction(const train_options* o) {
    return o->tile < train_rows(o) ? (double)o->tile / (double)train_rows(o) : 1;
}

/* Device memory as a line over alpha, which the program wants.  It grows evenly from the first tile
 * on, but that tile brings a jump: tensors that must lie in one piece leave the shared scratch.
 * Where the device cannot hold even one tile, the line over the jump says so. */
static void fit_device_line(const train_options* o, const candidate* none, const candidate* tile,
                            const candidate* all, memo_alpha_desc* desc) {
    const candidate* low = device_fits(o, tile) && tile->sizes.alpha < 1 ? tile : none;
    const candidate* high = low == tile ? all : tile;
    double slope =
        (double)(high->device_bytes - low->device_bytes) / (high->sizes.alpha - low->sizes.alpha);
    if (slope < 0) slope = 0;
    desc->device_slope_bytes = (int64_t)ceil(slope);
    desc->device_base_bytes = low->device_bytes - (int64_t)(slope * low->sizes.alpha);
    desc->device_bytes = o->device_memory;
}

/* The paper's program, filled from dry runs: nothing swapped, one tile of rows, and all. */
static memo_status solve_alpha(const train_options* o, const candidate* none,
                               const copy_profile* profile, memo_alpha* alpha, memo_error* error) {
    memo_alpha_desc desc = memo_alpha_desc_default();
    int32_t n_resident = none->desc.n_resident_layers;
    candidate tile, all;
    memo_status status =
        candidate_create(o, GPT_POLICY_MEMO, tile_fraction(o), n_resident, &tile, error);
    if (status) return status;
    status = candidate_create(o, GPT_POLICY_MEMO, 1, n_resident, &all, error);
    if (!status) {
        desc.whole_bytes = none->sizes.layer_swapped_bytes;
        desc.others_bytes = all.sizes.layer_swapped_bytes - none->sizes.layer_swapped_bytes;
        desc.bandwidth_bytes_per_s = profile->layer_forward_s > 0 ? profile->bytes_per_s : 0;
        desc.layer_forward_s = profile->layer_forward_s;
        desc.n_layers = none->sizes.n_swapped_layers + 2; /* the program takes two off again */
        if (o->host_memory)
            desc.host_bytes = o->host_memory - counted_bytes(gpt_staging_bytes(&none->desc.config));
        fit_device_line(o, none, &tile, &all, &desc);
        desc.n_rows = train_rows(o);
        desc.tile_rows = o->tile;
        status = memo_plan_alpha(&desc, alpha, error);
        candidate_destroy(&all);
    }
    candidate_destroy(&tile);
    return status;
}

/* Replaces *c, which is planned at alpha = 0, by the candidate of the largest alpha that serves. */
static memo_status candidate_choose_alpha(const train_options* o, const copy_profile* profile,
                                          candidate* c, alpha_choice* choice, memo_error* error) {
    int32_t n_resident = c->desc.n_resident_layers;
    double alpha;
    memo_status status = solve_alpha(o, c, profile, &choice->result, error);
    if (status) return status;
    choice->is_chosen = 1;
    choice->profile = *profile;
    for (alpha = choice->result.alpha; alpha > 0; alpha -= tile_fraction(o)) {
        candidate larger;
        if ((status = candidate_create(o, GPT_POLICY_MEMO, alpha, n_resident, &larger, error)))
            return status;
        if (candidate_fits(o, &larger)) {
            candidate_destroy(c);
            *c = larger;
            return MEMO_STATUS_OK;
        }
        /* The plan need not grow quite in proportion to alpha: one tile less, then. */
        choice->result.limit =
            device_fits(o, &larger) ? MEMO_ALPHA_LIMIT_HOST_MEMORY : MEMO_ALPHA_LIMIT_DEVICE_MEMORY;
        candidate_destroy(&larger);
    }
    return MEMO_STATUS_OK;
}

/* The plan for a policy as far as it goes without measuring: memo without --alpha stops at alpha =
 * 0. */
static memo_status candidate_of_policy(const train_options* o, gpt_policy policy, candidate* c,
                                       memo_error* error) {
    return candidate_create_fitting(o, policy, o->alpha > 0 ? o->alpha : 0, c, error);
}

static int needs_alpha(const train_options* o, const candidate* c) {
    return c->desc.policy == GPT_POLICY_MEMO && o->alpha < 0 && c->sizes.n_swapped_layers > 0;
}

/* ---- what is printed ------------------------------------------------------------------------ */

static void print_alpha(const train_options* o, const candidate* c, const alpha_choice* choice) {
    const memo_alpha* result = &choice->result;
    if (c->desc.policy != GPT_POLICY_MEMO) return;
    if (c->sizes.n_swapped_layers == 0 && c->desc.n_resident_layers >= o->layers) {
        printf("alpha     none: all layers are resident\n");
        return;
    }
    printf("alpha     %.4g: %lld of %lld rows swapped, the others recomputed, in tiles of %lld; ",
           c->sizes.alpha, (long long)c->sizes.swapped_rows, (long long)train_rows(o),
           (long long)o->tile);
    if (choice->is_chosen && result->limit == MEMO_ALPHA_LIMIT_NONE)
        printf("nothing limits it\n");
    else if (choice->is_chosen)
        printf("limited by %s (exactly %.4g)%s\n", memo_alpha_limit_name(result->limit),
               result->exact_alpha,
               result->is_hidden ? "" : "; even so the copies outlast a layer's forward");
    else if (o->alpha < 0)
        printf("even so the run does not fit\n");
    else if (fabs(o->alpha - c->sizes.alpha) > 1e-9)
        printf("rounded from --alpha %g to whole tiles\n", o->alpha);
    else
        printf("as --alpha says\n");
}

static void print_plan(const train_options* o, const candidate* c) {
    const memo_plan* plan = c->plan;
    printf("plan      policy %s: device %s", policy_names[c->desc.policy],
           bytes_name((double)c->device_bytes));
    if (plan->proof == MEMO_PROOF_OPTIMAL)
        printf(" (%lld buffers, optimal)", (long long)plan->n_buffers);
    else
        printf(" (%lld buffers, lower bound %s)", (long long)plan->n_buffers,
               bytes_name((double)plan->lower_bound_bytes));
    printf(", host %s, %s moved in a step", bytes_name((double)c->host_bytes),
           bytes_name((double)moved_bytes(o, c)));
    if (c->desc.policy != GPT_POLICY_KEEP)
        printf(", last %s resident", c->desc.n_resident_layers > 1 ? "two layers" : "layer");
    printf("\n");
}

/* Sets *fits: whether the chosen policy does. */
static memo_status print_policies(const train_options* o, const candidate* chosen, int* fits,
                                  memo_error* error) {
    int policy;
    printf("\npolicy       alpha  resident  device memory  host memory  moved in a step  fits\n");
    for (policy = GPT_POLICY_KEEP; policy <= GPT_POLICY_MEMO; policy++) {
        candidate own;
        const candidate* c = policy == (int)chosen->desc.policy ? chosen : &own;
        char reason[96], alpha[16] = "-", resident[16] = "all";
        memo_status status = MEMO_STATUS_OK;
        if (c == &own) status = candidate_of_policy(o, (gpt_policy)policy, &own, error);
        if (status) return status;
        if (policy >= GPT_POLICY_SWAP) snprintf(alpha, sizeof alpha, "%.4g", c->sizes.alpha);
        if (policy != GPT_POLICY_KEEP)
            snprintf(resident, sizeof resident, "%d", (int)c->desc.n_resident_layers);
        shortage(o, c, reason, sizeof reason);
        printf("%-10s %7s %9s %14s %12s %16s  %s%s\n", policy_names[policy], alpha, resident,
               bytes_name((double)c->device_bytes), bytes_name((double)c->host_bytes),
               bytes_name((double)moved_bytes(o, c)), *reason ? "no, " : "yes", reason);
        if (c == chosen) *fits = candidate_fits(o, c);
        if (c == &own) candidate_destroy(&own);
    }
    return MEMO_STATUS_OK;
}

#endif
