/* main.c - a byte-level GPT learns from text inside a memory budget that could not hold it.
 *
 *     gcc -std=c99 -D_DEFAULT_SOURCE -D_POSIX_C_SOURCE=200809L -O3 -I. -Iexamples \
 *         $(find examples/gpt -name '*.c') -o train_gpt -lpthread -lm
 *         faster with   -DGPT_BLAS='"libopenblas.so.0"' -ldl    and   -DMEMO_LP_SOLVE -llpsolve55
 *         --model with  -DGPT_JSON $(pkg-config --cflags --libs libcjson)
 *     ./train_gpt --help
 *
 * A run has four phases on a host device of the given capacity.  It profiles one layer to plan
 * rows.  It runs the first steps under every policy and compares the results bitwise.  It trains
 * the model.  It records one step, proves that the step has no race, and draws its timeline.
 *
 * main is at the end: read from there upwards.  README.md lists all files in reading order.  Ranks
 * are threads, or with -DTRAIN_MPI (mpicc) or -DTRAIN_CUDA (GPUs, over NCCL) processes. */
#include <signal.h>
#include <unistd.h>

#include "extras/memo_layout.h"
#include "gpt/kernels/threads.h"
#include "gpt/model/lora.h"
#include "gpt/run/files.h"
#include "gpt/run/plan.h"
#include "gpt/run/ranks.h"
#include "gpt/show/report.h"
#include "tools/tool_files.h"

/* What the demonstration shows, and where to look. */
static void print_demo(void) {
    printf("demo      a GPT trains in a third of the memory that keeping everything takes:\n"
           "          a few steps under each of five policies, then all under policy memo.\n"
           "          In the table of policies see which fit `budget`, and that `gradients`\n"
           "          are equal, bit by bit.  Then see the loss, beside the text's entropies.\n");
}

static void print_text(const job* j) {
    if (j->text.vocabulary) {
        printf("text      random tokens below %lld\n", (long long)j->text.vocabulary);
        return;
    }
    if (j->text.tokens.bytes) {
        printf("tokens    %lld below %lld in %s\nentropy   %.3f nats per token\n",
               (long long)j->text.n_tokens, j->options.vocabulary, j->options.tokens,
               j->text.unigram_nats);
        return;
    }
    printf("text      %lld bytes of %lld file%s", (long long)j->text.n_bytes,
           (long long)j->text.n_files, j->text.n_files == 1 ? "" : "s");
    if (j->text.is_own) printf(", the project's own sources");
    printf("\nentropy   %.3f nats per byte; %.3f for one who knows the byte before\n",
           j->text.unigram_nats, j->text.bigram_nats);
}

static void print_adapters(const gpt_config* config) {
    const gpt_config whole = gpt_whole_config(config), base = gpt_base_config(&whole);
    const char* separator = "of ";
    if (!config->lora.rank) return;
    printf("adapters  rank %d, alpha %g", config->lora.rank, config->lora.alpha);
    for (int i = 0; i < GPT_N_ADAPTED; i++) {
        if (!gpt_lora_product_at(config, i).w) continue;
        printf(", %s%.*s", separator, (int)strcspn(gpt_lora_names[i], "_"), gpt_lora_names[i]);
        separator = "";
    }
    printf(
        ": %.2f million parameters train\nfrozen    %s of weights stay in their files, which are "
        "mapped\n",
        1e-6 * (double)gpt_n_parameters(&whole),
        bytes_name(gpt_n_parameters(&base) * memo_type_bytes(config->type)));
}

