#pragma once
#include "plan/session/stage.h"
/* --- >>session plan ---
 * Knows: stages, the seconds of their steps, and what is chosen by these: the states that leave the
 * device, for the host or a file, and when and where the update runs; a plan of each shape.  Knows
 * nothing of addresses, and of how a search for rows goes.
 *
 * One search ranks *choices*, by a short search for rows that begins with the best rows so far; a
 * choice again only near the best.  A whole search plans the best choice, which its rank bounds
 * from above.  There is none for slices or groups whose best rank is far behind the plan of others.
 *
 * 1. Without times the first plan that fits is the last. */

/* States of all layers. */
MEMOI int64_t memoi_session_n_states(const memo_session* s) {
    return (int64_t)s->states_desc.n_states * s->states_desc.n_layers;
}

#define MEMOI_CHOICE_GAIN   1e-4  /* the least share of a step that another choice saves */
#define MEMOI_CHOICE_BEHIND 0.125 /* more than a whole search shortens a rank */
#define MEMOI_CHOICE_NEAR   0.016 /* the share of a step that a search for another choice saves */
#define MEMOI_CHOICE_SHARES 12    /* of the bytes of states, that are tried */

/* What leaves the device, and when and where the update runs. */
typedef struct memoi_choice {
    int64_t n_streamed, n_spilled; /* states of layers */
    int32_t update_at, is_on_host;
} memoi_choice;

/* A choice, its rank, and the most streamed states of those that have the same step. */
typedef struct memoi_leader {
    memoi_choice choice;
    double step_s; /* infinite: does not fit */
    int64_t most;
} memoi_leader;

/* A rank, and how many choices had been the best by then. */
typedef struct memoi_rank {
    double step_s; /* negative: none yet; infinite: does not fit */
    int32_t n_bests;
} memoi_rank;

/* A choice that was ranked, with the fewest spilled states that fit. */
typedef struct memoi_known {
    memoi_choice choice;
    memoi_rank rank;
} memoi_known;

/* What a choice does.  Choices count states that layers lack, so many do the same. */
typedef struct memoi_deed {
    uint64_t digest; /* of the states that leave the device, and the host */
    int32_t update_at, is_on_host;
    memoi_rank rank;
} memoi_deed;

enum { MEMOI_CHOICES_KNOWN = 128 };
typedef struct memoi_choices {
    int64_t other_bytes;                     /* of the device, beside states and activations */
    int64_t n_all;                           /* states of layers */
    int64_t shares[MEMOI_CHOICE_SHARES + 1]; /* streamed states with so many parts of the bytes */

    /* What ranks have found. */
    memoi_leader best;
    int32_t n_bests;       /* so far */
    int64_t *rows, *found; /* the best's, and those of the latest rank */
    int32_t n_known, n_deeds;
    memoi_known known[MEMOI_CHOICES_KNOWN];
    memoi_deed deeds[MEMOI_CHOICES_KNOWN]; /* that a search of rows has ranked */

    /* What whole searches have found. */
    memoi_choice planned;  /* the best */
    double planned_s;      /* of its step; infinite: none fits */
    memo_swap_plan* times; /* its */
    int is_current;        /* the session's stage is it */
} memoi_choices;

/* Streams, spills and updates as chosen.  If nothing travels, only MEMO_MAY_NOT_PASS gives the
 * update another moment than its own pass. */
MEMOI void memoi_planner_take(const memoi_planner* p, const memoi_choice* c) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    const int is_free = c->n_streamed || c->is_on_host || s->desc.update_may & MEMO_MAY_NOT_PASS;
    plan->update_at = is_free && !(c->is_on_host && c->update_at == MEMO_UPDATE_DEFERRED)
                          ? c->update_at
                          : (int32_t)MEMO_UPDATE_PASS;
    plan->update_is_on_host = c->is_on_host;
    plan->n_streamed = c->n_streamed;
    plan->n_spilled = c->n_spilled;
    memoi_session_stream(s);
    memoi_session_settle(s);
}

