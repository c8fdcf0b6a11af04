#pragma once
#include "plan/rows/search.h"
/* --- >>row limits ---
 * memo_plan_swap.  Knows: which searches make a plan, the name of what limits its step, and what a
 * refused plan lacks.  Knows nothing of how a search changes a table, or holds it to the budgets:
 * see memoi_rows_weigh, memoi_rows_refit and memoi_rows_is_hopeless.
 *
 * A new limit is a value of memo_swap_limit, a case of memoi_rows_widen, and a place in both lists
 * of limits and in the names below. */

/* A search makes so small a part of the trials if choices are ranked, if all layers of a kind
 * have the same rows, if limits are ranked, or if the gain is stated. */
#define MEMOI_ROWS_PARTS_RANKED  32
#define MEMOI_ROWS_PARTS_UNIFORM 16
#define MEMOI_ROWS_PARTS_LIMITS  128
#define MEMOI_ROWS_PARTS_STATED  16

/* Makes one limit a tenth wider, or (is_all) as wide as may be: a link twice as fast.  0: it is no
 * limit. */
MEMOI int memoi_rows_widen(memo_swap_plan_desc* desc, memob_rates* rates, memo_swap_limit limit,
                           int is_all) {
    const double factor = is_all ? 2 : 1.1;
    int64_t* capacity =
        limit == MEMO_SWAP_LIMIT_HOST_MEMORY ? &desc->host_bytes : &desc->device_bytes;

    switch (limit) {
    case MEMO_SWAP_LIMIT_BANDWIDTH:
        rates->copy_s /= factor;
        rates->bytes_per_s[0][0] *= factor;
        rates->bytes_per_s[0][1] *= factor;
        return rates->bytes_per_s[0][0] > 0 || rates->bytes_per_s[0][1] > 0;
    case MEMO_SWAP_LIMIT_DISK:
        rates->bytes_per_s[1][0] *= factor;
        rates->bytes_per_s[1][1] *= factor;
        rates->fetch_s_per_byte /= factor;
        return desc->spill_bytes > 0 ||
               (desc->states && desc->states->trainer.fetch && rates->fetch_s_per_byte > 0);
    case MEMO_SWAP_LIMIT_UPDATE:
        rates->update_host_s_per_byte /= factor;
        return desc->states && desc->states->trainer.update_host &&
               rates->update_host_s_per_byte > 0;

    case MEMO_SWAP_LIMIT_HOST_MEMORY:
    case MEMO_SWAP_LIMIT_DEVICE_MEMORY:
        if (!*capacity) return 0;
        *capacity = is_all || *capacity > MEMOB_BYTES_MAX / 2 ? 0 : *capacity + *capacity / 10 + 1;
        return 1;
    default: return 0;
    }
}

/* The share of the step that a wider limit saves, as far as so many passes from the plan find it.
 * p->best becomes that table. */
MEMOI double memoi_rows_lift(memoi_rows_planner* p, memo_swap_limit limit, int is_all,
                             int n_parts) {
    const memo_swap_plan_desc* desc = p->desc;
    const memoi_rows_score* best = &p->best.score;
    const memob_rates rates = p->clock.rates;
    memo_swap_plan_desc wider = *desc;
    memob_rates faster = rates;
    if (!memoi_rows_widen(&wider, &faster, limit, is_all)) return 0;
    p->desc = &wider;
    p->clock.rates = faster;
    p->lifted = limit;
    memoi_rows_time_kinds(p);
    if (p->aim.is_alpha)
        (void)memoi_rows_try_alphas(p);
    else {
        p->best.score.excess_bytes = MEMOI_ROWS_WORST;
        memoi_rows_copy(p, &p->plan, &p->trial);
        (void)memoi_rows_try(p);
        if (n_parts == MEMOI_ROWS_PARTS_STATED) memoi_rows_fill_by_worth(p);
        memoi_rows_search(p, n_parts);
    }
    p->desc = desc;
    p->clock.rates = rates;
    p->lifted = MEMO_SWAP_LIMIT_NONE;
    memoi_rows_time_kinds(p);
    return best->excess_bytes > 0 ? 0 : 1 - best->step_s / p->plan.score.step_s;
}

/* The reason if no limit is found.  other: if the step stalls or recomputes. */
MEMOI void memoi_rows_name_none(memo_swap_plan* plan, const char* other) {
    const double least_s = 1e-3 * plan->step_s;
    snprintf(plan->reason, sizeof plan->reason, "%s",
             plan->stall_s < least_s && plan->recompute_s < least_s
                 ? "nothing limits the step: every copy is hidden behind the computation, and "
                   "nothing is recomputed"
                 : other);
}

