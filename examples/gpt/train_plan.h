/* train_plan.h - plans a run before any allocation: its memory under each policy, and the rows to
 * keep, swap and recompute.
 *
 * A candidate is a policy and a dry-run session of the model.  The session takes the policy's rows or
 * plans its own.  Single translation unit: everything is static. */
#ifndef TRAIN_PLAN_H
#define TRAIN_PLAN_H

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "memo.h"
#include "memo_plan.h"
#include "gpt_model.h"
#include "train_device.h"
#include "train_options.h"
#include "train_report.h"

typedef struct candidate {
    gpt_policy policy;
    gpt_desc desc; /* without devices and budgets; rows are the session's rows */
    memo_session* session;
    memo_swap_sizes sizes;
    int64_t device_bytes; /* all of the plan */
    int64_t host_bytes;   /* pinned: swapped rows, and the staging buffer for tokens */
    const memo_trace* trace;
    const memo_plan* plan;
    const memo_swap_desc* swap_desc;
    const memo_swap_plan* swap_plan; /* how the session chose rows; NULL: the caller gave them */
} candidate;

/* An allocation's share of a capacity: the host device allocates in units of 512 bytes. */
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
    config.mlp = (gpt_mlp)o->mlp;
    config.mlp_rows = o->mlp_rows;
    config.dropout = o->dropout;
    config.seed = (uint64_t)o->seed;
    config.type = o->is_bf16 ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
    config.states = o->has_bf16_states ? MEMO_TYPE_BF16 : MEMO_TYPE_F32;
    config.vocabulary = (int32_t)o->vocabulary;

    /* Ranks and parts. */
    config.data = (int32_t)o->data;
    config.ring = (int32_t)o->ring;
    config.ulysses = (int32_t)o->ulysses;
    config.zero = (int32_t)o->zero;
    config.tensor = (int32_t)o->tensor;
    config.sub_batches = (int32_t)o->sub_batches;
    config.schedule = (memo_blocks_order)o->schedule;
    config.degrees = o->block_degrees;
    return config;
}

/* Returns how many of the policies, from the first, support the config.  Plans of rows need one
 * degree for all blocks. */
static int train_n_policies(const train_options* o) {
    const gpt_config config = train_config(o);
    return gpt_is_mixed(&config) ? GPT_POLICY_SWAP + 1 : N_POLICIES;
}

/* Of a rank. */
static int64_t train_rows(const train_options* o) {
    const gpt_config config = train_config(o);
    return gpt_n_rows(&config);
}

static void candidate_destroy(candidate* c) {
    memo_session_destroy(c->session);
    memset(c, 0, sizeof *c);
}

/* Returns the host memory for swapped rows, without the staging buffer for tokens. */
static int64_t host_bytes_for_rows(const train_options* o) {
    const gpt_config config = train_config(o);
    const int64_t staging = gpt_staging_bytes(&config, o->accumulate);
    const int64_t host = o->host_memory / 512 * 512; /* in units of the host device */
    return host > staging ? host - staging : 1;
}

/* Returns a rank's share of the free space in --spill, at least 1; 1e18 if it is unknown.  The engine
 * reserves the file before the first step and reports the error. */
static int64_t spill_bytes_free(const train_options* o) {
    struct statvfs info;
    double n_bytes;
    if (statvfs(o->spill, &info)) return (int64_t)1e18;
    n_bytes = (double)info.f_bavail * (double)info.f_frsize / (double)o->ranks;
    return n_bytes > 1e18 ? (int64_t)1e18 : n_bytes > 1 ? (int64_t)n_bytes : 1;
}

/* Returns the budgets of a session on a rank. */
static memo_session_desc train_budgets(const train_options* o) {
    memo_session_desc desc = memo_session_desc_default();
    if (o->device_memory) /* in units of the host device */
        desc.device_bytes = o->device_memory > 512 ? o->device_memory / 512 * 512 : 1;
    if (o->host_memory) desc.host_bytes = host_bytes_for_rows(o);
    if (o->spill && o->host_memory) desc.disk_bytes = spill_bytes_free(o);
    desc.spill_directory = o->spill;
    return desc;
}

/* Creates a candidate from rows.  NULL: the session plans the rows from profile, in the budgets.
 * Frees rows. */