/* All states are streamed, and the host updates them. */
MEMOI memoi_choice memoi_choices_on_host(const memoi_choices* f, int32_t update_at) {
    const memoi_choice choice = {f->n_all, 0, update_at, 1};
    return choice;
}

/* The most states that a choice can spill. */
MEMOI int64_t memoi_planner_most_spilled(const memoi_planner* p, const memoi_choice* c) {
    return p->session->desc.spill_directory && !c->is_on_host ? c->n_streamed : 0;
}

/* --- ranks --- */

/* What the choice that was taken does: a deed that is known, or a new one without a rank. */
MEMOI memoi_deed* memoi_planner_deed(const memoi_planner* p, memoi_choices* f) {
    const memo_session* s = p->session;
    const memo_step_plan* plan = s->part->plan;
    const memoi_deed deed = {
        s->states_sizes.digest, plan->update_at, plan->update_is_on_host, {-1, 0}};
    int32_t k = 0;
    while (k < f->n_deeds &&
           !(f->deeds[k].digest == deed.digest && f->deeds[k].update_at == deed.update_at &&
             f->deeds[k].is_on_host == deed.is_on_host))
        k++;
    if (k == f->n_deeds) {
        f->n_deeds = k + (k < MEMOI_CHOICES_KNOWN);
        k = f->n_deeds - 1;
        f->deeds[k] = deed;
    }
    return &f->deeds[k];
}

/* 1: a rank is near the best step, and older.  One that begins with the best rows of now may be
 * shorter. */
MEMOI int memoi_rank_may_gain(const memoi_rank* rank, const memoi_choices* f) {
    return rank->n_bests != f->n_bests && rank->step_s > f->best.step_s &&
           rank->step_s <= f->best.step_s * (1 + MEMOI_CHOICE_NEAR);
}

/* Returns the seconds of a step, by a short search for rows, or with the stage's rows if the policy
 * gives them; infinite if it does not fit. */
MEMOI double memoi_planner_rank(const memoi_planner* p, memoi_choices* f, const memoi_choice* c) {
    memo_session* s = p->session;
    const memob_states_sizes* sizes = &s->states_sizes;
    memoi_deed* deed;
    const int plans_rows = memoi_session_plans_rows(&s->desc);
    memoi_session_costs costs;
    int64_t left_bytes;
    double step_s;
    memoi_planner_take(p, c);
    left_bytes = p->limit_bytes - f->other_bytes - sizes->device_bytes;
    if (s->failure.status || (p->limit_bytes && left_bytes <= 0) ||
        memoi_is_over(sizes->host_bytes, s->desc.host_bytes) ||
        memoi_is_over(sizes->spill_bytes, s->desc.disk_bytes))
        return HUGE_VAL;
    deed = memoi_planner_deed(p, f);
    if (deed->rank.step_s >= 0 && !memoi_rank_may_gain(&deed->rank, f)) return deed->rank.step_s;
    memoi_stage_cost(p, &costs);
    costs.aim.start = f->rows;
    costs.aim.other_s = f->best.step_s < HUGE_VAL ? f->best.step_s : 0;
    if (p->limit_bytes) costs.desc.device_bytes = left_bytes;
    if (plans_rows) costs.swap.rows = NULL;
    memoi_keep(s, memoi_rows_rank(&costs.desc, &costs.aim, f->found, &step_s, &s->call_error));
    memoi_session_settle(s);
    deed->rank.step_s = deed->rank.step_s < 0 ? step_s : fmin(step_s, deed->rank.step_s);
    deed->rank.n_bests = f->n_bests;
    return step_s;
}

/* Ranks a choice with the fewest spilled states, of at least its own, with which a step fits.
 * Tries a 16th of the streamed states more at a time. */