static void print_model(const train_options* o) {
    const gpt_config config = train_config(o), base = gpt_base_config(&config),
                     whole = gpt_whole_config(&base);
    if (o->model) printf("weights   %s%s\n", o->model, o->is_known ? ", known by name" : "");
    printf("model     %lld layers of %lld, %lld heads (%lld of keys and values)%s: %.2f million "
           "parameters",
           o->layers, o->hidden, o->heads, o->kv_heads,
           config.mlp == GPT_MLP_SWIGLU ? ", SwiGLU" : "", 1e-6 * (double)gpt_n_parameters(&whole));
    if (config.experts.n)
        printf(", of which a token has %.2f million: %d of %d experts",
               1e-6 * (double)gpt_n_parameters_of_token(&whole), config.experts.n_chosen,
               config.experts.n);
    printf("\n");

    print_adapters(&config);
    printf("step      %lld x %lld sequences of %lld tokens, dropout %g, seed %lld", o->accumulate,
           o->batch, o->sequence, o->dropout, o->seed);
    if (o->window) printf(", window %lld", o->window);
    if (o->documents) printf(", at most %lld documents a sequence", o->documents);
    if (o->clip_by)
        printf(", clipped by %s: another training than by --clip-by step",
               o->clip_by == GPT_CLIP_LAYER ? "the norm of each layer"
                                            : "the norm of the step before");
    printf("%s\nbudget    %sdevice %s, host %s", o->is_graph ? ", by a CUDA graph" : "",
           o->ranks > 1 ? "of each rank: " : "",
           o->device_memory ? bytes_name(o->device_memory) : "unlimited",
           o->host_memory ? bytes_name(o->host_memory) : "unlimited");
    if (o->link_bandwidth || !o->is_dry_run || !o->profile)
        printf(", copies %s", o->link_bandwidth ? link_text(o) : "as fast as memory");
    if (o->spill && o->host_memory)
        printf(", a file in %s for what the host cannot hold", o->spill);
    printf("\n");
}

static void print_keep(const train_options* o, int64_t keep_bytes) {
    printf("keep      keeping every activation would need %s of device memory",
           bytes_name(keep_bytes));
    if (o->device_memory)
        printf(", %.1f times the budget", (double)keep_bytes / (double)o->device_memory);
    printf("\n");
}

static void print_slices(const job* j) {
    if (*j->why_slices)
        printf("slices    of %lld rows, because %s\n", j->options.slice_rows, j->why_slices);
}

static memo_status check_spill(const train_options* o, memo_error* error) {
    if (!o->spill || is_writable(o->spill)) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_IO, "--spill %.300s: no file can be made there: %s",
                          o->spill, strerror(errno));
}

/* Copies are measured from pinned memory beside the tokens. */
static memo_status check_measurement(const train_options* o, memo_error* error) {
    const int64_t least = train_staged_bytes(o) + 512;
    if (!o->host_memory || o->host_memory / 512 * 512 >= least) return MEMO_STATUS_OK;
    return memo_error_set(
        error, MEMO_STATUS_INFEASIBLE,
        "%s of host memory cannot hold the tokens of a step and the copies that are "
        "measured; try --host-memory %s",
        bytes_name(o->host_memory), bytes_option(least));
}

/* ---- steps of one layer, before the plan ------------------------------------------------------- */

/* A job of one layer and one micro-batch, with weights of its own.  j has no plans. */
static job small_job(const job* j) {
    job small = *j;
    if (!j->options.block_degrees) small.options.layers = 1;
    small.options.accumulate = 1;
    small.options.is_graph = 0;
    small.weights.n_tensors = small.adapter.n_tensors = 0;
    return small;
}

/* Calls function on each rank, beside a model of this policy.  Without capacities if flags have
 * RUN_LIFTED; else *fits says whether it fits, and where it does not, nothing is called. */
static memo_status try_small(job* small, memo_policy policy, int flags, int* fits,
                             memo_status (*function)(run* r, job* j, memo_error* error),
                             memo_error* error) {
    static team tried;
    memo_step_plan** plan = &small->plans[policy];
    memo_status status = train_plan(&small->options, policy, 0, NULL, NULL, plan, error);
    *fits = 0;
    if (status) return status;
    if (flags & RUN_LIFTED) (*plan)->fits = 1;
    *fits = (*plan)->fits;
    if (*fits) status = team_open(&tried, small, policy, flags, error);
    if (*fits && !status) status = team_call(&tried, function, error);
    team_close(&tried);
    memo_step_plan_destroy(*plan);
    return status;
}

#ifdef TRAIN_CUDA
/* A step, and then the least room of all GPUs.  The rank's communicators still exist. */
static memo_status rehearse_on_rank(run* r, job* j, memo_error* error) {
    int64_t room = 0;
    double loss;
    memo_status status = run_step(r, j, 0, &loss, error);
    if (!status) status = train_device_room(&r->device, &room, error);
    room = -room;
    if (!status) status = train_agree(r->rank, &room, 1, error);
    if (r->reports) j->room = -room;
    return status;
}

/* Kernels, cuBLASLt, cuDNN and NCCL's channels take device memory when they are first used, which
 * would be after the arena has all of it.  A step of one layer and few tokens, without capacities,
 * uses them before the plan is made.  The plan gets what is left then, less the reserve. */
