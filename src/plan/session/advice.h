#pragma once
#include "plan/session/slices.h"
/* --- >>session advice ---
 * Knows: which budgets would do, and the least.  Knows nothing of how a plan is made.
 *
 * A refusal names budgets that were tried: with these the same call makes a plan that fits, for all
 * shapes at once; with 512 bytes less it makes none. */

typedef struct memoi_advice {
    const memo_session_desc* desc;
    int64_t budgets[MEMO_N_TIERS]; /* of all ranks; 0: no limit */
    int64_t needed[MEMO_N_TIERS];  /* by the latest plan: the most of all shapes and ranks */
    int64_t device_bytes;          /* with which alone a plan fits; 0: none does */
    memoi_planner planner;         /* of the caller's plan; its effort grows */
    int fits;                      /* the latest plan does; 0 after a failure */
    memo_status status; /* the first failure of a plan, of all ranks, which is in error */
    memo_error* error;
} memoi_advice;

enum { MEMOI_ADVICE_PLANS_MAX = 64 };

/* Takes the figures of a plan: all ranks have the same then. */
MEMOI void memoi_advice_take(memoi_advice* a, const memo_step_plan* plan) {
    int64_t values[1 + MEMO_N_TIERS] = {0}, *needed = values + 1;
    const int fits = memob_step_plan_fits(plan);
    for (; plan; plan = plan->next) {
        needed[MEMO_TIER_DEVICE] = memob_max(needed[MEMO_TIER_DEVICE], plan->device_bytes);
        needed[MEMO_TIER_HOST] = memob_max(needed[MEMO_TIER_HOST], plan->host_bytes);
        needed[MEMO_TIER_FILE] = memob_max(needed[MEMO_TIER_FILE], plan->disk_bytes);
    }
    a->status = memoi_session_agree(a->desc, a->status, values, 1 + MEMO_N_TIERS, a->error);
    a->fits = fits && !a->status;
    memcpy(a->needed, needed, sizeof a->needed);
}

/* Plans within budgets, and says nothing. */
MEMOI void memoi_advice_try(memoi_advice* a, const int64_t* budgets) {
    memo_session_desc own = *a->desc;
    memo_step_plan* plan = NULL;
    a->fits = 0;
    if (a->status) return;
    own.device_bytes = budgets[MEMO_TIER_DEVICE];
    own.host_bytes = budgets[MEMO_TIER_HOST];
    own.disk_bytes = budgets[MEMO_TIER_FILE];
    own.log.write = NULL;
    own.device_memory = own.host_memory = NULL; /* of one size */
    a->status = memoi_planner_plan_sizes(&a->planner, &own, &plan, a->error);
    memoi_advice_take(a, plan);
    memo_step_plan_destroy(plan);
}

/* The bytes that the latest plan lacks of these budgets, all together. */
MEMOI int64_t memoi_advice_lacking(const memoi_advice* a, const int64_t* budgets) {
    int64_t n_bytes = 0;
    for (int32_t t = 0; t < MEMO_N_TIERS && !a->fits; t++)
        if (memoi_is_over(a->needed[t], budgets[t]))
            n_bytes = memob_min(n_bytes + a->needed[t] - budgets[t], MEMOB_BYTES_MAX);
    return n_bytes;
}

/* Sets budgets[tier], without which a plan fits, to the least that was found, in whole granules: it
 * fits, and a granule less does not; 0: none was found.  first: a budget to begin with. */
MEMOI void memoi_advice_find_least(memoi_advice* a, int32_t tier, int64_t first, int64_t* budgets) {
    const int64_t granule = MEMOB_DEVICE_ALIGNMENT, most = MEMOB_BYTES_MAX;
    int64_t low = a->budgets[tier], high = most + granule, step = granule;
    int64_t need = 0, before = 0, next = memob_max(first, low + 1);
    for (int32_t k = 0; k < MEMOI_ADVICE_PLANS_MAX && high - low > granule; k++) {
        budgets[tier] = next = memob_min(memob_align_up(next, granule), high - granule);
        memoi_advice_try(a, budgets);
        *(a->fits ? &high : &low) = next;

        /* The budget grows by what a plan lacks, or by twice the latest step. */
        if (high > most) {
            step = memob_max(2 * step, memoi_advice_lacking(a, budgets));
            step = memob_min(step, most / 2);
            next = low + step;
            continue;
        }

        /* It falls below what the plan needs, by a granule, or by twice as much as the need fell;
         * after a fall too deep it is the need.  If the search finds no plan within that need, it
         * is a granule less than what fits, and then halves what is left. */
        if (a->fits) {
            need = memob_min(high, a->needed[tier]);
            step = memob_max(granule, 2 * (before - need));
            next = memob_max(need - step, low + (need - low + 1) / 2);
            before = need;
        } else {
            next = need;
            before = 0;
        }
        if (need <= low) next = need == low && !a->fits ? high - granule : low + (high - low) / 2;
    }
    a->fits = high <= most;
    budgets[tier] = a->fits ? high : 0;
}