/* A limit that is a rate.  saved: by twice as much, as a share of the step. */
MEMOI void memoi_rows_name_rate(memo_swap_plan* plan, memo_swap_limit limit, double saved) {
    static const char* const names[] = {
        "", "bandwidth is the limit; a link", "",
        "", "the disk is the limit; one",     "the update on the host is the limit; one"};
    MEMOB_TABLE_OF(MEMO_N_SWAP_LIMITS, names);
    plan->limit = limit;
    snprintf(plan->reason, sizeof plan->reason, "%s twice as fast would save %.2g%% of the step",
             names[limit], 100 * saved);
}

/* Names the rate that limits the step of given rows, if one does. */
MEMOI void memoi_rows_name_given(memoi_rows_planner* p, memo_swap_plan* plan) {
    static const memo_swap_limit limits[] = {MEMO_SWAP_LIMIT_BANDWIDTH, MEMO_SWAP_LIMIT_DISK,
                                             MEMO_SWAP_LIMIT_UPDATE};
    const memo_swap_plan_desc* desc = p->desc;
    const memob_rates rates = p->clock.rates;
    double most = MEMOI_ROWS_GAIN;
    memoi_rows_name_none(plan, "no rate: a faster link alone would save nothing with these rows");
    for (size_t i = 0; i < sizeof limits / sizeof *limits && plan->step_s > 0; i++) {
        memo_swap_plan_desc wider = *desc;
        double saved = 0;
        p->clock.rates = rates;
        if (!memoi_rows_widen(&wider, &p->clock.rates, limits[i], 1)) continue;
        p->desc = &wider;
        memoi_rows_time_kinds(p);
        memoi_rows_score_trial(p);
        saved = 1 - p->trial.score.step_s / plan->step_s;
        if (saved > most) memoi_rows_name_rate(plan, limits[i], most = saved);
    }
    p->desc = desc;
    p->clock.rates = rates;
    memoi_rows_time_kinds(p);
}

/* Names the limit of which a tenth more saves most, and what the plan would gain without that
 * limit.  If a tenth saves nothing (whole tensors), names the limit that costs most altogether. */
MEMOI void memoi_rows_name_limit(memoi_rows_planner* p, memo_swap_plan* plan) {
    static const memo_swap_limit limits[] = {
        MEMO_SWAP_LIMIT_HOST_MEMORY, MEMO_SWAP_LIMIT_DEVICE_MEMORY, MEMO_SWAP_LIMIT_BANDWIDTH,
        MEMO_SWAP_LIMIT_DISK, MEMO_SWAP_LIMIT_UPDATE};
    MEMOB_TABLE_OF(MEMO_N_SWAP_LIMITS - 1, limits); /* all but NONE */
    memo_swap_limit limit = MEMO_SWAP_LIMIT_NONE;
    double saved, most = 5e-5;
    char bytes[32];

    memoi_rows_name_none(plan, "no single limit: more of one memory alone, or a faster link alone, "
                               "would save nothing");
    if (!p->n_bundles || plan->step_s <= 0) return;
    memoi_rows_copy(p, &p->best, &p->plan);

    /* A tenth more of each limit first; then the limit lifted altogether. */
    for (int is_all = 0; is_all < 2 && limit == MEMO_SWAP_LIMIT_NONE; is_all++, most = 5e-4) {
        for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
            saved = memoi_rows_lift(p, limits[i], is_all, MEMOI_ROWS_PARTS_LIMITS);
            if (saved <= most) continue;
            most = saved;
            limit = limits[i];
        }
    }
    if (limit == MEMO_SWAP_LIMIT_NONE) return;

    /* State the gain of the whole plan, which the estimate above only ranks. */
    saved = memoi_rows_lift(p, limit, 1, MEMOI_ROWS_PARTS_STATED);
    if (saved < MEMOI_ROWS_GAIN) return;
    plan->limit = limit;
    if (limit != MEMO_SWAP_LIMIT_HOST_MEMORY && limit != MEMO_SWAP_LIMIT_DEVICE_MEMORY)
        memoi_rows_name_rate(plan, limit, saved);
    else
        snprintf(plan->reason, sizeof plan->reason,
                 "%s is the limit; %s more would save %.2g%% of the step",
                 limit == MEMO_SWAP_LIMIT_HOST_MEMORY ? "host memory" : "device memory",
                 memob_bytes_text(bytes, memoi_rows_excess(limit == MEMO_SWAP_LIMIT_HOST_MEMORY
                                                               ? p->desc->host_bytes
                                                               : p->desc->device_bytes,
                                                           p->best.score.lifted_bytes)),
                 100 * saved);
}