static memo_status rehearse(job* j, memo_error* error) {
    const int64_t unit = 2 * j->options.ring * j->options.ulysses;
    const int64_t least = gpt_round_up(gpt_min(j->options.tile, 256) * 2, unit);
    const int64_t reserve = j->options.reserve;
    job small = small_job(j);
    int fits;
    if (j->options.device_memory) return MEMO_STATUS_OK;
    if (j->options.architecture.lora.rank) /* read as far as there are layers */
        small.weights = j->weights;
    small.options.sequence = gpt_min(j->options.sequence, least);
    small.options.attention_memory = 0;
    memo_status status =
        try_small(&small, MEMO_POLICY_KEEP, RUN_LIFTED, &fits, rehearse_on_rank, error);
    if (status) return status;

    j->options.device_memory = small.room > reserve ? small.room - reserve : 1;
    printf("room      %s of the GPU beside libraries", bytes_name(small.room));
#ifdef TRAIN_NCCL
    if (j->options.ranks > 1)
        printf(", NCCL's world with %s", bytes_name(memo_comm_nccl_get_device_bytes(train_world)));
#endif
    printf(", of which --reserve leaves %s\n", bytes_name(reserve));
    return MEMO_STATUS_OK;
}
#endif

/* The time of the slowest rank.  The first use of kernels takes time, so a short step is run again. */
static memo_status time_on_rank(run* r, job* j, memo_error* error) {
    int64_t ns = 0;
    double loss;
    memo_status status = MEMO_STATUS_OK;
    for (int k = 0; k < 2 && ns < 1000000000 && !status && !r->stops; k++) {
        status = run_step(r, j, k, &loss, error);
        ns = (int64_t)(1e9 * r->step_s);
        if (!status) status = train_agree(r->rank, &ns, 1, error);
    }
    if (r->reports) j->tried_s = 1e-9 * (double)ns;
    return status;
}

/* Halves slices up to three times, as long as their attention gets faster, by a hundredth at least.
 * A key head of each rank is enough, with its query heads: kernels see the lengths of the run, and
 * others repeat them.  The forward is computed twice, which takes least memory.  Bits then depend on
 * times. */
static memo_status try_slices(job* j, memo_error* error) {
    train_options* o = &j->options;
    const int64_t largest = o->slice_rows, n_keys = o->tensor * o->ulysses;
    const gpt_config config = train_config(o);
    job small = small_job(j);
    train_options* of = &small.options;
    double best_s = 0;
    memo_status status = MEMO_STATUS_OK;
    if (o->kv_heads % n_keys == 0) {
        of->architecture.head_size = (int32_t)gpt_head_size(&config);
        of->heads = n_keys * (o->heads / o->kv_heads);
        of->kv_heads = n_keys;
        of->hidden = of->heads * of->architecture.head_size;
        of->mlp_columns = 0;
    }
    of->architecture.lora.rank = 0;
    of->spill = NULL;

    for (int64_t n = 1; n <= 8 && !status && !interrupted; n *= 2) {
        int64_t fit_rows;
        int fits;
        const gpt_config tried = train_config(of);
        of->slice_rows = gpt_cut_slices(&tried, largest, n);
        if (!of->slice_rows) break;
        status = try_small(&small, MEMO_POLICY_RECOMPUTE, 0, &fits, time_on_rank, error);
        if (status || !fits) break;

        const size_t n_text = strlen(j->why_slices);
        snprintf(j->why_slices + n_text, sizeof j->why_slices - n_text,
                 "%s%.4g s in slices of %lld",
                 n > 1 ? ", " : "; a layer's attention of a key head takes ", small.tried_s,
                 (long long)of->slice_rows);
        train_options other = *o;
        other.slice_rows = of->slice_rows;
        if (n > 1 && (small.tried_s > 0.99 * best_s ||
                      !run_fits(&other, (memo_policy)o->policy, 0, &fit_rows)))
            break;
        best_s = small.tried_s;
        o->slice_rows = of->slice_rows;
    }
    return status;
}

/* ---- plans: each policy once, from one profile ----------------------------------------------- */

/* Plans a policy, unless it is planned.  In a run, another policy than the run's is a reference: if
 * it does not fit, its states stay on the device.  A dry run only states what it needs. */