/* Sets the budgets to such with which the desc has a plan, and those that change to 1 in is_other:
 * one alone if that is enough, first one that the plan lacks; otherwise all. */
MEMOI void memoi_advice_find(memoi_advice* a, int64_t* budgets, int* is_other) {
    int64_t needed[MEMO_N_TIERS];
    int is_lacking[MEMO_N_TIERS];
    memcpy(needed, a->needed, sizeof needed);
    for (int32_t t = 0; t < MEMO_N_TIERS; t++)
        is_lacking[t] = memoi_is_over(needed[t], a->budgets[t]);
    for (int32_t k = 0; k < 2 * MEMO_N_TIERS; k++) {
        const int32_t t = k % MEMO_N_TIERS;
        if (!a->budgets[t] || is_lacking[t] != (k < MEMO_N_TIERS)) continue;
        memcpy(budgets, a->budgets, sizeof a->budgets);
        budgets[t] = 0;
        memoi_advice_try(a, budgets);
        if (!a->fits) continue;
        is_other[t] = 1;
        memoi_advice_find_least(a, t, needed[t], budgets);
        return;
    }

    memset(budgets, 0, sizeof a->budgets);
    memoi_advice_try(a, budgets);
    for (int32_t t = 0; t < MEMO_N_TIERS && a->fits; t++) {
        if (!a->budgets[t]) continue;
        budgets[t] = a->budgets[t];
        memoi_advice_try(a, budgets);
        if (a->fits) continue;
        is_other[t] = 1;
        budgets[t] = 0;
        memoi_advice_try(a, budgets);
        memoi_advice_find_least(a, t, needed[t], budgets);
    }
}

/* Searches for less again, longer each time.  The whole search mostly finds no less than the one
 * before; its plan is the caller's. */
MEMOI void memoi_advice_refine(memoi_advice* a, int32_t tier, int64_t* budgets) {
    memoi_rows_effort* effort = &a->planner.effort;
    while (*effort && a->fits) {
        *effort =
            *effort == MEMOI_ROWS_EFFORT_SHORT ? MEMOI_ROWS_EFFORT_FIRST : MEMOI_ROWS_EFFORT_WHOLE;
        memoi_advice_find_least(a, tier, budgets[tier], budgets);
    }
}

/* Sets device_bytes, if another budget alone is enough, too. */
MEMOI void memoi_advice_find_device(memoi_advice* a) {
    const int64_t first = a->needed[MEMO_TIER_DEVICE];
    int64_t budgets[MEMO_N_TIERS];
    memcpy(budgets, a->budgets, sizeof budgets);
    budgets[MEMO_TIER_DEVICE] = 0;
    a->planner.effort = MEMOI_ROWS_EFFORT_SHORT;
    memoi_advice_try(a, budgets);
    if (!a->fits) return;
    memoi_advice_find_least(a, MEMO_TIER_DEVICE, first, budgets);
    memoi_advice_refine(a, MEMO_TIER_DEVICE, budgets);
    a->device_bytes = budgets[MEMO_TIER_DEVICE];
}

/* What the shape's plan lacks.  The first budget that changes is its subject. */
MEMOI void memoi_advice_put(const memoi_advice* a, const int64_t* budgets, const int* is_other,
                            int32_t shape, memo_step_plan* plan) {
    int32_t lacking = 0;
    while (!is_other[lacking]) lacking++;
    memoi_session_put_shortage(a->desc, plan, shape, lacking, a->budgets[lacking], budgets[lacking],
                               a->device_bytes);
    for (int32_t other = lacking + 1; other < MEMO_N_TIERS; other++) {
        const size_t n = strlen(plan->shortage);
        if (is_other[other])
            snprintf(plan->shortage + n, sizeof plan->shortage - n, "; also raise %s to %lld",
                     memoi_session_tiers[other], (long long)budgets[other]);
    }
}

/* Replaces what the plan's shapes lack by budgets that were tried.  *device_bytes: with it alone a
 * plan fits; 0: none does. */