static memo_status candidate_plan(const train_options* o, gpt_policy policy, int64_t* rows,
                                  const memo_profile* profile, candidate* c, memo_error* error) {
    memo_session_desc budgets = train_budgets(o);
    memo_session_info info;
    train_device device;
    memo_status status;
    memset(c, 0, sizeof *c);
    if ((status = train_device_plan(&device, o, error))) {
        free(rows);
        return status;
    }
    budgets.profile = profile;
    budgets.is_alpha_only = policy == GPT_POLICY_ALPHA;
    c->policy = policy;
    c->desc.config = train_config(o);
    c->desc.rows = rows;
    c->desc.session = &budgets;
    if (!o->cluster || train_device_is_gpu()) c->desc.kernels = &device.kernels;
    status = gpt_plan(&c->desc, &c->session, error);
    train_device_close(&device);
    c->desc.session = NULL;
    c->desc.kernels = NULL;
    free(rows);
    if (status) return status;

    memo_session_get_info(c->session, &info);
    c->desc.rows = info.rows;
    c->sizes = info.sizes;
    c->device_bytes = counted_bytes(info.device_bytes);
    c->host_bytes =
        counted_bytes(info.host_bytes) + gpt_staging_bytes(&c->desc.config, o->accumulate);
    c->trace = info.trace;
    c->plan = info.plan;
    c->swap_desc = info.swap_desc;
    c->swap_plan = info.swap_plan;
    return status;
}

/* Uses the policy's table of rows.  is_least: layer inputs are swapped instead of kept, because they
 * cannot be recomputed. */
static memo_status candidate_of_rows(const train_options* o, gpt_policy rows_policy, double alpha,
                                     int is_least, gpt_policy policy, candidate* c,
                                     memo_error* error) {
    const gpt_config config = train_config(o);
    const int64_t n = o->layers * gpt_n_tensors(&config);
    int64_t *rows = (int64_t*)malloc((size_t)n * sizeof *rows), i;
    memo_status status;
    memset(c, 0, sizeof *c);
    if (!rows)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "no host memory for the rows of a plan");
    status = gpt_fill_rows(&config, rows_policy, alpha, rows, error);
    for (i = 0; i < n && is_least; i++)
        if (rows[i] == MEMO_ROWS_KEPT) rows[i] = train_rows(o);
    if (!status) return candidate_plan(o, policy, rows, NULL, c, error);
    free(rows);
    return status;
}

static memo_status candidate_create(const train_options* o, gpt_policy policy, double alpha,
                                    candidate* c, memo_error* error) {
    return candidate_of_rows(o, policy, alpha, 0, policy, c, error);
}

/* Returns whether the policy has one fraction for all tensors, instead of a planner's table. */
static int is_by_alpha(const train_options* o, const candidate* c) {
    return c->policy == GPT_POLICY_ALPHA || (c->policy == GPT_POLICY_MEMO && o->alpha >= 0);
}