/* Fails with the memory that the nearest plan lacks. */
MEMOI memo_status memoi_rows_refuse(memoi_rows_planner* p, memo_error* error) {
    static const char* const names[] = {"device memory", "host memory", "the disk"};
    MEMOB_TABLE_OF(MEMO_N_TIERS, names);
    const int64_t there_bytes[] = {p->desc->device_bytes, p->desc->host_bytes,
                                   p->desc->spill_bytes};
    MEMOB_TABLE_OF(MEMO_N_TIERS, there_bytes);
    const memoi_rows_score* score = &p->best.score;
    double needed_bytes[MEMO_N_TIERS];
    char needed[32], there[32];
    int which = 0;

    /* Without a usable table, score alpha 0, which recomputes most. */
    if (p->aim.is_alpha || score->excess_bytes >= MEMOI_ROWS_IMPOSSIBLE) {
        memoi_rows_set_alpha(p, 0);
        memoi_rows_score_trial(p);
        score = &p->trial.score;
    }

    /* Name the first budget that is exceeded; host memory if none is. */
    needed_bytes[MEMO_TIER_DEVICE] = score->device_bytes;
    needed_bytes[MEMO_TIER_HOST] = (double)score->sizes.host_bytes;
    needed_bytes[MEMO_TIER_FILE] = (double)score->sizes.spill_bytes;
    while (which < MEMO_N_TIERS && memoi_rows_excess(there_bytes[which], needed_bytes[which]) <= 0)
        which++;
    if (which == MEMO_N_TIERS) which = MEMO_TIER_HOST;
    return memo_error_set(error, MEMO_STATUS_INFEASIBLE,
                          "%s: %s needs %s of %s; raise the budget, or lower n_rows", names[which],
                          p->aim.is_alpha ? "the plan with alpha 0" : "the smallest plan found",
                          memob_bytes_text(needed, needed_bytes[which]),
                          memob_bytes_text(there, (double)there_bytes[which]));
}

/* The predicted times and bytes. */
MEMOI void memoi_rows_tell(const memo_swap_plan_desc* desc, const memoi_rows_score* score,
                           memo_swap_plan* plan) {
    const int32_t n = memob_rows_n_batches(desc);
    plan->step_s = score->step_s;
    plan->micro_batch_s =
        (score->step_s - score->update_s) / n / (double)memob_max(desc->swap->n_group, 1);
    plan->update_s = score->update_s;
    plan->stall_s = score->stall_s;
    plan->recompute_s = score->recompute_s * n;
    plan->device_bytes = (int64_t)score->device_bytes;
    plan->host_bytes = score->sizes.host_bytes;
    plan->swapped_bytes = (int64_t)score->swapped_bytes;
    plan->spill_bytes = score->sizes.spill_bytes;
    plan->to_host_bytes = (int64_t)score->copied_bytes[0];
    plan->to_device_bytes = (int64_t)score->copied_bytes[1];
    plan->n_spilled_layers = score->sizes.n_spilled_layers;
    plan->n_host_layers = score->n_host_layers;
}

/* Tries these rows, (n_layers, n_tensors), which may become the best; NULL: none. */
MEMOI void memoi_rows_try_given(memoi_rows_planner* p, const int64_t* rows) {
    memo_swap_desc swap = *p->desc->swap;
    swap.rows = rows;
    if (!rows) return;
    memoi_rows_take(p, &swap);
    (void)memoi_rows_try(p);
}

/* Searches of so many parts, from p->best on, which becomes the best of their tables.  A whole
 * search begins with tables of equal rows in all layers of a kind, of which there are fewer. */
MEMOI void memoi_rows_find_tables(memoi_rows_planner* p, int n_parts) {
    p->is_uniform = n_parts == 1;
    if (p->is_uniform) memoi_rows_find_table(p, MEMOI_ROWS_PARTS_UNIFORM);
    p->is_uniform = 0;
    memoi_rows_try_given(p, p->aim.start);
    memoi_rows_find_table(p, n_parts);
}

/* The same without the host's limit, from p->first on.  Returns 0 if the table exceeds it. */
MEMOI int memoi_rows_find_wide(memoi_rows_planner* p, int n_parts) {
    const memo_swap_plan_desc* desc = p->desc;
    const memoi_rows_score* best = &p->best.score;
    memo_swap_plan_desc wider = *desc;
    wider.host_bytes = wider.spill_bytes = 0;
    memoi_rows_copy(p, &p->first, &p->best);
    p->random = MEMOI_ROWS_SEED;
    memoi_rows_set_desc(p, &wider);
    memoi_rows_find_tables(p, n_parts);
    memoi_rows_set_desc(p, desc);
    return best->excess_bytes <= 0 && best->sizes.host_bytes <= desc->host_bytes;
}