static memo_status plan_policy(job* j, memo_policy policy, memo_error* error) {
    const memo_profile* profile = j->has_profile ? &j->profile : NULL;
    memo_step_plan** plan = &j->plans[policy];
    train_options o = j->options;
    if (*plan) return MEMO_STATUS_OK;
    memo_status status = train_plan(&o, policy, 0, profile, NULL, plan, error);
    if (status || (*plan)->fits || policy == (memo_policy)o.policy || !(*plan)->n_streamed ||
        o.is_dry_run)
        return status;
    memo_step_plan_destroy(*plan);
    o.states_stay = 1;
    return train_plan(&o, policy, 0, profile, NULL, plan, error);
}

static memo_status plan_policies(job* j, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int i = 0; i < train_n_policies(&j->options) && !status; i++)
        status = plan_policy(j, policy_order[i], error);
    return status;
}

static void forget_plans(job* j) {
    for (int policy = 0; policy < MEMO_N_POLICIES; policy++) {
        memo_step_plan_destroy(j->plans[policy]);
        j->plans[policy] = NULL;
    }
}

/* The times that are known without measuring: of --profile, estimates, or those beside a saved run
 * unless they are those of other micro-batches, or lack those of the file that --spill needs. */
static memo_status find_profile(job* j, memo_error* error) {
    train_options o = j->options;
    memo_status status = MEMO_STATUS_OK;
    if (o.profile) {
        status = read_profile(&o, &j->profile, error);
    } else if (o.is_dry_run) {
        estimate_profile(&o, &j->profile);
    } else {
        o.profile = path_text(o.resume, ".profile");
        if (!o.profile || access(o.profile, R_OK) || read_profile(&o, &j->profile, NULL) ||
            check_file_times(&o, &j->profile, NULL))
            return MEMO_STATUS_OK;
    }
    if (!status) status = check_file_times(&o, &j->profile, error);
    j->has_profile = !status;
    return status;
}

/* Opens the run that trains.  A timed session cannot be captured. */
static memo_status open_chosen(job* j, int more_flags, memo_error* error) {
    const memo_policy policy = (memo_policy)j->options.policy;
    const int flags = RUN_TRAINED | (j->options.is_graph ? 0 : RUN_TIMED) | more_flags;
    return team_open(&j->teams[policy], j, policy, flags, error);
}

/* Returns whether plans need times that are not known.  Keeping everything is fastest and needs
 * none, but --compare states the times of all policies. */
static memo_status needs_profile(job* j, int* needs, memo_error* error) {
    const train_options* o = &j->options;
    const int compares_all = o->compare && train_n_policies(o) == N_POLICIES;
    memo_status status = MEMO_STATUS_OK;
    *needs = 0;
    if (j->has_profile || o->alpha >= 0) return status;
    *needs = compares_all || o->policy == MEMO_POLICY_ALPHA;
    if (*needs || o->policy != MEMO_POLICY_MEMO) return status;
    status = plan_policy(j, MEMO_POLICY_KEEP, error);
    *needs =
        !status && (!j->plans[MEMO_POLICY_KEEP]->fits || j->plans[MEMO_POLICY_KEEP]->n_streamed);
    return status;
}

/* Times are known after the first steps.  A comparison needs them before: of steps that do not
 * count.  Another run trains by the session that times them, and plans. */
static memo_status measure_profile(job* j, memo_error* error) {
    memo_status status = check_measurement(&j->options, error);
    if (status) return status;
    if (j->options.compare) {
        status = time_layers(j, error);
        j->has_profile = j->is_measured = !status && !j->stops;
        return status;
    }
    status = plan_policy(j, MEMO_POLICY_KEEP, error);
    if (!status) status = open_chosen(j, RUN_TIMES, error);
    if (!status) run_take_plan(&j->teams[j->options.policy].runs[0], j);
    return status;
}

/* Takes slices, if all rows at once do not fit: `plan`.  A run that is resumed takes its own again,
 * if they fit.  Others take the largest that fit, which depend on sizes alone, and with
 * --deterministic 0 the fastest.  A refusal leaves the plan that it is about, which lacks least. */