/* Returns the rows of a tensor that alpha splits, in an even layer. */
static int64_t alpha_rows(const candidate* c) { return c->desc.rows[GPT_NORM1]; }
static double alpha_of(const candidate* c) {
    return (double)alpha_rows(c) / (double)gpt_n_rows(&c->desc.config);
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

/* The least demanding candidate of GPT_POLICY_MEMO.  Layer inputs, and other tensors that cannot be recomputed,
 * are swapped or kept; the rest is recomputed. */
static memo_status candidate_create_least(const train_options* o, int is_kept, candidate* c,
                                          memo_error* error) {
    return candidate_of_rows(o, GPT_POLICY_RECOMPUTE, 0, !is_kept, GPT_POLICY_MEMO, c, error);
}

/* Returns the bytes copied in a step, both ways. */
static int64_t moved_bytes(const train_options* o, const candidate* c) {
    return 2 * o->accumulate * c->sizes.swapped_bytes;
}

/* Writes "device: needs 163.0 MiB of 48.0 MiB", and the same for the host if it is short; empty if
 * the candidate fits. */
static const char* shortage(const train_options* o, const candidate* c, char* text, size_t n_text) {
    *text = 0;
    if (!device_fits(o, c))
        snprintf(text, n_text, "device: needs %s of %s", bytes_name((double)c->device_bytes),
                 bytes_name((double)o->device_memory));
    if (!host_fits(o, c))
        snprintf(text + strlen(text), n_text - strlen(text), "%shost: needs %s of %s",
                 *text ? ", " : "", bytes_name((double)c->host_bytes),
                 bytes_name((double)o->host_memory));
    return text;
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* Rates of a dry run: the fractions of the peak that layout_plan assumes too. */
#define ESTIMATE_TFLOPS             312.0 /* A100 */
#define ESTIMATE_GEMM               0.75
#define ESTIMATE_ATTENTION_FORWARD  0.6
#define ESTIMATE_ATTENTION_BACKWARD 0.55
static double estimate_tflops(const train_options* o) {
    return o->flops > 0 ? o->flops : ESTIMATE_TFLOPS;
}

/* Replaces a measured profile.  Products and attention run at the rates of --flops, copies at the
 * rate of --link-bandwidth; without it copies take no time.  Attention has two products of the causal
 * half forward and five backward.  The backward of other products takes twice their forward. */
static void estimate_profile(const train_options* o, memo_profile* profile) {
    const gpt_config config = train_config(o);
    const gpt_layout at = gpt_layout_make(&config);
    const double h = (double)o->hidden, q = (double)at.q_hidden, kv = (double)at.kv_hidden;
    const double wide = (double)at.wide, up = (double)at.up_wide, peak = 1e12 * estimate_tflops(o);
    const double product_s = 2 / (ESTIMATE_GEMM * peak); /* a multiplication and an addition */
    const double attention_flops = 2 * (double)o->sequence * q;
    const double attention_s = attention_flops / (ESTIMATE_ATTENTION_FORWARD * peak);
    const double attention_back_s = 2.5 * attention_flops / (ESTIMATE_ATTENTION_BACKWARD * peak);
    const double products[GPT_N_TENSORS] = {-1, -1,    4 * h, h * q, h * kv, h * kv,   0,
                                            -1, h * q, -1,    4 * h, h * up, 10 * wide};
    double row_s = product_s * h * wide; /* down; the other tensors it reads are below */
    double chunk_s = 0;                  /* what the backward of an MLP in chunks recomputes */
    memo_tensor tensors[GPT_N_TENSORS];
    int t;
    gpt_fill_tensors(&config, tensors);
    memset(profile, 0, sizeof *profile);
    profile->n_rows = train_rows(o);
    profile->n_tensors = gpt_n_tensors(&config);

    /* A row of each tensor, and of the layer. */
    for (t = 0; t < GPT_N_TENSORS; t++) {
        memo_profile_tensor* tensor = &profile->tensors[t];
        if (products[t] > 0) row_s += product_s * products[t];
        if (products[t] > 0 && t >= profile->n_tensors) chunk_s += product_s * products[t];
        if (t >= profile->n_tensors) continue;
        snprintf(tensor->name, sizeof tensor->name, "%s", tensors[t].name);
        tensor->recompute_s_per_row = product_s * products[t];
        if (t == GPT_ATTENTION) tensor->recompute_s_per_row = attention_s;
        if (products[t] < 0 || tensors[t].rule == MEMO_TENSOR_SWAPPED)
            tensor->recompute_s_per_row = -1;
    }
    profile->forward_s = (row_s + attention_s) * (double)profile->n_rows;
    profile->backward_s = (2 * row_s + chunk_s + attention_back_s) * (double)profile->n_rows;
    profile->between_s = 3 * (double)o->vocabulary * h * product_s * (double)profile->n_rows;

    if (o->link_bandwidth) {
        memo_profile_copy* copy = &profile->copies[profile->n_copies++];
        copy->size_bytes = o->link_bandwidth;
        copy->to_host_s = copy->to_device_s = 1;
    }
}

/* Reads --profile.  Its times must be those of a layer of this model with as many rows. */
static memo_status read_profile(const train_options* o, memo_profile* profile, memo_error* error) {
    const gpt_config config = train_config(o);
    const int32_t n_tensors = gpt_n_tensors(&config);
    memo_tensor tensors[GPT_N_TENSORS];
    memo_error reason;
    memo_status status = memo_profile_read(o->profile, profile, &reason);
    int t = 0;
    if (status) /* of any kind: a mistake of the caller */
        return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "--profile %s", reason.message);
    if (profile->n_rows != train_rows(o))
        return memo_error_set(
            error, MEMO_STATUS_INVALID_ARGUMENT,
            "--profile %.300s: has times of %lld rows, but a micro-batch of a rank "
            "has %lld; measure again with these --seq, --batch and ranks",
            o->profile, (long long)profile->n_rows, (long long)train_rows(o));

    gpt_fill_tensors(&config, tensors);
    while (t < n_tensors && t < profile->n_tensors &&
           !strcmp(profile->tensors[t].name, tensors[t].name))
        t++;
    if (t == n_tensors && t == profile->n_tensors) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT,
                          "--profile %.300s: has other tensors than this model; use a file that "
                          "--output has written",
                          o->profile);
}

