#pragma once
#include "plan/session/stage.h"
/* --- >>session plan ---
 * Knows: stages, the seconds of their steps, and what is chosen by these: buffers, streamed states,
 * the moment of the update, a plan of each shape.  Knows nothing of addresses, and of how a search
 * for rows goes. */

#define MEMOI_SESSION_GAIN 1e-4 /* the least share of a step that another choice saves */

/* States of all layers. */
MEMOI int64_t memoi_session_n_states(const memo_session* s) {
    return (int64_t)s->states_desc.n_states * s->states_desc.n_layers;
}

/* What the stage takes of the device beside states and activations; the same, whatever is
 * streamed. */
MEMOI int64_t memoi_session_other_bytes(const memo_session* s) {
    return s->peak_bytes - s->part->plan->sizes.device_bytes - s->states_sizes.device_bytes;
}

/* What leaves the device in the best stage so far. */
typedef struct memoi_session_streams {
    memo_step_plan plan; /* a copy of its numbers */
    double step_s;       /* infinite: none fits */
    int is_current;      /* the session's stage is it */
    int64_t other_bytes; /* memoi_session_other_bytes */
    int64_t* rows;       /* its table */
} memoi_session_streams;

/* Streams the first n states of layers, and spills so many.  If nothing travels, only
 * MEMO_MAY_NOT_PASS gives the update another moment than its own pass. */
MEMOI void memoi_session_set_streams(memo_session* s, int64_t n, int64_t n_spilled,
                                     int is_on_host) {
    memo_step_plan* plan = s->part->plan;
    const int is_free = n || is_on_host || s->desc.update_may & MEMO_MAY_NOT_PASS;
    plan->update_at = is_free && !(is_on_host && s->update_at == MEMO_UPDATE_DEFERRED)
                          ? s->update_at
                          : (int32_t)MEMO_UPDATE_PASS;
    plan->update_is_on_host = is_on_host;
    plan->n_streamed = n;
    plan->n_spilled = n_spilled;
    memoi_session_stream(s);
    memoi_session_settle(s);
}

/* Returns the seconds of a step with the streamed states of the plan, by a short search for rows,
 * or with the stage's rows if the policy gives them; infinite if it does not fit. */
MEMOI double memoi_session_rank(memo_session* s, int64_t other_bytes) {
    const int64_t left_bytes = s->limit_bytes - other_bytes - s->states_sizes.device_bytes;
    const memob_states_sizes* sizes = &s->states_sizes;
    memoi_session_costs costs;
    double step_s;
    if (s->failure.status || (s->limit_bytes && left_bytes <= 0) ||
        memoi_is_over(sizes->host_bytes, s->desc.host_bytes) ||
        memoi_is_over(sizes->spill_bytes, s->desc.disk_bytes))
        return HUGE_VAL;
    memoi_session_cost(s, &costs);
    if (!s->start) costs.aim.start = s->part->plan->swap.rows; /* the stage's */
    if (s->limit_bytes) costs.desc.device_bytes = left_bytes;
    if (memoi_session_is_alpha(&s->desc) || s->desc.policy == MEMO_POLICY_MEMO)
        costs.swap.rows = NULL;
    memoi_keep(s, memoi_rows_rank(&costs.desc, &costs.aim, s->found, &step_s, &s->call_error));
    memoi_session_settle(s);
    return step_s;
}

/* Spills the fewest states of the first n, of at least n_spilled, with which a step fits, and
 * returns its seconds; infinite: none.  Tries a 16th of n more at a time. */
MEMOI double memoi_session_spill(memo_session* s, int64_t n, int64_t n_spilled,
                                 int64_t other_bytes) {
    const int on_host = s->part->plan->update_is_on_host;
    const int64_t most = s->desc.spill_directory && !on_host ? n : 0;
    double step_s;
    for (n_spilled = memob_min(n_spilled, most);;
         n_spilled = memob_min(n_spilled + n / 16 + 1, most)) {
        memoi_session_set_streams(s, n, n_spilled, on_host);
        step_s = memoi_session_rank(s, other_bytes);
        if (step_s < HUGE_VAL || n_spilled == most) return step_s;
    }
}

/* Makes the stage of the policy with the first n states of layers streamed, which becomes the best
 * if it fits and its step is shorter.  In a file: at least n_spilled of these states, and as many
 * more as host memory lacks. */