MEMOI double memoi_planner_spill(const memoi_planner* p, memoi_choices* f, memoi_choice* c) {
    const int64_t most = memoi_planner_most_spilled(p, c), more = c->n_streamed / 16 + 1;
    double step_s;
    for (c->n_spilled = memob_min(c->n_spilled, most);;
         c->n_spilled = memob_min(c->n_spilled + more, most)) {
        step_s = memoi_planner_rank(p, f, c);
        if (step_s < HUGE_VAL || c->n_spilled == most) return step_s;
    }
}

/* Makes a choice the best if its step is shorter, or the same with fewer streamed states.  Returns
 * 1 if it is shorter. */
MEMOI int memoi_leader_take(memoi_leader* best, const memoi_choice* c, double step_s) {
    const int is_shorter = step_s < best->step_s * (1 - MEMOI_CHOICE_GAIN);
    const int is_same =
        step_s <= best->step_s && c->update_at == best->choice.update_at && !c->n_spilled;
    if (is_shorter) {
        best->step_s = step_s;
        best->most = c->n_streamed;
    }
    if (is_same) best->most = memob_max(best->most, c->n_streamed);
    if (is_shorter || (is_same && c->n_streamed < best->choice.n_streamed)) best->choice = *c;
    return is_shorter;
}

/* Ranks a choice, unless its rank is known and cannot gain, and takes it for the best if it is.
 * Returns the seconds of its step. */
MEMOI double memoi_planner_try(const memoi_planner* p, memoi_choices* f, memoi_choice c) {
    const int64_t n_cells = memoi_session_n_cells(p->session);
    memoi_known* known = f->known;
    memoi_known* const end = f->known + f->n_known;
    double step_s;
    if (!memob_is_within(c.n_streamed, p->least_streamed, f->n_all)) return HUGE_VAL;
    while (known < end && memcmp(&known->choice, &c, sizeof c)) known++;
    if (known < end && !memoi_rank_may_gain(&known->rank, f)) return known->rank.step_s;
    f->n_known += known == end && f->n_known < MEMOI_CHOICES_KNOWN - 1;
    known->choice = c;
    step_s = memoi_planner_spill(p, f, &c);
    if (memoi_leader_take(&f->best, &c, step_s) && memoi_session_plans_rows(&p->session->desc)) {
        memcpy(f->rows, f->found, (size_t)n_cells * sizeof *f->rows);
        f->n_bests++;
    }
    known->rank.step_s = step_s;
    known->rank.n_bests = f->n_bests;
    return step_s;
}

/* The same, to try others around it. */
MEMOI memoi_leader memoi_planner_lead(const memoi_planner* p, memoi_choices* f, memoi_choice c) {
    const memoi_leader leader = {c, memoi_planner_try(p, f, c), c.n_streamed};
    return leader;
}

/* Tries fewer and more streamed states than those of a choice, or of better ones that this finds,
 * by up to what is between two of MEMOI_CHOICE_SHARES, times scale, then finer and finer. */
MEMOI void memoi_planner_try_around(const memoi_planner* p, memoi_choices* f, memoi_leader from,
                                    int64_t scale) {
    int64_t stride = 1, gap = 1, last = 0;
    for (int32_t k = 1; k <= MEMOI_CHOICE_SHARES && last <= from.choice.n_streamed; k++) {
        if (f->shares[k] >= from.choice.n_streamed) gap = memob_max(gap, f->shares[k] - last);
        last = f->shares[k];
    }
    while (stride * 2 <= gap * scale) stride *= 2;
    for (; stride; stride /= 2) {
        memoi_choice fewer = from.choice, more = from.choice;
        fewer.n_spilled = more.n_spilled = 0;
        fewer.n_streamed -= stride;
        more.n_streamed = from.most + stride;
        (void)memoi_leader_take(&from, &fewer, memoi_planner_try(p, f, fewer));
        (void)memoi_leader_take(&from, &more, memoi_planner_try(p, f, more));
    }
}