/* Replaces *c, the least demanding candidate of its policy, by the fastest one.  If no plan fits, *c
 * remains. */
static memo_status candidate_choose_rows(const train_options* o, const memo_profile* profile,
                                         candidate* c, memo_error* error) {
    candidate planned;
    memo_status status = candidate_plan(o, c->policy, NULL, profile, &planned, error);
    if (status == MEMO_STATUS_INFEASIBLE) return MEMO_STATUS_OK;
    if (status) return status;
    candidate_destroy(c);
    *c = planned;
    return status;
}

/* The plan for a policy without known times: the least demanding if there is a choice. */
static memo_status candidate_of_policy(const train_options* o, gpt_policy policy, candidate* c,
                                       memo_error* error) {
    candidate kept;
    memo_status status;
    if (policy != GPT_POLICY_MEMO || o->alpha >= 0)
        return candidate_create(o, policy, o->alpha > 0 ? o->alpha : 0, c, error);
    status = candidate_create_least(o, 0, c, error);
    if (status || candidate_fits(o, c) || !device_fits(o, c)) return status;
    if ((status = candidate_create_least(o, 1, &kept, error)) || !candidate_fits(o, &kept)) {
        candidate_destroy(status ? c : &kept);
        return status;
    }
    candidate_destroy(c);
    *c = kept;
    return MEMO_STATUS_OK;
}

/* Returns whether the budget leaves a choice.  Layer inputs may fit partly kept and partly swapped
 * when neither alone fits. */
static int has_choice(const train_options* o, const candidate* c) {
    return c->policy >= GPT_POLICY_ALPHA && o->alpha < 0 &&
           (candidate_fits(o, c) || (c->policy == GPT_POLICY_MEMO && device_fits(o, c)));
}

/* Combines both; if nothing fits, the least demanding candidate. */
static memo_status candidate_planned(const train_options* o, gpt_policy policy,
                                     const memo_profile* profile, candidate* c, memo_error* error) {
    memo_status status = candidate_of_policy(o, policy, c, error);
    if (status || !has_choice(o, c)) return status;
    status = candidate_choose_rows(o, profile, c, error);
    if (status) candidate_destroy(c);
    return status;
}

/* ---- prediction ----------------------------------------------------------------------------- */

/* Of forward and backward of a step. */
typedef struct step_times {
    double layers_s, stall_s, recompute_s;
} step_times;

static int keeps_all(const candidate* c) {
    const int64_t n = (int64_t)c->desc.config.n_layers * gpt_n_tensors(&c->desc.config);
    int64_t i;
    for (i = 0; i < n; i++)
        if (c->desc.rows[i] != MEMO_ROWS_KEPT) return 0;
    return 1;
}

/* Predicts the times of planned rows, and of a plan that keeps everything if profile is not NULL.
 * Returns whether it could. */
static int candidate_predict(const train_options* o, const candidate* c,
                             const memo_profile* profile, step_times* times) {
    const double n = (double)o->accumulate, n_layers = (double)o->layers;
    memset(times, 0, sizeof *times);
    if (c->swap_plan) {
        times->layers_s = n * c->swap_plan->step_s;
        times->stall_s = n * c->swap_plan->stall_s;
        times->recompute_s = n * c->swap_plan->recompute_s;
        return 1;
    }
    if (!profile || !keeps_all(c)) return 0;
    times->layers_s =
        n * (n_layers * (profile->forward_s + profile->backward_s) + profile->between_s);
    return 1;
}

/* ---- refusal -------------------------------------------------------------------------------- */

/* Writes ", --policy recompute" for each other policy that fits, or nothing. */
static void append_fitting_policies(const train_options* o, gpt_policy except, char* text,
                                    size_t n_text) {
    train_options other = *o;
    int policy;
    if (o->alpha > 0) other.alpha = 0;
    for (policy = GPT_POLICY_KEEP; policy < train_n_policies(o); policy++) {
        const int has_alpha = policy >= GPT_POLICY_ALPHA && o->alpha >= 0;
        candidate c;
        size_t used = strlen(text);
        if (policy == (int)except && !(has_alpha && o->alpha > 0)) continue;
        if (candidate_of_policy(&other, (gpt_policy)policy, &c, NULL)) continue;
        if (candidate_fits(o, &c))
            snprintf(text + used, n_text - used, ", --policy %s%s", policy_names[policy],
                     has_alpha ? " --alpha 0" : "");
        candidate_destroy(&c);
    }
}