MEMOI void memoi_session_choose_with(memo_session* s, int64_t n, int64_t n_spilled, int is_on_host,
                                     memoi_session_streams* best) {
    const int64_t most = s->desc.spill_directory && !is_on_host ? n : 0;
    memo_step_plan* plan = s->part->plan;
    double step_s;
    memoi_session_set_streams(s, n, memob_min(n_spilled, most), is_on_host);
    memoi_session_choose_rows(s);

    /* The host or the disk lacks memory: spill more states. */
    if (!plan->fits && plan->n_spilled < most && !memoi_is_over(s->peak_bytes, s->limit_bytes)) {
        (void)memoi_session_spill(s, n, plan->n_spilled + 1, memoi_session_other_bytes(s));
        memoi_session_choose_rows(s);
    }

    /* Without times the first that fits is the best. */
    step_s = memoi_step_plan_s(plan);
    best->is_current = plan->fits && step_s < best->step_s * (1 - MEMOI_SESSION_GAIN);
    if (!best->is_current) return;
    best->other_bytes = memoi_session_other_bytes(s);
    best->plan = *plan;
    best->step_s = step_s;
    memcpy(best->rows, plan->swap.rows, (size_t)memoi_session_n_cells(s) * sizeof *best->rows);
}

/* A search for the number of streamed states. */
typedef struct memoi_session_count {
    int64_t least, other_bytes; /* other_bytes: of the stage */
    int64_t best, most;         /* the fewest and the most with the shortest step */
    double best_s;
} memoi_session_count;

/* Tries n streamed states, by a short search that begins with the rows of the best so far. */
MEMOI void memoi_session_try_count(memo_session* s, int64_t n, memoi_session_count* count) {
    double step_s = HUGE_VAL;
    if (n >= count->least && n <= memoi_session_n_states(s))
        step_s = memoi_session_spill(s, n, 0, count->other_bytes);
    if (step_s < count->best_s * (1 - MEMOI_SESSION_GAIN)) {
        count->best = count->most = n;
        count->best_s = step_s;
        memcpy(s->start, s->found, (size_t)memoi_session_n_cells(s) * sizeof *s->start);
    } else if (step_s <= count->best_s) {
        count->best = memob_min(count->best, n);
        count->most = memob_max(count->most, n);
    }
}

/* Streams more states than fit, if their copies cost less than the memory saves: an eighth of all
 * more at a time, then finer beside the best.  More states than others with the same step leave
 * room that may shorten it. */
MEMOI void memoi_session_stream_more(memo_session* s, memoi_session_streams* streams) {
    const int64_t n_all = memoi_session_n_states(s), least = streams->plan.n_streamed;
    const int64_t n_cells = memoi_session_n_cells(s);
    memoi_session_count count = {least, streams->other_bytes, least, least, HUGE_VAL};
    int64_t stride = 1, n;
    s->start = streams->rows + n_cells;
    s->found = s->start + n_cells;
    memcpy(s->start, streams->rows, (size_t)n_cells * sizeof *s->start);
    while (stride * 16 <= n_all) stride *= 2;
    memob_session_log(s, "session: planning which of %lld states of layers leave the device",
                      (long long)n_all);
    memoi_session_try_count(s, least, &count);
    for (n = stride; n < n_all + stride; n += stride)
        memoi_session_try_count(s, memob_min(n, n_all), &count);
    for (stride /= 2; stride; stride /= 2) {
        n = count.most + stride;
        memoi_session_try_count(s, count.best - stride, &count);
        memoi_session_try_count(s, n, &count);
    }

    /* The rows of the shortest step begin the whole search. */
    if (count.best != least || count.best_s < streams->step_s * (1 - MEMOI_SESSION_GAIN))
        memoi_session_choose_with(s, count.best, 0, 0, streams);
    else
        memoi_session_set_streams(s, least, streams->plan.n_spilled, 0);

    /* With the most of these states, or a few more, there may be room for other rows. */
    if (count.most > count.best) memoi_session_choose_with(s, count.most, 0, 0, streams);
    for (stride = 1; stride <= 4 && count.most + stride <= n_all &&
                     streams->step_s > count.best_s * (1 + MEMOI_SESSION_GAIN);
         stride *= 2)
        memoi_session_choose_with(s, count.most + stride, 0, 0, streams);
    s->start = s->found = NULL;
}

