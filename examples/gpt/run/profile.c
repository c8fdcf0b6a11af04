#include "gpt/run/plan.h"

#include "gpt/model/lora.h"
#include "tools/clusters.h"

static const cluster_preset* estimate_cluster(const train_options* o) {
    return o->cluster ? &clusters[o->cluster - 1] : NULL;
}

static cluster_rates estimate_rates_of(const train_options* o) {
    const int64_t n_keys = o->window ? gpt_min(o->window, o->sequence) : o->sequence;
    return cluster_rates_of(estimate_cluster(o), (double)n_keys); /* a token sees no more */
}

#define ESTIMATE_TFLOPS      312.0 /* A100 */
#define ESTIMATE_HOST_UPDATE 25e9  /* bytes of states a second: a GPU's share of a node's memory */
#define ESTIMATE_FETCH       10e9  /* bytes of frozen weights a second, copied from mapped files */
static double estimate_tflops(const train_options* o) {
    return o->flops > 0 ? o->flops : ESTIMATE_TFLOPS;
}

double estimate_fetch(const train_options* o) {
    return o->spill && o->spill_bandwidth ? fmin((double)o->spill_bandwidth, ESTIMATE_FETCH)
                                          : ESTIMATE_FETCH;
}

/* The tensor that a product makes first; GPT_N_TENSORS: none. */
static int estimate_tensor_of(const gpt_config* config, int w) {
    switch (w) {
    case GPT_W_QUERY: return config->has_head_norms ? GPT_Q_RAW : GPT_Q;
    case GPT_W_KEY: return config->has_head_norms ? GPT_K_RAW : GPT_K;
    case GPT_W_VALUE: return GPT_V;
    case GPT_W_PROJECTION: return GPT_MIDDLE;
    case GPT_W_UP: return GPT_UP;
    default: return GPT_N_TENSORS;
    }
}

/* Times of a row that adapters take, forward by tensor, and backward.  Their products are narrow:
 * each takes its operations and what it moves. */
static double estimate_adapters(const gpt_config* config, double product_s, double number_s,
                                double forward_s[GPT_N_TENSORS + 1]) {
    const double r = (double)config->lora.rank;
    double back_s = 0;
    memset(forward_s, 0, (GPT_N_TENSORS + 1) * sizeof *forward_s);
    for (int i = 0; i < GPT_N_ADAPTED; i++) {
        const gpt_lora_product of = gpt_lora_product_at(config, i);
        const double in = (double)of.n_inputs, out = (double)of.n_outputs;
        if (!of.w) continue;
        forward_s[estimate_tensor_of(config, of.w)] +=
            product_s * r * (in + out) + number_s * (in + 2 * out);
        back_s += product_s * r * (3 * in + 2 * out) + number_s * (5 * in + 2 * out);
    }
    return back_s;
}