/* May the update run then? */
MEMOI int memoi_planner_may_update(const memo_session_desc* desc, int32_t at) {
    const int may = desc->update_may;
    if (at == MEMO_UPDATE_DEFERRED) return may & MEMO_MAY_DEFER;
    if (memob_update_is_fused(at)) return may & MEMO_MAY_FUSE;
    return !(may & MEMO_MAY_NOT_PASS && may > MEMO_MAY_NOT_PASS);
}

/* The first of equal steps is chosen: a fused update copies least. */
static const int32_t memoi_moments[] = {MEMO_UPDATE_FUSED, MEMO_UPDATE_DEFERRED, MEMO_UPDATE_PASS};
MEMOB_TABLE_OF(MEMO_N_UPDATE_MOMENTS - 1, memoi_moments); /* all but 0 */
enum { MEMOI_N_MOMENTS = sizeof memoi_moments / sizeof *memoi_moments };

/* 1: the update may run on the host or on the device, as is better. */
MEMOI int memoi_planner_may_host(const memoi_planner* p) {
    const memo_session_desc* desc = &p->session->desc;
    return desc->update_host && desc->update_on == MEMO_UPDATE_PLANNED && desc->n_layers >= 2;
}
/* 1: it has a rank there. */
MEMOI int memoi_planner_ranks_host(const memoi_planner* p) {
    return p->is_measured && p->times->update_host_s_per_byte > 0 && memoi_planner_may_host(p);
}

/* Tries all moments that the trainer allows. */
MEMOI void memoi_planner_try_moments(const memoi_planner* p, memoi_choices* f, memoi_choice c) {
    for (int32_t k = 0; k < MEMOI_N_MOMENTS; k++) {
        c.update_at = memoi_moments[k];
        if (memoi_planner_may_update(&p->session->desc, c.update_at))
            (void)memoi_planner_try(p, f, c);
    }
}

/* 1: a plan of other slices or groups takes less, by more than a whole search shortens a rank. */
MEMOI int memoi_planner_is_behind(const memoi_planner* p, const memoi_choices* f) {
    return p->best_s > 0 && f->best.step_s > p->best_s * (1 + MEMOI_CHOICE_BEHIND) &&
           p->session->desc.policy == MEMO_POLICY_MEMO;
}

/* Tries shares of the bytes of states, then between the fewest that fit and what does not, then
 * around the best, and around each that is near the best and no longer than its neighbors.  Shares
 * near the best are ranked again, beginning with its rows. */
MEMOI void memoi_planner_try_shares(const memoi_planner* p, memoi_choices* f, memoi_choice c) {
    enum { N = MEMOI_CHOICE_SHARES + 1 };
    memoi_leader shares[N];
    int32_t first = N;
    for (int32_t k = 0; k < N; k++) {
        if (k) c.n_streamed = f->shares[k];
        shares[k] = memoi_planner_lead(p, f, c);
        if (shares[k].step_s < HUGE_VAL && first == N) first = k;
    }
    if (first == N) return;

    /* The fewest that fit take the place of a share that does not. */
    if (first) {
        memoi_leader* fewest = &shares[first - 1];
        int64_t lacks = fewest->choice.n_streamed;
        *fewest = shares[first];
        while (fewest->choice.n_streamed - lacks > 1) {
            memoi_leader middle;
            c.n_streamed = lacks + (fewest->choice.n_streamed - lacks) / 2;
            middle = memoi_planner_lead(p, f, c);
            if (middle.step_s < HUGE_VAL)
                *fewest = middle;
            else
                lacks = c.n_streamed;
        }
    }

    if (memoi_planner_is_behind(p, f)) return;
    memoi_planner_try_around(p, f, f->best, 1);
    for (int32_t k = 0; k < N; k++) {
        const int is_low = (k == 0 || shares[k].step_s <= shares[k - 1].step_s) &&
                           (k == N - 1 || shares[k].step_s <= shares[k + 1].step_s);
        if (is_low && shares[k].step_s <= f->best.step_s * (1 + MEMOI_CHOICE_NEAR))
            memoi_planner_try_around(p, f, shares[k], 1);
    }
    for (int32_t k = 0; k < N; k++) (void)memoi_planner_try(p, f, shares[k].choice);
}