/* Streams the fewest states that fit, from n on.  Other memory takes the same bytes, whatever is
 * streamed. */
MEMOI void memoi_session_stream_fewest(memo_session* s, int64_t n, int64_t n_all,
                                       memoi_session_streams* best) {
    const int64_t stride = n_all / 64 + 1;
    const int64_t rest_bytes = s->peak_bytes - s->states_sizes.device_bytes;
    memo_step_plan* plan = s->part->plan;
    while (!plan->fits && n < n_all && (!n || s->peak_bytes > s->limit_bytes)) {
        plan->n_streamed = n = memob_min(n + stride, n_all);
        plan->n_spilled = 0;
        memoi_session_stream(s);
        if (s->states_sizes.device_bytes + rest_bytes <= s->limit_bytes || n == n_all)
            memoi_session_choose_with(s, n, 0, 0, best);
    }
}

/* More room for activations, on the device or on the host, may be worth more copies. */
MEMOI void memoi_session_give_room(memo_session* s, memoi_session_streams* best) {
    memoi_session_stream_more(s, best);
    for (int trial = 0; trial < 2; trial++) {
        const int64_t most = best->plan.n_streamed, from = best->plan.n_spilled;
        if (from == most || !best->plan.sizes.n_spilled_layers) continue;
        memoi_session_choose_with(s, most, trial ? most : (from + most) / 2, 0, best);
    }
}

/* 1: the update on the host may be better than the best so far, with the update on the device. */
MEMOI int memoi_session_may_host(const memo_session* s, const memoi_session_streams* best) {
    if (!s->desc.update_host || s->desc.update_on != MEMO_UPDATE_PLANNED || s->desc.n_layers < 2)
        return 0;
    return best->step_s >= HUGE_VAL ||
           (s->is_measured && s->times->update_host_s_per_byte > 0 && best->plan.n_streamed);
}

/* Chooses how many states of layers are streamed, and the stage: none if all states fit beside all
 * activations; else those with which the step is shortest, its update included; or all, with the
 * update on the host.  best: none yet. */
MEMOI void memoi_session_search_streams(memo_session* s, memoi_session_streams* best) {
    const int64_t n_all = memoi_session_n_states(s);
    memo_step_plan* plan = s->part->plan;
    int64_t device_bytes;
    if (n_all && s->desc.update_on == MEMO_UPDATE_HOST) {
        memoi_session_choose_with(s, n_all, 0, 1, best);
        return;
    }
    memoi_session_choose_with(s, s->least_streamed, 0, 0, best);
    if (!n_all || s->desc.states_stay) return;
    if (plan->fits && (!plan->times || plan->times->stall_s + plan->times->recompute_s <= 0))
        return;

    memoi_session_stream_fewest(s, s->least_streamed, n_all, best);
    if (s->is_measured && best->step_s < HUGE_VAL) memoi_session_give_room(s, best);
    if (best->step_s >= HUGE_VAL) { /* the last is the nearest */
        best->plan = *plan;
        best->is_current = 1;
    }

    /* States leave the device.  If neither place fits, the host takes fewer bytes of it. */
    device_bytes = s->peak_bytes;
    if (memoi_session_may_host(s, best)) memoi_session_choose_with(s, n_all, 0, 1, best);
    best->is_current |= best->step_s >= HUGE_VAL && s->peak_bytes < device_bytes &&
                        memoi_is_over(device_bytes, s->limit_bytes);
    if (best->is_current) return;

    /* The best stage again, from its rows. */
    if (best->step_s < HUGE_VAL) s->start = best->rows;
    memoi_session_choose_with(s, best->plan.n_streamed, best->plan.n_spilled,
                              best->plan.update_is_on_host, best);
    s->start = NULL;
}

/* The same.  Returns the seconds of the stage's step; infinite: it does not fit. */
MEMOI double memoi_session_choose_streams(memo_session* s) {
    memoi_session_streams best;
    memset(&best, 0, sizeof best);
    best.step_s = HUGE_VAL;
    /* Its table, and the two of stream_more. */
    best.rows = (int64_t*)memob_calloc(3 * memoi_session_n_cells(s), sizeof *best.rows);
    if (!best.rows) memoi_keep(s, memob_no_memory(&s->call_error, "the rows of plans"));
    memoi_session_settle(s);
    if (!s->failure.status) memoi_session_search_streams(s, &best);
    MEMO_FREE(best.rows);
    return best.step_s;
}