static memo_status choose_slices(job* j, const memo_step_plan* plan, memo_error* error) {
    train_options *o = &j->options, own = *o;
    memo_step_plan* other;
    int64_t rows;
    own.slice_rows = j->resumed.slice_rows;
    const int goes_on = !o->slice_rows && own.slice_rows &&
                        run_fits(&own, (memo_policy)o->policy, 0, &rows) && rows;
    memo_status status = train_plan(goes_on ? &own : o, (memo_policy)o->policy, INT64_MAX, NULL,
                                    NULL, &other, error);
    if (status) return status;
    const int is_refused = !other->fits || o->slice_rows;
    if (is_refused) status = refuse(o, other, error);

    if (!is_refused || (!o->slice_rows && other->swap.n_slices > 1)) {
        snprintf(j->why_slices, sizeof j->why_slices, "all rows at once do not fit: %s",
                 plan_shortage(o, plan));
        o->slice_rows = other->swap.n_rows;
    }
    forget_plans(j);
    if (!is_refused) {
        memo_step_plan_destroy(other);
        if (!o->is_deterministic && !o->is_dry_run && !goes_on) status = try_slices(j, error);
        return status || interrupted ? status : find_profile(j, error);
    }
    j->plans[o->policy] = other;
    j->has_profile = 0; /* of all rows */
    return status;
}

/* Plans the policy of the run, from measured times where it needs them. */
static memo_status plan_run(job* j, memo_error* error) {
    memo_step_plan* const* plan = &j->plans[j->options.policy];
    memo_status measured = MEMO_STATUS_OK;
    memo_error why;
    int needs;
    memo_status status = needs_profile(j, &needs, error);
    if (status) return status;
    if (needs) measured = measure_profile(j, &why);
    if (!measured && j->plan) return status;
    if (!measured || measured == MEMO_STATUS_INFEASIBLE)
        status = plan_policy(j, (memo_policy)j->options.policy, error);
    if (!status && *plan && !(*plan)->fits) {
        status = choose_slices(j, *plan, error);
        return status ? status : plan_run(j, error);
    }
    if (!status) j->plan = *plan;
    return status || !measured ? status : memo_error_set(error, measured, "%s", why.message);
}

static memo_status load_text(job* j, memo_error* error) {
    const train_options* o = &j->options;
    memo_status status = MEMO_STATUS_OK;
    if (o->is_random)
        train_text_random(&j->text, o->vocabulary);
    else if (o->tokens)
        status = train_text_map(&j->text, o->tokens, o->vocabulary, o->sequence, error);
    else
        status = train_text_load(&j->text, o->sequence, error);
    if (!status && o->documents && !o->is_random)
        status = train_text_check_documents(&j->text, o, last_step(o), error);
    return status;
}

/* Loads the profile, and plans.  Nothing is trained or written yet. */
static memo_status prepare(job* j, memo_error* error) {
    const train_options* o = &j->options;
    int needs = 0;
    memo_status status = check_spill(o, error);
    if (!status) status = find_profile(j, error);
#ifdef TRAIN_CUDA
    if (!status) status = rehearse(j, error);
#endif
    if (!status) status = needs_profile(j, &needs, error);
    if (!status && !needs) status = plan_run(j, error); /* a refusal prints nothing else */
    if (status) return status;

    if (o->is_demo) print_demo();
    print_text(j);
    print_model(o);
    print_ranks(o);
    train_device_print(o);
    print_slow_link(o, "the tokens of a step", 0, 8 * o->accumulate * train_rows(o));
    fflush(stdout);
    if (needs) status = plan_run(j, error);
    if (!status) status = plan_policy(j, MEMO_POLICY_KEEP, error);
    if (!status && !o->compare && !j->own_plan.addresses) status = open_chosen(j, 0, error);
    if (status) return status;

    print_keep(o, j->plans[MEMO_POLICY_KEEP]->device_bytes);
    if (o->is_demo) print_least(o);
    if (o->is_demo) print_longest(o, *j->why_slices ? 0 : o->slice_rows);
    print_slices(j);
    const int64_t n_steps = last_step(o) - j->resumed.step;
    if (j->own_plan.addresses && n_steps <= run_timed_steps(j))
        printf("timed     all %lld steps, under policy %s; a run of %d or more trains on by a plan "
               "from their times\n",
               (long long)n_steps, memo_policy_name(j->plan->policy), (int)run_timed_steps(j) + 1);
    else if (j->own_plan.addresses)
        printf("timed     the first steps, under policy %s; the run then plans by their times, and "
               "trains on\n",
               memo_policy_name(j->plan->policy));
    else if (needs)
        print_profile(o, &j->profile);
    if (!j->own_plan.addresses) print_choice(o, j->plan, j->has_profile);
    print_plan(o, j->own_plan.addresses ? j->plan->policy : (memo_policy)o->policy, j->plan);
    fflush(stdout);
    return MEMO_STATUS_OK;
}

