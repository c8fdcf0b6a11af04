#include "gpt/run/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "gpt/model/layout.h"
#include "gpt/run/device.h"
#include "gpt/show/report.h"

gpt_config train_config(const train_options* o) {
    static const memo_type types[] = {MEMO_TYPE_F32, MEMO_TYPE_BF16, MEMO_TYPE_BF16, MEMO_TYPE_U8};
    MEMOB_TABLE_OF(TRAIN_N_STATES, types); /* of moments */
    const gpt_config config = {
        .n_layers = (int32_t)o->layers,
        .hidden = (int32_t)o->hidden,
        .n_heads = (int32_t)o->heads,
        .n_kv_heads = (int32_t)o->kv_heads,
        .sequence = o->sequence,
        .batch = o->batch,
        .tile_rows = o->tile,
        .mlp = (gpt_mlp)o->mlp,
        .mlp_rows = o->mlp_rows,
        .mlp_columns = (int32_t)o->mlp_columns,
        .slice_rows = o->slice_rows,
        .window = o->window,
        .documents = o->documents,
        .separator = (int32_t)o->separator,
        .dropout = o->dropout,
        .seed = (uint64_t)o->seed,
        .clip_by = (gpt_clip)o->clip_by,
        .type = o->type ? MEMO_TYPE_BF16 : MEMO_TYPE_F32,
        .states = types[o->states],
        .is_pure = o->states >= TRAIN_STATES_PURE,
        .vocabulary = (int32_t)o->vocabulary,
        .head_size = o->architecture.head_size,
        .norm_epsilon = o->architecture.norm_epsilon,
        .rope = o->architecture.rope,
        .has_biases = o->architecture.has_biases,
        .has_head_norms = o->architecture.has_head_norms,
        .is_tied = o->architecture.is_tied,
        .experts = o->architecture.experts,
        .lora = o->architecture.lora,

        .data = (int32_t)o->data,
        .ring = (int32_t)o->ring,
        .ulysses = (int32_t)o->ulysses,
        .zero = (int32_t)o->zero,
        .tensor = (int32_t)o->tensor,
        .sub_batches = (int32_t)o->sub_batches,
        .schedule = (memo_blocks_order)o->schedule,
        .degrees = o->block_degrees,
    };
    return config;
}

int train_n_policies(const train_options* o) {
    const gpt_config config = train_config(o);
    return gpt_is_mixed(&config) ? 3 : N_POLICIES;
}

int64_t train_rows(const train_options* o) {
    const gpt_config config = train_config(o);
    return gpt_n_rows(&config);
}

int64_t bytes_free(const char* folder) {
    struct statvfs info;
    if (statvfs(folder, &info)) return (int64_t)1e18;
    const double n_bytes = (double)info.f_bavail * (double)info.f_frsize;
    return n_bytes < 1e18 ? (int64_t)n_bytes : (int64_t)1e18;
}

/* Returns whether the policy has one fraction for all tensors, instead of a planner's table. */
static int is_by_alpha(const train_options* o, memo_policy policy) {
    return policy == MEMO_POLICY_ALPHA || (policy == MEMO_POLICY_MEMO && o->alpha >= 0);
}

int64_t train_staged_bytes(const train_options* o) {
    const gpt_config config = train_config(o);
    return gpt_staging_bytes(&config, o->accumulate);
}