MEMOI memo_status memoi_session_advise(const memo_session_desc* desc, const memo_profile* profile,
                                       memo_step_plan* plan, int64_t* device_bytes,
                                       memo_error* error) {
    memoi_advice a;
    int64_t budgets[MEMO_N_TIERS], least[1 + MEMO_N_TIERS];
    int is_other[MEMO_N_TIERS] = {0};
    int32_t shape = 0, other = MEMO_N_TIERS - 1, n_others = 0;
    int fits;
    memset(&a, 0, sizeof a);
    a.desc = desc;
    a.planner.profile = profile;
    a.planner.effort = MEMOI_ROWS_EFFORT_SHORT;
    a.error = error;
    memoi_advice_take(&a, plan);

    /* The least of all ranks. */
    a.budgets[MEMO_TIER_DEVICE] = desc->device_bytes;
    a.budgets[MEMO_TIER_HOST] = desc->host_bytes;
    a.budgets[MEMO_TIER_FILE] = desc->disk_bytes;
    for (int32_t t = 0; t < MEMO_N_TIERS; t++)
        least[1 + t] = a.budgets[t] ? -a.budgets[t] : -INT64_MAX;
    a.status = memoi_session_agree(desc, a.status, least, 1 + MEMO_N_TIERS, error);
    for (int32_t t = 0; t < MEMO_N_TIERS; t++)
        a.budgets[t] = least[1 + t] == -INT64_MAX ? 0 : -least[1 + t];

    if (!a.status && desc->log.write)
        desc->log.write(desc->log.user, "session: looking for the least budgets that fit");
    memoi_advice_find(&a, budgets, is_other);

    while (other >= 0 && !is_other[other]) other--;
    if (other >= 0) memoi_advice_refine(&a, other, budgets);
    fits = a.fits;

    for (int32_t t = 0; t < MEMO_N_TIERS; t++) n_others += is_other[t];
    if (n_others == 1 && fits) {
        if (other != MEMO_TIER_DEVICE)
            memoi_advice_find_device(&a);
        else
            a.device_bytes = budgets[MEMO_TIER_DEVICE];
    }
    *device_bytes = a.device_bytes;
    for (; plan && !a.status && fits; plan = plan->next, shape++)
        if (!plan->fits) memoi_advice_put(&a, budgets, is_other, shape, plan);
    return a.status;
}

/* memo_session_plan, and with *device_bytes alone a plan fits; 0: none does, or *plan fits. */
MEMOI memo_status memoi_session_plan_or_advise(const memo_session_desc* desc,
                                               const memo_profile* profile, memo_step_plan** plan,
                                               int64_t* device_bytes, memo_error* error) {
    memoi_planner planner = MEMO_ZERO(memoi_planner);
    memo_status status;
    planner.profile = profile;
    status = memoi_planner_plan_groups(&planner, desc, plan, error);
    *device_bytes = 0;
    if (!status && !desc->is_unadvised && !memob_step_plan_fits(*plan))
        status = memoi_session_advise(desc, profile, *plan, device_bytes, error);
    if (!status) return status;
    memo_step_plan_destroy(*plan);
    *plan = NULL;
    return status;
}

memo_status memo_session_plan(const memo_session_desc* desc, const memo_profile* profile,
                              memo_step_plan** plan, memo_error* error) {
    int64_t device_bytes;
    MEMOB_REFUSE_NULL(error, "plan", plan);
    *plan = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    return memoi_session_plan_or_advise(desc, profile, plan, &device_bytes, error);
}

memo_status memo_session_get_least(const memo_session_desc* desc, int64_t* device_bytes,
                                   memo_error* error) {
    memo_session_desc least;
    memoi_planner planner = MEMO_ZERO(memoi_planner);
    memo_step_plan *plan = NULL, *p;
    int64_t more_bytes;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "device_bytes", device_bytes);
    *device_bytes = 0;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    least = *desc;

    /* The bytes of the smallest plan. */
    least.device_bytes = 1;
    planner.effort = MEMOI_ROWS_EFFORT_FIRST;
    status = memoi_planner_plan_sizes(&planner, &least, &plan, error);
    for (p = plan; p; p = p->next) *device_bytes = memob_max(*device_bytes, p->device_bytes);
    memo_step_plan_destroy(plan);
    if (status) return status;

    /* It may lack host or disk; a plan that uses less of them takes more of the device. */
    least.device_bytes = memob_max(*device_bytes, 1);
    least.is_unadvised = 0;
    status = memoi_session_plan_or_advise(&least, NULL, &plan, &more_bytes, error);
    *device_bytes = memob_max(*device_bytes, more_bytes);
    for (p = plan; p && !status && !more_bytes; p = p->next)
        if (!p->fits) status = memo_error_set(error, MEMO_STATUS_INFEASIBLE, "%s", p->shortage);
    memo_step_plan_destroy(plan);
    return status;
}