/* 1: a table fits, and leaves enough of the host's limit that it may be found without. */
#define MEMOI_ROWS_NEAR 0.9375
MEMOI int memoi_rows_has_room(const memoi_rows_planner* p, const memoi_rows_score* score) {
    return score->excess_bytes <= 0 &&
           (double)score->sizes.host_bytes <= MEMOI_ROWS_NEAR * (double)p->desc->host_bytes;
}

/* The best table from p->best on.  A search goes elsewhere near the host's limit, even if its table
 * leaves host memory free; so plans of two budgets would differ by chance, and the table that is
 * found without the limit counts, if it takes no more.  A short search without tells whether a
 * whole one is worth its time.  A short one itself is not, if the limit has not mattered, or if the
 * table with it takes nearly all. */
MEMOI void memoi_rows_find_best(memoi_rows_planner* p, int n_parts) {
    const int has_room = p->desc->host_bytes && !p->aim.effort;
    memoi_rows_copy(p, &p->best, &p->first);
    if (has_room && n_parts == 1 && memoi_rows_find_wide(p, MEMOI_ROWS_PARTS_RANKED) &&
        memoi_rows_find_wide(p, 1))
        return;
    memoi_rows_copy(p, &p->first, &p->best);
    p->random = MEMOI_ROWS_SEED;
    p->meets_host = 0;
    memoi_rows_find_tables(p, n_parts);
    if (n_parts == 1 || !p->meets_host || !has_room || !memoi_rows_has_room(p, &p->best.score))
        return;
    memoi_rows_copy(p, &p->best, &p->plan);
    if (!memoi_rows_find_wide(p, n_parts)) memoi_rows_copy(p, &p->plan, &p->best);
}

MEMOI memo_status memoi_rows_plan(memoi_rows_planner* p, memo_swap_plan* plan, memo_error* error) {
    const memo_swap_desc* swap = p->desc->swap;
    const int64_t tiles = memoi_rows_try_alphas(p);
    const memoi_rows_score alpha = p->best.score;
    plan->alpha = -1;
    if (alpha.excess_bytes <= 0) {
        plan->alpha = (double)tiles / (double)p->n_tiles; /* whatever the last tile has */
        plan->alpha_step_s = alpha.step_s;
    }

    /* A table is used only if it is better than the best alpha, which is simpler. */
    if (!p->aim.is_alpha)
        memoi_rows_find_best(p, p->aim.effort == MEMOI_ROWS_EFFORT_SHORT ? MEMOI_ROWS_PARTS_RANKED
                                                                         : 1);
    if (p->best.score.excess_bytes > 0) return memoi_rows_refuse(p, error);
    if (memoi_rows_is_better(&p->best.score, &alpha)) {
        plan->rows =
            (int64_t*)memob_calloc((int64_t)p->n_layers * swap->n_tensors, sizeof(int64_t));
        if (!plan->rows) return memob_no_memory(error, "the rows of a plan");
        memoi_rows_fill(p, p->best.cells, plan->rows);
    }
    memoi_rows_tell(p->desc, &p->best.score, plan);
    return MEMO_STATUS_OK;
}

/* Destroys a planner.  A search that lacked memory has failed: other ranks may have found other
 * tables. */
MEMOI memo_status memoi_rows_end(memoi_rows_planner* p, memo_status status, memo_error* error) {
    if (p->lacks_memory) status = memob_no_memory(error, "the times of a step");
    memoi_rows_destroy(p);
    return status;
}

/* A step in which all rows stay on the device, whatever that takes.  No other is shorter, but for
 * the thousandth by which a steady step may be off. */
MEMOI double memoi_rows_bound(memoi_rows_planner* p) {
    const memo_swap_plan_desc* desc = p->desc;
    memo_swap_plan_desc without = *desc;
    without.device_bytes = without.host_bytes = without.spill_bytes = 0;
    memoi_rows_set_desc(p, &without);
    for (int32_t b = 0; b < p->n_bundles; b++) p->trial.versions[b] = ++p->n_versions;
    for (int64_t i = 0; i < p->n_cells; i++) p->trial.cells[i] = MEMO_ROWS_KEPT;
    memoi_rows_score_trial(p);
    memoi_rows_set_desc(p, desc);
    return p->trial.score.excess_bytes > 0 ? 0 : (1 - MEMOI_ROWS_AS_LATE) * p->trial.score.step_s;
}