memo_session_desc train_session(const train_options* o, memo_policy policy) {
    static const memo_update update_on[] = {
        MEMO_UPDATE_PLANNED, MEMO_UPDATE_DEVICE, MEMO_UPDATE_HOST,
        MEMO_UPDATE_DEVICE,  MEMO_UPDATE_DEVICE, MEMO_UPDATE_DEVICE}; /* by --update */
    MEMOB_TABLE_OF(TRAIN_N_UPDATES, update_on);
    const int64_t n_staged = train_staged_bytes(o);
    memo_session_desc desc = MEMO_ZERO(memo_session_desc);
    desc.policy = is_by_alpha(o, policy) ? MEMO_POLICY_ALPHA : policy;
    desc.alpha = o->alpha;
    desc.micro_batches = (int32_t)o->accumulate;
    desc.device_bytes = o->device_memory;
    desc.states_stay = o->states_stay || o->is_graph;
    /* Only states that leave the device make groups faster; buffers are others where there may be
     * groups. */
    desc.n_group = desc.device_bytes ? MEMO_GROUP_PLANNED : 1;

    desc.update_on = desc.states_stay ? MEMO_UPDATE_DEVICE : update_on[o->update];
    /* It takes the gradients, which a comparison reads. */
    const int may_fuse = o->clip_by != GPT_CLIP_STEP && !o->compare;
    desc.update_may = o->update == TRAIN_UPDATE_DEFERRED ? MEMO_MAY_DEFER | MEMO_MAY_NOT_PASS
                      : o->update == TRAIN_UPDATE_FUSED  ? MEMO_MAY_FUSE | MEMO_MAY_NOT_PASS
                      : o->update == TRAIN_UPDATE_PASS   ? 0
                      : may_fuse                         ? MEMO_MAY_DEFER | MEMO_MAY_FUSE
                                                         : MEMO_MAY_DEFER;
    if (o->host_memory) /* no rows fit if it only holds the tokens */
        desc.host_bytes = o->host_memory > n_staged ? o->host_memory - n_staged : 1;
    desc.disk_bytes = o->spill_free_bytes;
    desc.spill_directory = o->spill;
    desc.spill_bytes_per_s = (double)o->spill_bandwidth;
    return desc;
}

void train_add_staged(const train_options* o, memo_step_plan* plan) {
    plan->bytes[MEMO_TIER_HOST][MEMO_OWNER_SESSION] += train_staged_bytes(o);
    plan->host_bytes += train_staged_bytes(o);
    plan->device_budget_bytes = o->device_memory; /* a timed run may have bounded itself */
    if (o->host_memory && plan->host_bytes > o->host_memory) plan->fits = 0;
}

memo_status train_plan(const train_options* o, memo_policy policy, int64_t most_slices,
                       const memo_profile* profile, const memo_step_plan* like,
                       memo_step_plan** plan, memo_error* error) {
    memo_session_desc session = train_session(o, policy);
    train_device device;
    gpt_desc desc = {0};
    memo_status status;
    if (like) desc.rows = like->swap.rows;
    if (like && like->n_group > 1) session.n_group = like->n_group; /* else a table's is 1 */
    *plan = NULL;
    if ((status = train_device_plan(&device, o, error))) return status;
    session.is_unadvised = 1; /* refuse.c names options instead of budgets */
    session.log = starting_log();
    desc.config = train_config(o);
    desc.session = &session;
    desc.kernels = &device.kernels;
    desc.most_slices = most_slices;
    status = gpt_plan(&desc, profile, plan, error);
    starting_end(session.log);
    train_device_close(&device);
    if (!status) train_add_staged(o, *plan);
    return status;
}

static const char* rate_name(double bytes_per_s) {
    static const char* const units[] = {"KB/s", "MB/s", "GB/s"};
    const int i = bytes_per_s < 1e6 ? 0 : bytes_per_s < 1e9 ? 1 : 2;
    return text_of("%.4g %s", bytes_per_s / pow(1000, i + 1), units[i]);
}

const char* link_text(const train_options* o) {
    const double to_host = train_link(o, 0), to_device = train_link(o, 1);
    return to_host == to_device
               ? text_of("%s each way", rate_name(to_host))
               : text_of("%s to the host, %s back", rate_name(to_host), rate_name(to_device));
}

void print_slow_link(const train_options* o, const char* what, int64_t to_host_bytes,
                     int64_t to_device_bytes) {
    const double to_host = train_link(o, 0), to_device = train_link(o, 1);
    const double s =
        to_host > 0 ? fmax((double)to_host_bytes / to_host, (double)to_device_bytes / to_device)
                    : 0;
    if (s > 60)
        printf("link      copies of %s take %s or longer at %s\n", what, duration_name(s),
               link_text(o));
}

static const char* const tier_names[] = {"device", "host", "disk"};
MEMOB_TABLE_OF(MEMO_N_TIERS, tier_names);