static int fits_with(const train_options* o, gpt_policy policy) {
    candidate c;
    int fits;
    if (candidate_of_policy(o, policy, &c, NULL)) return 0;
    fits = candidate_fits(o, &c);
    candidate_destroy(&c);
    return fits;
}

/* Writes ", --mlp-rows 64" if the MLP in so many chunks fits, or nothing. */
static void append_mlp_rows(const train_options* o, gpt_policy policy, char* text, size_t n_text) {
    enum { N_CHUNKS = 64 };
    const size_t used = strlen(text);
    train_options other = *o;
    if (o->mlp_rows) return;
    other.mlp_rows = gpt_round_up((train_rows(o) + N_CHUNKS - 1) / N_CHUNKS, o->tile);
    if (fits_with(&other, policy))
        snprintf(text + used, n_text - used, ", --mlp-rows %lld", (long long)other.mlp_rows);
}

/* Writes ", --deterministic 0" if that fits, or nothing: cuDNN's deterministic backward takes memory for each
 * pair of a query and a key. */
static void append_any_order(const train_options* o, gpt_policy policy, char* text, size_t n_text) {
    const size_t used = strlen(text);
    train_options other = *o;
    other.is_deterministic = 0;
    if (o->is_deterministic && !o->compare && fits_with(&other, policy))
        snprintf(text + used, n_text - used, ", --deterministic 0");
}

/* Writes ", or --seq 4096" with the longest sequence of whole tiles that fits, or a hint. */
static void append_length(const train_options* o, gpt_policy policy, char* text, size_t n_text) {
    const size_t used = strlen(text);
    int64_t fitting = 0, beyond = (o->sequence + o->tile - 1) / o->tile; /* in tiles */
    train_options other = *o;
    while (beyond - fitting > 1) {
        const int64_t middle = fitting + (beyond - fitting) / 2;
        other.sequence = middle * o->tile;
        if (fits_with(&other, policy))
            fitting = middle;
        else
            beyond = middle;
    }
    if (fitting)
        snprintf(text + used, n_text - used, ", or --seq %lld", (long long)(fitting * o->tile));
    else
        snprintf(text + used, n_text - used, ", or a smaller --hidden or fewer --layers");
}

static const char* refused_policy(const train_options* o, const candidate* c, char* text,
                                  size_t n_text) {
    const char* name = policy_names[c->policy];
    if (c->policy < GPT_POLICY_ALPHA)
        snprintf(text, n_text, "policy %s needs", name);
    else if (o->alpha > 0)
        snprintf(text, n_text, "policy %s needs at alpha %.4g", name, alpha_of(c));
    else if (is_by_alpha(o, c))
        snprintf(text, n_text, "policy %s needs, even at alpha 0,", name);
    else
        snprintf(text, n_text, "policy %s needs, even with all but layer inputs recomputed,", name);
    return text;
}

/* Explains why this candidate, the least demanding of its policy, cannot run, and suggests what would
 * work. */
static memo_status refuse(const train_options* o, const candidate* c, memo_error* error) {
    char policy[80], others[256] = "";
    double peak = (double)c->device_bytes, rounding = (double)c->sizes.device_bytes;
    double states = (double)gpt_state_bytes(&c->desc.config);
    refused_policy(o, c, policy, sizeof policy);
    if (!device_fits(o, c) && !host_fits(o, c))
        snprintf(others, sizeof others, " and --host-memory %s", bytes_option(c->host_bytes));
    append_fitting_policies(o, c->policy, others, sizeof others);
    append_mlp_rows(o, c->policy, others, sizeof others);
    append_any_order(o, c->policy, others, sizeof others);
    append_length(o, c->policy, others, sizeof others);

    if (!device_fits(o, c))
        return memo_error_set(
            error, MEMO_STATUS_INFEASIBLE,
            "%s of device memory cannot hold this run: %s %s (parameters, gradients and optimizer "
            "%s, activations between forward and backward %s, the rest %s); try --device-memory "
            "%s%s",
            bytes_name((double)o->device_memory), policy, bytes_name(peak), bytes_name(states),
            bytes_name(rounding), bytes_name(peak - states - rounding),
            bytes_option(c->device_bytes), others);
    return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                          "%s of host memory cannot hold this run: %s %s; try --host-memory "
                          "%s%s",
                          bytes_name((double)o->host_memory), policy,
                          bytes_name((double)c->host_bytes), bytes_option(c->host_bytes), others);
}