/* Ranks choices of the update on the device.  Streams more states than fit, if their copies cost
 * less than the memory saves.  Then come other moments, and more states in a file, which leave host
 * memory to rows. */
MEMOI void memoi_planner_try_device(const memoi_planner* p, memoi_choices* f, memoi_choice c) {
    const int32_t first = c.update_at;
    memoi_planner_try_shares(p, f, c);
    if (f->best.step_s >= HUGE_VAL) return;

    c = f->best.choice;
    c.n_spilled = 0;
    memoi_planner_try_moments(p, f, c);
    if (f->best.choice.update_at != first) memoi_planner_try_around(p, f, f->best, 2);

    for (int k = 0; k < 2 && p->session->desc.host_bytes; k++) {
        const int64_t most = memoi_planner_most_spilled(p, &f->best.choice);
        c = f->best.choice;
        if (c.n_spilled == most) return;
        c.n_spilled = k ? most : (c.n_spilled + most) / 2;
        (void)memoi_planner_try(p, f, c);
    }
}

/* --- whole searches --- */

/* A stage becomes the best if it fits and its step is shorter; without times the first that fits is
 * the best. */
MEMOI void memoi_planner_judge(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    memo_step_plan* plan = p->session->part->plan;
    const double step_s = memoi_step_plan_s(plan);
    f->is_current = plan->fits && step_s < f->planned_s * (1 - MEMOI_CHOICE_GAIN);
    if (!f->is_current) return;
    memo_swap_plan_destroy(f->times);
    f->times = plan->times;
    plan->times = NULL;
    f->planned = c;
    f->planned_s = step_s;
}

/* Ends the stage of a choice by a whole search, with more states in a file if another memory lacks
 * bytes. */
MEMOI void memoi_planner_end(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    memo_step_plan* plan = p->session->part->plan;
    const int64_t most = memoi_planner_most_spilled(p, &c);
    memoi_stage_end(p);
    if (!plan->fits && c.n_spilled < most && !memoi_is_over(p->peak_bytes, p->limit_bytes)) {
        c.n_spilled++;
        f->other_bytes = memoi_stage_other_bytes(p);
        f->n_deeds = 0; /* ranked beside other bytes */
        (void)memoi_planner_spill(p, f, &c);
        memoi_stage_choose(p);
    }
    memoi_planner_judge(p, f, c);
}
MEMOI void memoi_planner_plan(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    memoi_planner_take(p, &c);
    memoi_stage_begin(p);
    memoi_planner_end(p, f, c);
}

/* Plans the best choice with the rows of its rank. */
MEMOI void memoi_planner_plan_rank(memoi_planner* p, memoi_choices* f) {
    memo_step_plan* plan = p->session->part->plan;
    memo_swap_plan found = MEMO_ZERO(memo_swap_plan);
    found.rows = f->rows;
    memoi_planner_take(p, &f->best.choice);
    memoi_stage_forget_times(plan);
    memoi_stage_take(p, &found);
    if (plan->fits) memoi_stage_time(p);
    memoi_planner_judge(p, f, f->best.choice);
}

/* Plans a choice if its states leave more room on the device than *least_bytes do, which they then
 * become. */
MEMOI void memoi_planner_plan_roomier(memoi_planner* p, memoi_choices* f, memoi_choice c,
                                      int64_t* least_bytes) {
    const int64_t* n_bytes = &p->session->states_sizes.device_bytes;
    memoi_planner_take(p, &c);
    f->is_current = 0;
    if (*n_bytes >= *least_bytes) return;
    *least_bytes = *n_bytes;
    memoi_stage_begin(p);
    memoi_planner_end(p, f, c);
}

/* Plans the best choice from its rows, and the most states with the same step, which leave room for
 * other rows.  Where neither is as short as ranked, a few states more may. */