/* ---- the program ---------------------------------------------------------------------------- */

/* Returns whether a plan depends on measured times: not if a fraction is given, nor if everything
 * is kept. */
static int plan_needs_times(const train_options* o, const memo_step_plan* plan) {
    const int64_t n = (int64_t)plan->swap.n_layers * plan->swap.n_tensors;
    int64_t n_kept = 0;
    if (!plans_rows(o->policy) || o->alpha >= 0 || !plan->fits) return 0;
    while (n_kept < n && plan->swap.rows[n_kept] == MEMO_ROWS_KEPT) n_kept++;
    return o->policy == MEMO_POLICY_ALPHA || n_kept < n;
}

/* Plans every policy.  It needs no text and measures nothing, so only memory limits the plans. */
static memo_status dry_run(job* j, memo_error* error) {
    const train_options* o = &j->options;
    const memo_policy policy = (memo_policy)o->policy;
    const gpt_config config = train_config(o);
    memo_status status = MEMO_STATUS_OK;
    if (o->n_text_files) {
        train_text_find(&j->text, o->text_files, o->n_text_files);
        status = train_text_load(&j->text, o->sequence, error);
    }
    if (!status) status = find_profile(j, error);
    if (!status) status = plan_run(j, error);
    if (status && (status != MEMO_STATUS_INFEASIBLE || !j->plans[policy])) return status;
    const memo_status refused = status;
    const memo_error refusal = *error;

    const memo_step_plan* plan = j->plans[policy];
    print_model(o);
    print_ranks(o);
    print_slices(j);
    if (o->profile)
        print_profile(o, &j->profile);
    else if (plan_needs_times(o, plan))
        print_estimate(o);
    print_choice(o, plan, o->profile || o->link_bandwidth > 0);
    print_plan(o, policy, plan);
    if (plan->times && plan->fits && o->flops > 0) print_rate(o, plan->times->step_s);
    if (!refused) print_faster_slices(o, plan);
    /* Each length is a plan: not for every budget. */
    if (!refused && (o->cluster || o->slice_rows) && o->device_memory && !gpt_is_mixed(&config) &&
        o->ring * o->ulysses == 1)
        print_longest(o, *j->why_slices ? 0 : o->slice_rows);
    status = plan_policies(j, error);
    if (!status) print_policies(o, j->plans);
    return status || !refused ? status : memo_error_set(error, refused, "%s", refusal.message);
}

/* Training repeats the steps of the comparison. */
static memo_status check_training(const job* j, memo_error* error) {
    const int64_t n = gpt_min(j->options.compare, j->n_done);
    if (!j->compared ||
        memcmp(j->losses, j->compared[MEMO_POLICY_KEEP].losses, (size_t)n * sizeof *j->losses) == 0)
        return MEMO_STATUS_OK;
    return memo_error_set(
        error, MEMO_STATUS_INVALID_STATE,
        "training and the comparison disagree: the losses of the first %lld steps differ",
        (long long)n);
}

/* Compares the policies, and trains.  The session that trains is open, or one that was compared; a
 * graph needs one of its own, because a timed session cannot be captured. */
static memo_status work(job* j, memo_error* error) {
    const train_options* o = &j->options;
    const int is_shared = o->compare && !o->is_graph;
    team* chosen = &j->teams[o->policy];
    memo_status status = MEMO_STATUS_OK;
    if (o->compare) {
        status = plan_policies(j, error);
        if (!status) status = compare_policies(j, is_shared, error);
        if (!status && !j->stops && !is_shared) status = open_chosen(j, 0, error);
    } else {
        status = team_call(chosen, choose_steps, error);
    }
    if (!status && !j->stops) status = team_call(chosen, train_chosen, error);

    if (!status) status = check_training(j, error);
    if (!status && !interrupted && o->output) {
        if (train_is_first()) status = write_outputs(j, error);
        if (!status) print_outputs(j);
    }
    if (!status && (status = j->log_failure.status)) *error = j->log_failure;
    return status;
}