void plan_tiers(const train_options* o, const memo_step_plan* p,
                int64_t tiers[MEMO_N_TIERS][N_TIER_PARTS]) {
    const int64_t limits[] = {o->device_memory, o->host_memory, o->spill_free_bytes};
    MEMOB_TABLE_OF(MEMO_N_TIERS, limits);
    static const int parts_of[] = {TIER_STATES,      TIER_STATES,  TIER_STATES, TIER_STATES,
                                   TIER_ACTIVATIONS, TIER_BUFFERS, TIER_BUFFERS};
    MEMOB_TABLE_OF(MEMO_N_OWNERS, parts_of);
    for (int tier = 0; tier < MEMO_N_TIERS; tier++) {
        int64_t* parts = tiers[tier];
        memset(parts, 0, N_TIER_PARTS * sizeof *parts);
        for (int owner = 0; owner < MEMO_N_OWNERS; owner++) {
            parts[parts_of[owner]] += p->bytes[tier][owner];
            parts[TIER_WHOLE] += p->bytes[tier][owner];
        }
        parts[TIER_LIMIT] = limits[tier];
    }
}

int is_short(const int64_t* tier) {
    return tier[TIER_LIMIT] && tier[TIER_WHOLE] > tier[TIER_LIMIT];
}

const char* plan_shortage(const train_options* o, const memo_step_plan* p) {
    int64_t tiers[MEMO_N_TIERS][N_TIER_PARTS];
    const char* text = "";
    plan_tiers(o, p, tiers);
    for (int tier = 0; tier < MEMO_N_TIERS; tier++) {
        const int64_t whole = tiers[tier][TIER_WHOLE], limit = tiers[tier][TIER_LIMIT];
        if (is_short(tiers[tier]))
            text = text_of("%s%s%s: needs %s of %s", text, *text ? ", " : "", tier_names[tier],
                           bytes_beside(whole, limit), bytes_beside(limit, whole));
    }
    return text;
}

int64_t moved_bytes(const train_options* o, const memo_step_plan* plan) {
    return 2 * o->accumulate / plan->n_group * plan->sizes.swapped_bytes;
}

/* Returns the rows of a tensor that alpha splits, in an even layer. */
static int64_t alpha_rows(const memo_step_plan* plan) { return plan->swap.rows[GPT_NORM1]; }
static double alpha_of(const memo_step_plan* plan) {
    return (double)alpha_rows(plan) / (double)plan->swap.n_rows;
}

static void print_alpha(const train_options* o, const memo_step_plan* plan) {
    printf("alpha     %.4g: %lld of %lld rows swapped, the others recomputed, in tiles of %lld",
           alpha_of(plan), (long long)alpha_rows(plan), (long long)train_rows(o), o->tile);
    if (o->alpha >= 0 && fabs(o->alpha - alpha_of(plan)) > 1e-9)
        printf("; rounded from --alpha %g to whole tiles", o->alpha);
    printf("\n");
}

static const char* batches_name(const memo_step_plan* plan) {
    return plan->n_group > 1 ? text_of("%d micro-batches", (int)plan->n_group) : "a micro-batch";
}

/* Prints the bytes of rows that move, that recomputation makes again, and that stay: rows that
 * nothing takes the place of stay even where the table lets them move. */
static void print_rows(const memo_step_plan* plan) {
    const memo_swap_desc* swap = &plan->swap;
    int64_t all = 0, recomputed = 0;
    for (int32_t i = 0; i < swap->n_layers; i++)
        for (int32_t k = 0; k < swap->n_tensors; k++) {
            const int64_t rows = swap->rows[(int64_t)i * swap->n_tensors + k];
            const int64_t row_bytes = swap->tensors[k].row_bytes;
            all += swap->n_rows * row_bytes;
            recomputed += rows < 0 ? 0 : (swap->n_rows - rows) * row_bytes;
        }
    printf("rows      %s kept, %s swapped, %s recomputed in %s; --rows lists them\n",
           bytes_name(all - recomputed - plan->sizes.swapped_bytes),
           bytes_name(plan->sizes.swapped_bytes), bytes_name(recomputed), batches_name(plan));
}