void estimate_profile(const train_options* o, memo_profile* profile) {
    const gpt_config config = train_config(o);
    const gpt_layout at = gpt_layout_make(&config);
    const double h = (double)o->hidden, q = (double)at.widths.q, kv = (double)at.widths.kv;
    const double wide = (double)at.widths.wide, up = (double)at.widths.up,
                 peak = 1e12 * estimate_tflops(o);
    const cluster_rates rates = estimate_rates_of(o);
    const double product_s = 2 / (rates.products * peak); /* a multiplication and an addition */
    const double attention_flops = 4 * gpt_keys_seen(&config) * q;
    const double attention_s = attention_flops / (rates.forward * peak);
    const double attention_back_s = 2.5 * attention_flops / (rates.backward * peak);
    /* With norms of heads their inputs are the products. */
    const double raw = config.has_head_norms ? 1 : 0, of_q = raw > 0 ? 4 * q : h * q,
                 of_k = raw > 0 ? 4 * kv : h * kv;
    const double router = (double)config.experts.n;
    const double products[] = {0,     0,    4 * h,      0, raw * h * q, raw * h * kv,
                               of_q,  of_k, h * kv,     0, 0,           h * q,
                               4 * h, 0,    h * router, 0, h * up,      10 * wide};
    MEMOB_TABLE_OF(GPT_N_TENSORS, products);
    const cluster_preset* cluster = estimate_cluster(o);
    const double number_s = /* to read or write a number */
        cluster ? (double)memo_type_bytes(config.type) / (1e9 * cluster->memory_bandwidth) : 0;
    const double turned = raw > 0 ? 4 : 2; /* numbers of q and of k */
    const double moved[] = {
        0, 0, 2 * h, 0,     0, 0,      turned * q, turned * kv, 0,
        0, 0, 3 * h, 2 * h, 0, router, 0,          0,           up + wide}; /* numbers, forward */
    MEMOB_TABLE_OF(GPT_N_TENSORS, moved);
    /* down and the residual; the other tensors that down reads are below.  Backward: two norms with
     * gradients to add to, five copies, RoPE, and the MLP's function. */
    double row_s = product_s * h * wide + 3 * h * number_s;
    const double n_back = config.lora.rank ? 1 : 2; /* frozen weights have no gradients */
    double row_back_s =
        n_back * product_s * h * wide + (13 * h + 2 * q + 2 * kv + 2 * up + wide) * number_s;
    double chunk_s = 0; /* what the backward of an MLP in chunks recomputes */
    double adapter_s[GPT_N_TENSORS + 1];
    row_back_s += estimate_adapters(&config, product_s, number_s, adapter_s);
    row_s += adapter_s[GPT_N_TENSORS]; /* of down */
    memo_item tensors[GPT_N_TENSORS];
    gpt_fill_tensors(&config, tensors);
    memset(profile, 0, sizeof *profile);
    profile->length = o->sequence;
    profile->n_rows = gpt_slice_rows(&config); /* of a slice, on average */
    profile->n_tensors = gpt_n_tensors(&config);
    profile->n_kinds = 1;

    /* A row of each tensor, and of the layer. */
    for (int t = 0; t < GPT_N_TENSORS; t++) {
        memo_profile_tensor* tensor = &profile->tensors[t];
        const double product = product_s * products[t];
        const double forward_s = product + moved[t] * number_s + adapter_s[t],
                     back_s = n_back * product;
        if (products[t] > 0) row_s += forward_s, row_back_s += back_s;
        if (products[t] > 0 && t >= profile->n_tensors) chunk_s += forward_s;
        if (t >= profile->n_tensors) continue;
        snprintf(tensor->name, sizeof tensor->name, "%s", tensors[t].name);
        tensor->recompute_s_per_row[0] = t == GPT_ATTENTION ? attention_s : forward_s;
    }
    profile->forward_s[0] = (row_s + attention_s) * (double)profile->n_rows;
    profile->backward_s[0] = (row_back_s + chunk_s + attention_back_s) * (double)profile->n_rows;

    /* A slice reads the weights of all experts, for a few rows each; the backward also adds to their
     * gradients, which are sums. */
    const double n_weights = router * 3 * h * (double)gpt_wide(&config);
    profile->forward_s[0] += n_weights * number_s;
    profile->backward_s[0] += n_weights * number_s * (config.lora.rank ? 1 : 5);
    if (gpt_n_slices(&config) > 1 && !config.window &&
        !config.documents) { /* attention grows with a slice's position */
        profile->tensors[GPT_ATTENTION].recompute_growth_s_per_row[0] = attention_s;
        profile->forward_growth_s[0] = attention_s * (double)profile->n_rows;
        profile->backward_growth_s[0] = attention_back_s * (double)profile->n_rows;
    }
    profile->update_host_s_per_byte =
        1 / ESTIMATE_HOST_UPDATE; /* a device's memory is far faster */
    if (config.lora.rank) profile->fetch_s_per_byte = 1 / estimate_fetch(o);
    profile->between_s =
        (double)train_rows(o) *
        ((double)o->vocabulary * ((1 + n_back) * h * product_s + 2 * number_s) + 8 * h * number_s);

    if (o->link_bandwidth) {
        memo_profile_transfer* copy = &profile->copies[1];
        copy->size_bytes = o->link_bandwidth;
        copy->out_s = (double)copy->size_bytes / train_link(o, 0);
        copy->back_s = (double)copy->size_bytes / train_link(o, 1);
    }
}