/* May the update run then? */
MEMOI int memoi_session_may_update(const memo_session_desc* desc, int32_t at) {
    const int may = desc->update_may;
    if (at == MEMO_UPDATE_DEFERRED) return may & MEMO_MAY_DEFER;
    if (memob_update_is_fused(at)) return may & MEMO_MAY_FUSE;
    return !(may & MEMO_MAY_NOT_PASS && may > MEMO_MAY_NOT_PASS);
}

/* The first of equal steps is chosen: a fused update copies least. */
static const int32_t memoi_session_moments[] = {MEMO_UPDATE_FUSED, MEMO_UPDATE_DEFERRED,
                                                MEMO_UPDATE_PASS};
MEMOB_TABLE_OF(MEMO_N_UPDATE_MOMENTS - 1, memoi_session_moments); /* all but 0 */
enum { MEMOI_N_MOMENTS = sizeof memoi_session_moments / sizeof *memoi_session_moments };

/* Ranks the moments of the update with the stage's streamed states.  Returns the one of the
 * shortest step. */
MEMOI int32_t memoi_session_rank_moments(memo_session* s) {
    const memo_step_plan* plan = s->part->plan;
    const int64_t n = plan->n_streamed, n_spilled = plan->n_spilled;
    const int64_t other_bytes = memoi_session_other_bytes(s);
    const int32_t chosen = s->update_at;
    int32_t best = chosen;
    double best_s = HUGE_VAL, step_s;
    for (int32_t k = 0; k < MEMOI_N_MOMENTS; k++) {
        if (!memoi_session_may_update(&s->desc, memoi_session_moments[k])) continue;
        s->update_at = memoi_session_moments[k];
        memoi_session_set_streams(s, n, n_spilled, 0);
        step_s = memoi_session_rank(s, other_bytes);
        if (step_s >= best_s * (1 - MEMOI_SESSION_GAIN)) continue;
        best_s = step_s;
        best = s->update_at;
    }
    s->update_at = chosen; /* the stage's */
    memoi_session_set_streams(s, n, n_spilled, 0);
    return best;
}

/* Chooses the streamed states, the stage, and when the update runs: the first moment that the
 * trainer allows, or another one if that is faster. */
MEMOI void memoi_session_choose_states(memo_session* s) {
    const memo_step_plan* plan = s->part->plan;
    double step_s;
    int32_t at, first;
    for (int32_t k = MEMOI_N_MOMENTS - 1; k >= 0; k--)
        if (memoi_session_may_update(&s->desc, memoi_session_moments[k]))
            s->update_at = memoi_session_moments[k];
    first = at = s->update_at;
    step_s = memoi_session_choose_streams(s);
    if (s->is_measured && step_s < HUGE_VAL && plan->n_streamed && !plan->update_is_on_host)
        at = memoi_session_rank_moments(s);
    if (at == first) return;

    /* Other rows and states may be better then. */
    s->update_at = at;
    if (memoi_session_choose_streams(s) < step_s) return;
    s->update_at = first;
    (void)memoi_session_choose_streams(s);
}

/* Ends a call that makes a plan. */
MEMOI memo_status memoi_session_give_plan(memo_session* s, memo_step_plan** plan,
                                          memo_error* error) {
    const memo_status status = memoi_session_end_call(s, error);
    if (!status) {
        *plan = s->own_plan;
        s->own_plan = NULL;
    }
    memo_session_destroy(s);
    return status;
}

/* Streams what the open plan streams, and chooses the stage. */
MEMOI void memoi_session_stay(memo_session* s, const memo_step_plan* open) {
    s->update_at = open->update_at;
    memoi_session_set_streams(s, open->n_streamed, open->n_spilled, open->update_is_on_host);
    memoi_session_choose_rows(s);
}