MEMOI void memoi_planner_plan_best(memoi_planner* p, memoi_choices* f) {
    memoi_choice c = f->best.choice;
    int64_t least_bytes = INT64_MAX;
    p->start = f->rows;
    memoi_planner_plan_roomier(p, f, c, &least_bytes);
    c.n_streamed = f->best.most;
    memoi_planner_plan_roomier(p, f, c, &least_bytes);
    for (int64_t more = 1; more <= 4 && f->best.most + more <= f->n_all && !c.is_on_host &&
                           f->planned_s > f->best.step_s * (1 + MEMOI_CHOICE_GAIN);
         more *= 2) {
        c.n_streamed = f->best.most + more;
        memoi_planner_plan_roomier(p, f, c, &least_bytes);
    }
    p->start = NULL;
}

/* Plans the fewest streamed states that fit, of at least those of c, whose stage there is.  Other
 * memory takes the same bytes, whatever is streamed. */
MEMOI void memoi_planner_plan_fewest(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    const memo_session* s = p->session;
    const memo_step_plan* plan = s->part->plan;
    const int64_t stride = f->n_all / 64 + 1;
    const int64_t rest_bytes = p->peak_bytes - s->states_sizes.device_bytes;
    while (!plan->fits && c.n_streamed < f->n_all &&
           (!c.n_streamed || p->peak_bytes > p->limit_bytes)) {
        c.n_streamed = memob_min(c.n_streamed + stride, f->n_all);
        memoi_planner_take(p, &c);
        if (s->states_sizes.device_bytes + rest_bytes <= p->limit_bytes || c.n_streamed == f->n_all)
            memoi_planner_plan(p, f, c);
    }
}

/* Nothing fits with the update on the device.  If neither place fits, the stage is that of the host
 * if it takes fewer bytes of the device. */
MEMOI void memoi_planner_plan_host(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    const memo_step_plan* plan = p->session->part->plan;
    const memoi_choice on_host = memoi_choices_on_host(f, c.update_at);
    const int64_t device_bytes = p->peak_bytes;
    c.n_streamed = plan->n_streamed;
    c.n_spilled = plan->n_spilled;
    if (!memoi_planner_may_host(p)) return;
    memoi_planner_plan(p, f, on_host);
    if (plan->fits || (p->peak_bytes < device_bytes && memoi_is_over(device_bytes, p->limit_bytes)))
        return;
    memoi_planner_take(p, &c);
    memoi_stage_choose(p);
}

/* Ranks choices beside the stage that there is, which is of c, and plans the best. */
MEMOI void memoi_planner_choose_ranked(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    memo_session* s = p->session;
    const memoi_choice on_host = memoi_choices_on_host(f, c.update_at);
    memob_session_log(s, "session: planning which of %lld states of layers leave the device",
                      (long long)f->n_all);
    f->other_bytes = memoi_stage_other_bytes(p);
    f->best.choice = c;
    memcpy(f->rows, s->part->plan->swap.rows, (size_t)memoi_session_n_cells(s) * sizeof *f->rows);
    for (int32_t k = 0; k <= MEMOI_CHOICE_SHARES; k++)
        f->shares[k] = memoi_session_first_of(s, (double)k / MEMOI_CHOICE_SHARES);

    if (!c.is_on_host) memoi_planner_try_device(p, f, c);
    if (c.is_on_host || memoi_planner_ranks_host(p)) memoi_planner_try_moments(p, f, on_host);
    if (f->best.step_s >= HUGE_VAL) return;
    if (memoi_planner_is_behind(p, f))
        memoi_planner_plan_rank(p, f);
    else
        memoi_planner_plan_best(p, f);
}