/* An error before training is an error of the command line: 2.  Later errors: 1. */
static int exit_code_of(memo_status status, int is_training) {
    if (interrupted) return 130;
    if (!status) return 0;
    return !is_training && (status == MEMO_STATUS_INVALID_ARGUMENT || status == MEMO_STATUS_IO ||
                            status == MEMO_STATUS_UNSUPPORTED || status == MEMO_STATUS_INFEASIBLE)
               ? 2
               : 1;
}

static void job_destroy(job* j) {
    for (int policy = 0; policy < MEMO_N_POLICIES; policy++) team_close(&j->teams[policy]);
    forget_plans(j);
    train_text_free(&j->text);
    free(j->losses);
    for (int policy = 0; policy < MEMO_N_POLICIES && j->compared; policy++) {
        free(j->compared[policy].step_s);
        free(j->compared[policy].digests);
    }
    free(j->compared);
    free(j->scratch);
    memo_text_free(&j->told);
    memo_degrees_free(j->options.block_degrees);
    if (j->loss_log) fclose(j->loss_log);
    gpt_unlock_checkpoint(&j->lock);
    gpt_unlock_checkpoint(&j->model_lock);
    gpt_stored_close(&j->weights);
    gpt_stored_close(&j->adapter);
    free(j->model_text);
    free(j->save_path);
}

/* Nothing is checked for options that only print. */
static memo_status read_options(int argc, char** argv, train_options* o, memo_error* error) {
    memo_status status = train_ranks_begin(&argc, &argv, error);
    if (!status) status = train_parse(argc, argv, o, error);
    train_timeout_s = o->timeout;
    if (status || o->is_help || o->is_version) return status;
    status = compute_check_stack(error);
    if (!status) status = train_take_model(o, error);
    if (!status) status = train_check_ranks(o, error);
    if (!status) status = train_device_check(o, error);
    if (!status) status = train_check_effects(o, error);
    if (!status && o->spill) {
        const int64_t n_bytes = bytes_free(o->spill);
        o->spill_free_bytes = n_bytes < (int64_t)1e18 ? n_bytes / o->ranks + 1 : 0;
    }
    return status;
}

/* *is_training: the first lines are printed. */
static memo_status run_job(job* j, int* is_training, memo_error* error) {
    const train_options* o = &j->options;
    memo_status status = compute_begin(o->ranks, error);
    if (!o->is_random && !o->tokens) train_text_find(&j->text, o->text_files, o->n_text_files);
    if (!status) status = check_files(j, error);
    if (!status) status = train_open_weights(o, &j->weights, &j->adapter, error);
    if (!status) status = load_text(j, error);
    catch_signals();
    if (!status) status = check_outputs(j, error);
    if (!status) status = prepare(j, error);
    *is_training = !status;
    if (!status && !interrupted) status = tool_flush(error);
    if (!status && !interrupted) *is_training = !(status = open_outputs(j, error));
    return status || interrupted ? status : work(j, error);
}

/* Help, a plan, or a run. */
static memo_status serve(job* j, int* is_training, memo_error* error) {
    if (j->options.is_help)
        train_print_help();
    else if (j->options.is_version)
        tool_print_version(stdout, "train_gpt");
    else
        return j->options.is_dry_run ? dry_run(j, error) : run_job(j, is_training, error);
    return MEMO_STATUS_OK;
}

int main(int argc, char** argv) {
    static team teams[MEMO_N_POLICIES];
    job j = {0};
    memo_error error;
    int is_training = 0, code;
    tool_keep_standard_streams();
    catch_signal(SIGINT, 1);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond the limit fails the write instead */
    j.begin_s = clock_s();
    j.teams = teams;
    j.lock.fd = j.model_lock.fd = -1;
    memo_status status = read_options(argc, argv, &j.options, &error);
    if (!status) status = serve(&j, &is_training, &error);

    if (!status && j.output_failure.status) {
        error = j.output_failure;
        status = error.status;
        interrupted = 0;
    }
    if (!status && !interrupted) status = tool_flush(&error);
    code = exit_code_of(status, is_training);
    if (!status && interrupted && train_is_first())
        fprintf(stderr, "train_gpt: interrupted after step %lld\n", (long long)j.n_done);
    if (status) compute_explain(&error);
    job_destroy(&j);
    gpt_helpers_end();
    return train_ranks_end(code, status, error.message);
}