/* The file of a plan must fit into --spill. */
static memo_status check_spill_room(const train_options* o, const candidate* c, memo_error* error) {
    const int64_t free_bytes = c->sizes.spill_bytes ? spill_bytes_free(o) : 0;
    if (c->sizes.spill_bytes <= free_bytes) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                          "--spill %.300s: a rank's file of %s does not fit into %s of free space; "
                          "another folder, or more --host-memory, would work",
                          o->spill, bytes_name((double)c->sizes.spill_bytes),
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

/* ---- output --------------------------------------------------------------------------------- */

static void print_alpha(const train_options* o, const candidate* c) {
    printf("alpha     %.4g: %lld of %lld rows swapped, the others recomputed, in tiles of %lld",
           alpha_of(c), (long long)alpha_rows(c), (long long)train_rows(o), (long long)o->tile);
    if (c->swap_plan)
        printf("\n");
    else if (o->alpha < 0)
        printf("; even so the run does not fit\n");
    else if (fabs(o->alpha - alpha_of(c)) > 1e-9)
        printf("; rounded from --alpha %g to whole tiles\n", o->alpha);
    else
        printf("; as --alpha says\n");
}

/* Prints the placement of rows and the reason.  Times are printed only if they were measured. */
static void print_choice(const train_options* o, const candidate* c, int is_measured) {
    memo_text text;
    if (c->policy < GPT_POLICY_ALPHA) return;
    memset(&text, 0, sizeof text);
    if (is_by_alpha(o, c))
        print_alpha(o, c);
    else
        memo_swap_put_rows(c->swap_desc, &text);
    if (c->swap_plan) memo_swap_plan_put(c->swap_plan, is_measured, &text);
    if (text.data) fputs(text.data, stdout);
    memo_text_free(&text);
}

static void print_plan(const train_options* o, const candidate* c) {
    const memo_plan* plan = c->plan;
    printf("plan      policy %s: device %s", policy_names[c->policy],
           bytes_name((double)c->device_bytes));
    if (plan->proof == MEMO_PROOF_OPTIMAL)
        printf(" (%lld buffers, optimal)", (long long)plan->n_buffers);
    else
        printf(" (%lld buffers, lower bound %s)", (long long)plan->n_buffers,
               bytes_name((double)plan->lower_bound_bytes));
    printf(", host %s%s%s, %s moved in a step", bytes_name((double)c->host_bytes),
           o->host_memory ? " of " : "", o->host_memory ? bytes_name((double)o->host_memory) : "",
           bytes_name((double)moved_bytes(o, c)));
    if (c->sizes.n_spilled_layers)
        printf(", the first %d layers' through a file of %s", (int)c->sizes.n_spilled_layers,
               bytes_name((double)c->sizes.spill_bytes));
    printf("\n");
}

/* The entry of a table in the column of alpha. */
static const char* alpha_name(const train_options* o, const candidate* c, char* text,
                              size_t n_text) {
    snprintf(text, n_text, "%s", c->policy == GPT_POLICY_MEMO ? "rows" : "-");
    if (c->policy == GPT_POLICY_SWAP || is_by_alpha(o, c))
        snprintf(text, n_text, "%.4g", alpha_of(c));
    return text;
}

/* Sets *fits to whether the chosen policy fits. */
static memo_status print_policies(const train_options* o, const candidate* chosen,
                                  const memo_profile* profile, int* fits, memo_error* error) {
    int policy;
    printf("\npolicy       alpha  device memory  host memory  moved in a step  fits\n");
    for (policy = GPT_POLICY_KEEP; policy < train_n_policies(o); policy++) {
        candidate own;
        const candidate* c = policy == (int)chosen->policy ? chosen : &own;
        char reason[96], alpha[16];
        memo_status status = MEMO_STATUS_OK;
        if (c == &own) status = candidate_planned(o, (gpt_policy)policy, profile, &own, error);
        if (status) return status;
        alpha_name(o, c, alpha, sizeof alpha);
        shortage(o, c, reason, sizeof reason);
        printf("%-10s %7s %14s %12s %16s  %s%s\n", policy_names[policy], alpha,
               bytes_name((double)c->device_bytes), bytes_name((double)c->host_bytes),
               bytes_name((double)moved_bytes(o, c)), *reason ? "no, " : "yes", reason);
        if (c == chosen) *fits = candidate_fits(o, c);
        if (c == &own) candidate_destroy(&own);
    }
    return MEMO_STATUS_OK;
}

#endif