memo_status read_profile(const train_options* o, memo_profile* profile, memo_error* error) {
    const gpt_config config = train_config(o);
    const int32_t n_tensors = gpt_n_tensors(&config);
    memo_profile_tensor ordered[GPT_N_TENSORS];
    memo_item tensors[GPT_N_TENSORS];
    memo_error reason;
    memo_status status = memo_profile_read(o->profile, profile, &reason);
    int n_found = 0, n_missing = 0;
    if (status) /* of any kind: a mistake of the caller */
        return gpt_invalid(error, "--profile %s", reason.message);
    if (profile->n_rows != gpt_slice_rows(&config))
        return gpt_invalid(error,
                           "--profile %.300s: has times of %lld rows, but a %s of a rank has %lld; "
                           "measure again with these --seq, --batch, --slice-rows and ranks",
                           o->profile, (long long)profile->n_rows,
                           gpt_n_slices(&config) > 1 ? "slice" : "micro-batch",
                           (long long)gpt_slice_rows(&config));

    /* A file may have them in another order, and lack those that this model lacks. */
    gpt_fill_tensors(&config, tensors);
    memset(ordered, 0, sizeof ordered);
    for (int t = 0; t < n_tensors; t++) {
        int k = 0;
        while (k < profile->n_tensors && strcmp(profile->tensors[k].name, tensors[t].name)) k++;
        if (k < profile->n_tensors) {
            ordered[t] = profile->tensors[k];
            n_found++;
        } else {
            snprintf(ordered[t].name, sizeof ordered[t].name, "%s", tensors[t].name);
            n_missing += tensors[t].row_bytes > 0;
        }
    }

    if (!n_missing && n_found == profile->n_tensors && profile->n_kinds == 1) {
        memcpy(profile->tensors, ordered, (size_t)n_tensors * sizeof *ordered);
        profile->n_tensors = n_tensors;
        return MEMO_STATUS_OK;
    }
    return gpt_invalid(
        error,
        "--profile %.300s: has other tensors or kinds of layers than this model; use "
        "a file that --output has written for the same model",
        o->profile);
}

memo_status check_file_times(const train_options* o, memo_profile* profile, memo_error* error) {
    memo_profile_transfer* file = &profile->file;
    if (!o->spill) return MEMO_STATUS_OK;
    if (o->spill_bandwidth) {
        file->size_bytes = o->spill_bandwidth;
        file->out_s = file->back_s = 1;
    }
    if (file->size_bytes) return MEMO_STATUS_OK;
    if (o->profile)
        return gpt_invalid(error,
                           "--profile %.300s: has no times of a file, which --spill needs; "
                           "--spill-bandwidth RATE, or a profile of a run with --spill, would work",
                           o->profile);
    return gpt_invalid(error,
                       "--spill %.300s: a dry run does not time the disk; "
                       "--spill-bandwidth RATE would work",
                       o->spill);
}

void print_estimate(const train_options* o) {
    const cluster_rates rates = estimate_rates_of(o);
    const int is_measured = cluster_is_measured(estimate_cluster(o));
    printf(
        "profile   estimated: %g TFLOP/s, of which products reach %.3g and attention %.3g, %.3g in "
        "the backward%s; ",
        estimate_tflops(o), rates.products, rates.forward, rates.backward,
        is_measured ? ", as measured on an H200" : "");
    if (is_measured && o->sequence > CLUSTER_LENGTH_MOST && !o->window)
        printf("attention beyond %d tokens was slower in the one run that was measured: at "
               "1,048,576 it took 1.2 times its share of the forecast; ",
               CLUSTER_LENGTH_MOST);
    if (o->link_bandwidth)
        printf("copies %s", link_text(o));
    else
        printf("copies take no time; --link-bandwidth or --cluster would give their rate");
    if (o->spill) printf("; the file %.4g GB/s each way", 1e-9 * (double)o->spill_bandwidth);
    if (o->architecture.lora.rank)
        printf("; frozen weights are read at %.4g GB/s", 1e-9 * estimate_fetch(o));
    printf("\n");
}

/* Rows of another length see more keys, or fewer; a window bounds them. */
static void print_other_length(const train_options* o, const memo_profile* profile) {
    const int64_t most = o->window ? o->window : INT64_MAX;
    const double timed = (double)gpt_min(profile->length, most),
                 keys = (double)gpt_min(o->sequence, most);
    if (profile->length <= 0 || timed == keys) return;
    printf(
        "; attention was timed at %lld tokens, and takes about %.2g times as long at %lld, which "
        "predictions lack",
        (long long)profile->length, keys / timed, (long long)o->sequence);
}

void print_profile(const train_options* o, const memo_profile* profile) {
    const memo_profile_transfer* copy = &profile->copies[1];
    const double* slowdown = profile->slowdown_s_per_byte;
    printf("profile   a layer's forward takes %.2f ms, its backward %.2f ms, the rest %.2f ms",
           1e3 * profile->forward_s[0], 1e3 * profile->backward_s[0], 1e3 * profile->between_s);
    if (copy->size_bytes)
        printf("; copies run at %.2f GB/s to the host, %.2f GB/s back (medians)",
               1e-9 * (double)copy->size_bytes / copy->out_s,
               1e-9 * (double)copy->size_bytes / copy->back_s);
    if (slowdown[0] > 0 || slowdown[1] > 0)
        printf(", and slow what is computed beside them by %.3f and %.3f ms a GB",
               1e12 * slowdown[0], 1e12 * slowdown[1]);
    print_other_length(o, profile);
    printf("\n");
}