/* Names the limit of the chosen stage, if its rows were searched for. */
MEMOI void memoi_session_name_limit(memo_session* s) {
    const memo_step_plan* plan = s->part->plan;
    memoi_session_costs costs;
    if (s->failure.status || !plan->times || *plan->times->reason) return;
    memoi_session_cost(s, &costs);
    costs.swap.rows = NULL;
    if (s->limit_bytes)
        costs.desc.device_bytes = s->limit_bytes - (s->peak_bytes - plan->sizes.device_bytes);
    memoi_keep(s, memoi_rows_name(&costs.desc, &costs.aim, plan->times, &s->call_error));
    memoi_session_settle(s);
}

/* Plans every shape, `first` first, whose peak limits the others.  Sets peaks_bytes of each shape,
 * the most of all ranks. */
MEMOI void memoi_session_plan_each(memo_session* s, const memo_profile* profile, int32_t first,
                                   int64_t* peaks_bytes) {
    const int32_t n = s->desc.n_shapes;
    const memo_step_plan* plan_first = s->parts[first].plan;
    int64_t limit_bytes = s->desc.device_bytes;
    memo_profile times;
    for (int32_t i = 0, k = first; i < n; i++, k = (k + 1) % n) {
        memo_step_plan* plan = s->parts[k].plan;
        memoi_session_use_shape(s, k);
        memset(&times, 0, sizeof times);
        memoi_session_guess(s, &times);
        if (profile && !plan->shape.is_forward_only) {
            times = profile[k];
            memoi_session_settle_profile(s, &times);
        }
        s->limit_bytes = limit_bytes;
        s->times = &times;
        s->is_measured = profile && !s->effort;

        /* All shapes stream what the first streams. */
        plan->n_streamed = plan_first->n_streamed;
        plan->n_spilled = plan_first->n_spilled;
        plan->update_is_on_host = plan_first->update_is_on_host;
        plan->update_at = plan_first->update_at;
        if (i)
            memoi_session_choose_rows(s);
        else if (s->planner && s->planner->timing.keeps_states)
            memoi_session_stay(s, s->planner->parts[0].plan);
        else
            memoi_session_choose_states(s);
        if (limit_bytes != s->desc.device_bytes && !plan->fits) {
            s->limit_bytes = s->desc.device_bytes;
            memoi_session_choose_rows(s);
        }
        memoi_session_name_limit(s);
        s->limit_bytes = s->desc.device_bytes;
        if (i == 0 && plan->fits) limit_bytes = s->peak_bytes;
        peaks_bytes[k] = s->peak_bytes;
    }
}

/* Sets least_streamed: the fewest streamed states of layers, at least as many as now, with which no
 * shape lacks device memory.  Other memory does not depend on how many states are
 * streamed. */
MEMOI void memoi_session_stream_enough(memo_session* s, const int64_t* peaks_bytes) {
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
    s->least_streamed = n;
    memoi_session_settle(s);
}

/* The plan of every shape, for an open session that plans again, or for another (NULL).  The
 * longest shape with a backward comes first.  Every other shape gets the device memory that the
 * longest takes, so that the shapes together need no more; a shape that does not fit there gets
 * all of the budget.  If a shape lacks device memory, all stream more states. */
MEMOI memo_status memoi_session_plan_shapes(const memo_session* planner,
                                            const memo_session_desc* desc,
                                            const memo_profile* profile, memoi_rows_effort effort,
                                            memo_step_plan** plan, memo_error* error) {
    memo_session* s = memoi_session_make(desc, NULL, profile != NULL, error);
    int64_t most_rows = 0, peaks_bytes[MEMO_SHAPES_MAX], n_streamed;
    int32_t first = 0;
    *plan = NULL;
    if (!s) return MEMO_STATUS_OUT_OF_HOST_MEMORY;
    if (s->failure.status) return memoi_session_give_plan(s, plan, error);
    s->planner = planner;
    s->effort = effort;

    /* The shape with the most rows is planned first. */
    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        const memo_shape* shape = &s->parts[k].plan->shape;
        if (shape->is_forward_only || shape->n_rows <= most_rows) continue;
        most_rows = shape->n_rows;
        first = k;
    }

    do {
        memoi_session_plan_each(s, profile, first, peaks_bytes);
        n_streamed = s->part->plan->n_streamed;
        memoi_session_stream_enough(s, peaks_bytes);
    } while (s->least_streamed > n_streamed && !s->failure.status);
    return memoi_session_give_plan(s, plan, error);
}