/* Sets the seconds of a step, as far as a short search finds them, or with rows, of these; infinite
 * if nothing fits; a bound of them, without a search, if that is longer than aim->other_s.  The
 * whole search saves a few percent more, and has an effort.  Two searches that begin with the same
 * rows differ less by chance.  found: the rows of such a search; NULL: they are not wanted. */
MEMOI memo_status memoi_rows_rank(const memo_swap_plan_desc* desc, const memoi_rows_aim* aim,
                                  int64_t* found, double* step_s, memo_error* error) {
    memoi_rows_planner p;
    const memo_status status = memoi_rows_create(desc, &p, error);
    const memoi_rows_score* score = &p.best.score;
    double least_s = 0;
    *step_s = HUGE_VAL;
    if (status) return status;
    p.best.score.excess_bytes = MEMOI_ROWS_WORST;
    if (aim->other_s > 0) least_s = memoi_rows_bound(&p);
    if (least_s > aim->other_s) {
        *step_s = least_s;
        return memoi_rows_end(&p, status, error);
    }
    if (desc->swap->rows)
        memoi_rows_try_given(&p, desc->swap->rows);
    else if (aim->is_alpha)
        (void)memoi_rows_try_alphas(&p);
    else {
        p.aim.start = aim->start;
        memoi_rows_find_best(&p, MEMOI_ROWS_PARTS_RANKED);
        if (found) memoi_rows_fill(&p, p.best.cells, found);
    }
    if (score->excess_bytes <= 0) *step_s = score->step_s;
    return memoi_rows_end(&p, status, error);
}

/* Names the limit of a plan that this planner has found, or another: the text is the same. */
MEMOI void memoi_rows_name_found(memoi_rows_planner* p, memo_swap_plan* plan) {
    memo_swap_desc swap = *p->desc->swap;
    swap.rows = plan->rows;
    swap.alpha = plan->rows ? 0 : plan->alpha;
    p->random = MEMOI_ROWS_SEED;
    memoi_rows_time_kinds(p); /* scores are not known any more */
    memoi_rows_take(p, &swap);
    memoi_rows_score_trial(p);
    memoi_rows_copy(p, &p->trial, &p->best);
    memoi_rows_name_limit(p, plan);
}

/* The same alone, for a caller who compares plans, and names the limit of one. */
MEMOI memo_status memoi_rows_name(const memo_swap_plan_desc* desc, const memoi_rows_aim* aim,
                                  memo_swap_plan* plan, memo_error* error) {
    memoi_rows_planner p;
    const memo_status status = memoi_rows_create(desc, &p, error);
    if (status) return status;
    p.aim = *aim;
    p.aim.effort = MEMOI_ROWS_EFFORT_WHOLE;
    memoi_rows_name_found(&p, plan);
    return memoi_rows_end(&p, status, error);
}

/* A plan for rows that are given always has its limit's name. */
MEMOI memo_status memoi_rows_make_plan(const memo_swap_plan_desc* desc, const memoi_rows_aim* aim,
                                       memo_swap_plan** plan, memo_error* error) {
    memoi_rows_planner p;
    memo_status status;
    *plan = NULL;
    status = memoi_rows_create(desc, &p, error);
    if (status) return status;
    p.aim = *aim;
    *plan = (memo_swap_plan*)memob_calloc(1, sizeof(memo_swap_plan));
    if (!*plan)
        status = memob_no_memory(error, "a plan of rows");
    else if (desc->swap->rows) { /* only the times of these rows */
        memoi_rows_take(&p, desc->swap);
        memoi_rows_score_trial(&p);
        (*plan)->alpha = -1;
        memoi_rows_tell(desc, &p.trial.score, *plan);
        memoi_rows_name_given(&p, *plan);
    } else {
        status = memoi_rows_plan(&p, *plan, error);
        if (!status && aim->is_named) memoi_rows_name_found(&p, *plan);
    }
    status = memoi_rows_end(&p, status, error);
    if (status) {
        memo_swap_plan_destroy(*plan);
        *plan = NULL;
    }
    return status;
}

memo_status memo_plan_swap(const memo_swap_plan_desc* desc, memo_swap_plan** plan,
                           memo_error* error) {
    const memoi_rows_aim aim = {MEMOI_ROWS_EFFORT_WHOLE, 0, 1, NULL, 0};
    MEMOB_REFUSE_NULL(error, "plan", plan);
    *plan = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    return memoi_rows_make_plan(desc, &aim, plan, error);
}
