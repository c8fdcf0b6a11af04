#pragma once
#include "plan/rows/words.h"
#include "plan/session/session.h"
/* --- >>session words ---
 * Knows: a plan in words.  Knows nothing of how it was made. */

/* Appends words and a number of bytes, unless it is 0. */
MEMOI MEMOB_NOINLINE void memoi_put_bytes(memo_text* text, const char* before, int64_t n_bytes) {
    char bytes[32];
    if (n_bytes) memo_text_put(text, "%s%s", before, memob_bytes_text(bytes, (double)n_bytes));
}

/* Who needs each tier. */
MEMOI void memoi_step_plan_put_owners(const memo_step_plan* plan, memo_text* text) {
    static const char* const tiers[] = {"device", "host", "file"};
    static const char* const owners[] = {"weights ",
                                         "gradients ",
                                         "optimizer ",
                                         "places of states ",
                                         "activations ",
                                         "the whole session ",
                                         "parts of a micro-batch "};
    MEMOB_TABLE_OF(MEMO_N_TIERS, tiers);
    MEMOB_TABLE_OF(MEMO_N_OWNERS, owners);
    for (int32_t tier = 0; tier < MEMO_N_TIERS; tier++) {
        const char* before = tiers[tier];
        char words[48];
        for (int32_t owner = 0; owner < MEMO_N_OWNERS; owner++) {
            if (!plan->bytes[tier][owner]) continue;
            snprintf(words, sizeof words, before == tiers[tier] ? "%-9s %s" : "%s%s", before,
                     owners[owner]);
            memoi_put_bytes(text, words, plan->bytes[tier][owner]);
            before = ", ";
        }
        if (before != tiers[tier]) memo_text_put(text, "\n");
    }
}

MEMOI void memoi_step_plan_put_one(const memo_step_plan* plan, memo_text* text) {
    const memo_plan* addresses = plan->addresses;
    const int is_optimal = addresses->proof == MEMO_PROOF_OPTIMAL;
    char bytes[32];
    const int is_forward_only = plan->shape.is_forward_only;
    const int has_rows = plan->times || plan->sizes.n_swapped_layers ||
                         (!is_forward_only && !memoi_rows_are_kept(&plan->swap));
    if (has_rows)
        memoi_rows_put(&plan->swap, text);
    else
        memo_text_put(text, "%-9s %s\n", memo_policy_name(plan->policy),
                      is_forward_only ? "a forward alone: layers share memory"
                                      : "every tensor stays on the device");
    if (plan->times) memoi_rows_put_times(plan->times, text);

    /* Planned bytes beside their budgets. */
    memoi_put_bytes(text, "plan      device ", plan->device_bytes);
    memoi_put_bytes(text, " of ", plan->device_budget_bytes);
    memo_text_put(text, " (%lld buffer%s, %s", (long long)addresses->n_buffers,
                  addresses->n_buffers == 1 ? "" : "s", is_optimal ? "optimal" : "lower bound");
    if (!is_optimal) memoi_put_bytes(text, " ", addresses->lower_bound_bytes);
    memo_text_put(text, "), host %s", memob_bytes_text(bytes, (double)plan->host_bytes));
    memoi_put_bytes(text, " of ", plan->host_budget_bytes);
    if (plan->times) {
        memo_text_put(text, ", %s to the host",
                      memob_bytes_text(bytes, (double)plan->times->to_host_bytes));
        memo_text_put(text, " and %s back in a step",
                      memob_bytes_text(bytes, (double)plan->times->to_device_bytes));
    } else
        memo_text_put(text, ", %s of rows moved each way",
                      memob_bytes_text(bytes, (double)plan->sizes.swapped_bytes));
    if (plan->sizes.n_spilled_layers)
        memo_text_put(text, ", %d %s through a file of %s", (int)plan->sizes.n_spilled_layers,
                      plan->swap.n_slices > 1 ? "slices of layers" : "layers",
                      memob_bytes_text(bytes, (double)plan->sizes.spill_bytes));
    memo_text_put(text, "\n");
    memoi_step_plan_put_owners(plan, text);
    if (plan->n_order)
        memo_text_put(text, "order     %d turns, %d places of %d layers\n", (int)plan->n_order,
                      (int)plan->swap.n_places, (int)(plan->swap.n_layers / plan->swap.n_places));
    if (plan->update_is_on_host) memo_text_put(text, "update    on the host\n");
    if (plan->update_at == MEMO_UPDATE_DEFERRED)
        memo_text_put(text, "update    of each layer before its next forward\n");
    if (!plan->fits) memo_text_put(text, "short     %s\n", plan->shortage);
}

void memo_step_plan_put(const memo_step_plan* plan, memo_text* text) {
    int64_t sums[2] = {0, 0}, most[2] = {0, 0};
    int has_shapes;
    int32_t n;
    if (!plan || !text) return;
    has_shapes = plan->next != NULL;
    for (n = 0; plan; plan = plan->next, n++) {
        if (has_shapes)
            memo_text_put(text, "shape     %d, %lld rows\n", (int)n, (long long)plan->shape.n_rows);
        memoi_step_plan_put_one(plan, text);
        sums[0] += plan->device_bytes;
        sums[1] += plan->host_bytes;
        most[0] = memob_max(most[0], plan->device_bytes);
        most[1] = memob_max(most[1], plan->host_bytes);
    }
    if (!has_shapes) return;
    memo_text_put(text, "shapes    %d share", (int)n);
    memoi_put_bytes(text, " device memory of ", most[0]);
    memoi_put_bytes(text, " instead of ", sums[0]);
    memoi_put_bytes(text, ", host memory of ", most[1]);
    memoi_put_bytes(text, " instead of ", sums[1] > most[1] ? sums[1] : 0);
    memo_text_put(text, "\n");
}