void print_choice(const train_options* o, const memo_step_plan* plan, int is_measured) {
    const int is_alpha = is_by_alpha(o, (memo_policy)o->policy);
    const int has_rows = o->lists_rows && !is_alpha;
    memo_text text = {0};
    if (!plans_rows(o->policy)) return;
    if (is_alpha)
        print_alpha(o, plan);
    else if (!has_rows)
        print_rows(plan);
    if (is_alpha && o->alpha >= 0) return;

    /* memo's words: rows, if they are listed, the limit, and times, if they were measured.  The
     * lines behind them are those of print_plan. */
    memo_step_plan_put(plan, &text);
    for (char* line = text.data ? strtok(text.data, "\n") : NULL; line && strncmp(line, "plan ", 5);
         line = strtok(NULL, "\n")) {
        const int is_time = !strncmp(line, "predicted ", 10);
        if (!strncmp(line, "limit ", 6) || (is_time ? is_measured : has_rows)) puts(line);
    }
    memo_text_free(&text);
}

void print_plan(const train_options* o, memo_policy policy, const memo_step_plan* p) {
    printf("plan      policy %s: device %s", memo_policy_name(policy), bytes_name(p->device_bytes));
    if (p->addresses->proof == MEMO_PROOF_OPTIMAL)
        printf(" (%lld buffers, optimal)", (long long)p->addresses->n_buffers);
    else
        printf(" (%lld buffers, lower bound %s)", (long long)p->addresses->n_buffers,
               bytes_name(p->addresses->lower_bound_bytes));
    printf(", %s of rows moved in a step", bytes_name(moved_bytes(o, p)));
    if (p->times && p->n_streamed)
        printf(" and %s of states",
               bytes_name(p->times->to_host_bytes + p->times->to_device_bytes - moved_bytes(o, p)));
    if (p->sizes.n_spilled_layers)
        printf(", %d %s' through a file of %s", (int)p->sizes.n_spilled_layers,
               p->swap.n_slices > 1 ? "slices of layers" : "layers",
               bytes_name(p->sizes.spill_bytes));
    printf("\n");

    int64_t tiers[MEMO_N_TIERS][N_TIER_PARTS];
    plan_tiers(o, p, tiers);
    printf("memory          states  activations      buffers        whole        limit\n");
    for (int tier = 0; tier < (p->disk_bytes ? MEMO_N_TIERS : MEMO_TIER_FILE); tier++) {
        printf("  %-7s", tier_names[tier]);
        for (int part = 0; part < N_TIER_PARTS; part++)
            printf(" %12s",
                   tiers[tier][part] || part < TIER_LIMIT ? bytes_name(tiers[tier][part]) : "none");
        printf("\n");
    }
    if (p->n_group > 1)
        printf("groups    %s go through each layer together, so that states travel once for all\n",
               batches_name(p));
    if (p->n_streamed)
        printf("update    %s\n", p->update_is_on_host
                                     ? "on the host, where moments and master weights stay"
                                 : p->update_at == MEMO_UPDATE_DEFERRED
                                     ? "on the device, of each layer before its next forward"
                                 : p->update_at == MEMO_UPDATE_FUSED
                                     ? "on the device, of each layer in its last backward"
                                     : "on the device, behind the backward");

    /* Without times, rows go both ways, and each state that the device updates comes once. */
    int64_t to_host = moved_bytes(o, p) / 2, to_device = to_host;
    if (!p->update_is_on_host) to_device += tiers[1][TIER_STATES];
    if (p->times) to_host = p->times->to_host_bytes, to_device = p->times->to_device_bytes;
    print_slow_link(o, "a step", to_host, to_device);
}

const char* alpha_name(const train_options* o, memo_policy policy, const memo_step_plan* plan) {
    if (policy == MEMO_POLICY_SWAP || is_by_alpha(o, policy))
        return text_of("%.4g", round(1e4 * alpha_of(plan)) / 1e4); /* at most six characters */
    return policy == MEMO_POLICY_MEMO ? "rows" : "-";
}

void print_policies(const train_options* o, memo_step_plan* const* plans) {
    printf("\npolicy       alpha  device memory  host memory       rows moved  fits\n");
    for (int i = 0; i < train_n_policies(o); i++) {
        const memo_policy policy = policy_order[i];
        const memo_step_plan* plan = plans[policy];
        const char* reason = plan_shortage(o, plan);
        printf("%-10s %7s %14s %12s %16s  %s%s\n", memo_policy_name(policy),
               alpha_name(o, policy, plan), bytes_name(plan->device_bytes),
               bytes_name(plan->host_bytes), bytes_name(moved_bytes(o, plan)),
               *reason ? "no, " : "yes", reason);
    }
}