/* Chooses, and makes the stage. */
MEMOI void memoi_planner_search(memoi_planner* p, memoi_choices* f, memoi_choice c) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    if (f->n_all && s->desc.update_on == MEMO_UPDATE_HOST)
        c = memoi_choices_on_host(f, c.update_at);
    memoi_planner_take(p, &c);
    memoi_stage_begin(p);

    /* Nothing to choose: no states, or all are on the device and nothing stalls. */
    if (plan->fits || !f->n_all || s->desc.states_stay || !p->is_measured)
        memoi_planner_end(p, f, c);
    if (!f->n_all || s->desc.states_stay) return;
    if (plan->fits && (!f->times || (f->times->stall_s + f->times->recompute_s <= 0 &&
                                     !memoi_planner_ranks_host(p))))
        return;

    if (p->is_measured) memoi_planner_choose_ranked(p, f, c);
    if (f->planned_s >= HUGE_VAL && p->is_measured) memoi_planner_plan(p, f, c);
    if (f->planned_s >= HUGE_VAL && !c.is_on_host) memoi_planner_plan_fewest(p, f, c);
    if (f->planned_s >= HUGE_VAL) memoi_planner_plan_host(p, f, c);
}

/* Chooses, and makes the stage of, the states that are streamed, and the update's moment and place:
 * nothing travels if all states fit beside all activations. */
MEMOI void memoi_planner_choose(memoi_planner* p) {
    memo_session* s = p->session;
    memo_step_plan* plan = s->part->plan;
    const int64_t n_cells = memoi_session_n_cells(s);
    memoi_choice c = {p->least_streamed, 0, 0, 0};
    memoi_choices f;
    memset(&f, 0, sizeof f);
    f.best.step_s = f.planned_s = HUGE_VAL;
    f.n_all = memoi_session_n_states(s);
    for (int32_t k = MEMOI_N_MOMENTS - 1; k >= 0; k--)
        if (memoi_planner_may_update(&s->desc, memoi_moments[k])) c.update_at = memoi_moments[k];
    f.rows = (int64_t*)memob_calloc(2 * n_cells, sizeof *f.rows);
    if (!f.rows) memoi_keep(s, memob_no_memory(&s->call_error, "the rows of plans"));
    memoi_session_settle(s);
    if (!s->failure.status) {
        f.found = f.rows + n_cells;
        memoi_planner_search(p, &f, c);
    }
    MEMO_FREE(f.rows);
    if (f.planned_s >= HUGE_VAL) return;

    /* The best stage again, from its rows. */
    MEMO_ASSERT(f.is_current || f.times); /* 1 */
    if (!f.is_current) {
        memoi_planner_take(p, &f.planned);
        memoi_stage_begin(p);
        if (f.times->rows || f.times->alpha >= 0) memoi_stage_take(p, f.times);
    }
    memoi_stage_forget_times(plan);
    plan->times = f.times;
}

/* Names the limit of the chosen stage, if its rows were searched for, and no plan of other slices
 * or groups is as good. */
MEMOI void memoi_planner_name_limit(const memoi_planner* p) {
    memo_session* s = p->session;
    const memo_step_plan* plan = s->part->plan;
    memoi_session_costs costs;
    if (s->failure.status || !plan->times || *plan->times->reason) return;
    if (p->best_s > 0 && plan->times->step_s >= p->best_s) return;
    memoi_stage_cost_rows(p, &costs);
    memoi_keep(s, memoi_rows_name(&costs.desc, &costs.aim, plan->times, &s->call_error));
    memoi_session_settle(s);
}

/* Plans every shape, `first` first, whose peak limits the others.  Sets peaks_bytes of each shape,
 * the most of all ranks. */
MEMOI void memoi_planner_plan_each(memoi_planner* p, int32_t first, int64_t* peaks_bytes) {
    memo_session* s = p->session;
    const int32_t n = s->desc.n_shapes;
    const memo_step_plan* chosen = p->open ? p->open : s->parts[first].plan;
    int64_t limit_bytes = s->desc.device_bytes;
    memo_profile times;
    for (int32_t i = 0, k = first; i < n; i++, k = (k + 1) % n) {
        memo_step_plan* plan = s->parts[k].plan;
        memoi_session_use_shape(s, k);
        memset(&times, 0, sizeof times);
        memoi_session_guess(s, &times);
        if (p->profile && !plan->shape.is_forward_only) {
            times = p->profile[k];
            memoi_session_settle_profile(s, &times);
        }
        p->limit_bytes = limit_bytes;
        p->times = &times;
        p->is_measured = p->profile && !p->effort;

        /* All shapes stream what the first streams, or the open plan. */
        if (i || p->open) {
            const memoi_choice c = {chosen->n_streamed, chosen->n_spilled, chosen->update_at,
                                    chosen->update_is_on_host};
            memoi_planner_take(p, &c);
            memoi_stage_choose(p);
        } else
            memoi_planner_choose(p);
        if (limit_bytes != s->desc.device_bytes && !plan->fits) {
            p->limit_bytes = s->desc.device_bytes;
            memoi_stage_choose(p);
        }
        memoi_planner_name_limit(p);
        plan->sleep_s = memoi_rows_over(
            (double)(plan->sleep_bytes + plan->bytes[MEMO_TIER_DEVICE][MEMO_OWNER_PLACES]),
            memob_rows_find_rates(&times).bytes_per_s[0][0]);
        p->limit_bytes = s->desc.device_bytes;
        if (i == 0 && plan->fits) limit_bytes = p->peak_bytes;
        peaks_bytes[k] = p->peak_bytes;
    }
}

/* Sets least_streamed: the fewest streamed states of layers, at least as many as now, with which no
 * shape lacks device memory.  Other memory does not depend on how many states are
 * streamed. */
MEMOI void memoi_planner_stream_enough(memoi_planner* p, const int64_t* peaks_bytes) {
    memo_session* s = p->session;
    const int64_t n_all = memoi_session_n_states(s);
    const int64_t state_bytes = s->states_sizes.device_bytes;
    const int may_stream = s->desc.device_bytes && !s->desc.states_stay;
    int64_t most_bytes = 0, n = s->part->plan->n_streamed;
    for (int32_t k = 0; k < s->desc.n_shapes; k++)
        most_bytes = memob_max(most_bytes, peaks_bytes[k]);
    while (may_stream && n < n_all &&
           most_bytes - state_bytes + s->states_sizes.device_bytes > s->desc.device_bytes) {
        s->part->plan->n_streamed = n = memob_min(n + n_all / 64 + 1, n_all);
        memoi_session_stream(s);
    }
    p->least_streamed = n;
    memoi_session_settle(s);
}

/* The plan of every shape of a desc.  The longest shape with a backward comes first.  Every other
 * shape gets the device memory that the longest takes, so that the shapes together need no more; a
 * shape that does not fit there gets all of the budget.  If a shape lacks device memory, all stream
 * more states. */
MEMOI memo_status memoi_planner_plan_shapes(memoi_planner* p, const memo_session_desc* desc,
                                            memo_step_plan** plan, memo_error* error) {
    memo_session* s = memoi_session_make(desc, NULL, p->profile != NULL, error);
    int64_t most_rows = 0, peaks_bytes[MEMO_SHAPES_MAX], n_streamed;
    int32_t first = 0;
    memo_status status;
    *plan = NULL;
    if (!s) return MEMO_STATUS_OUT_OF_HOST_MEMORY;
    p->session = s;
    p->least_streamed = 0;

    /* The shape with the most rows is planned first. */
    for (int32_t k = 0; k < s->desc.n_shapes && !s->failure.status; k++) {
        const memo_shape* shape = &s->parts[k].plan->shape;
        if (shape->is_forward_only || shape->n_rows <= most_rows) continue;
        most_rows = shape->n_rows;
        first = k;
    }

    while (!s->failure.status) {
        memoi_planner_plan_each(p, first, peaks_bytes);
        n_streamed = s->part->plan->n_streamed;
        memoi_planner_stream_enough(p, peaks_bytes);
        if (p->least_streamed <= n_streamed) break;
    }
    status = memoi_session_end_call(s, error);
    if (!status) {
        *plan = s->own_plan;
        s->own_plan = NULL;
    }
    memo_session_destroy(s);
    p->session = NULL;
    return status;
}
