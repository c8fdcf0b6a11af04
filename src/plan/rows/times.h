#pragma once
#include "memo/poison.h"
#include "memo/states.h"
#include "memo/swap_items.h"
#include "plan/rows/rows.h"
/* --- >>row times ---
 * Knows: how long a step takes whose bytes and law are given, and the laws of the latest tables.
 * Knows nothing of budgets and addresses, and of why operations come in their order.
 *
 * A clock on which the operations of a step pass, as the law of memo.h's >>swap items
 * lists them.  Every cost of an operation is here: a new one is a field of memo_profile, a term
 * here, and a duration in memo_swap_generate (memo_look.h).
 * test_swap_plan compares both for random problems.
 *
 * 1. The law of a table has the visits of the table's steps.
 * 2. The clock has a cell for each of the law's. */

/* Bytes by a time, or by a rate; 0: there is none. */
MEMOI double memoi_rows_over(double n_bytes, double by) { return by > 0 ? n_bytes / by : 0; }
MEMOI double memoi_rows_rate(double n_bytes, double time_s) {
    return fmin(memoi_rows_over(n_bytes, time_s), MEMOB_TIME_MAX);
}

/* Two copies give a line: its slope is the rate, and its value at 0 bytes is copy_s. */
MEMOI memob_rates memob_rows_find_rates(const memo_profile* profile) {
    const memo_profile_transfer *small = &profile->copies[0], *large = &profile->copies[1];
    const memo_profile_transfer* file = &profile->file;
    const double small_bytes = (double)small->size_bytes;
    double bytes = (double)large->size_bytes - small_bytes;
    double out_s = large->out_s - small->out_s, back_s = large->back_s - small->back_s;
    memob_rates rates;
    if (bytes <= 0 || out_s <= 0 || back_s <= 0) { /* noise, or one size only */
        bytes = (double)large->size_bytes;
        out_s = large->out_s;
        back_s = large->back_s;
    }
    rates.copy_s = fmax(0, (small->out_s - memoi_rows_over(small_bytes * out_s, bytes) +
                            small->back_s - memoi_rows_over(small_bytes * back_s, bytes)) /
                               2);
    rates.bytes_per_s[0][0] = memoi_rows_rate(bytes, out_s);
    rates.bytes_per_s[0][1] = memoi_rows_rate(bytes, back_s);
    rates.bytes_per_s[1][0] = memoi_rows_rate((double)file->size_bytes, file->out_s);
    rates.bytes_per_s[1][1] = memoi_rows_rate((double)file->size_bytes, file->back_s);
    rates.update_host_s_per_byte = profile->update_host_s_per_byte;
    rates.fetch_s_per_byte = profile->fetch_s_per_byte;
    memcpy(rates.slowdown_s_per_byte, profile->slowdown_s_per_byte,
           sizeof rates.slowdown_s_per_byte);
    return rates;
}

/* Time of a slice: middle_s - growth_s for the first, middle_s + growth_s for the last, linear
 * between; at least 0. */
MEMOI double memoi_rows_slice_s(const memo_swap_desc* desc, int32_t step, double middle_s,
                                double growth_s) {
    const double rows = (double)desc->n_rows, all = (double)memob_swap_layer_rows(desc);
    double begin, n;
    if (memob_swap_batch_slices(desc) <= 1) return middle_s;
    begin = (double)(step % memob_swap_batch_slices(desc)) * rows;
    n = begin + rows > all ? all - begin : rows;
    middle_s += growth_s * ((2 * begin + n) / all - 1);
    return middle_s > 0 ? middle_s * (n / rows) : 0;
}

/* A pass of a step, without recomputed rows. */
MEMOI double memob_rows_pass_s(const memo_swap_plan_desc* desc, int32_t step, int is_backward) {
    const memo_swap_desc* swap = desc->swap;
    const memo_profile* p = desc->profile;
    const int32_t kind = memob_layer_kind(swap, step);
    const double share = (double)swap->n_rows / (double)memob_max(p->n_rows, 1); /* other slices */
    return memoi_rows_slice_s(
        swap, step, share * (is_backward ? p->backward_s : p->forward_s)[kind],
        share * (is_backward ? p->backward_growth_s : p->forward_growth_s)[kind]);
}

/* To recompute all rows of a slice; late rows: late_rows of them.  The tensor that a tensor is
 * recomputed with has the time of both. */
MEMOI double memob_rows_recompute_s(const memo_swap_plan_desc* desc, int32_t step, int32_t t,
                                    int64_t late_rows) {
    const memo_swap_desc* swap = desc->swap;
    const memo_profile_tensor* tensor = memoi_profile_find(desc->profile, swap->tensors, t);
    const int32_t kind = memob_layer_kind(swap, step);
    if (!tensor || swap->tensors[t].away == MEMO_WITH) return 0;
    if (memob_tensor_is_routed(swap, t))
        return tensor->recompute_s_per_row[kind] * (double)late_rows;
    return memoi_rows_slice_s(swap, step, tensor->recompute_s_per_row[kind] * (double)swap->n_rows,
                              tensor->recompute_growth_s_per_row[kind] * (double)swap->n_rows);
}

/* Seconds of a step's computation, forward and backward, without recomputed rows. */
typedef struct memoi_rows_layer {
    double compute_s[2];
} memoi_rows_layer;

/* A law, and what it depends on: tables that differ in bytes and in times alone have the same.
 * Each has one place, as tables that are known; the fewer places, the more cells have tables. */
#define MEMOI_ROWS_LAWS_MAX   256 /* powers of 2 */
#define MEMOI_ROWS_LAWS_LEAST 8
#define MEMOI_ROWS_LAWS_CELLS (1 << 15) /* of all */
typedef struct memoi_rows_law {
    memob_law law;
    int32_t n_items, input; /* of its items; n_items 0: there is no law */
    char* uses_of;
    int64_t n_most;
} memoi_rows_law;

/* A step while its times are found. */
typedef struct memoi_rows_clock {
    const memo_swap_plan_desc* desc;
    memob_rates rates;
    memob_swap_placement order; /* of each table: sums, turns, sizes; no places */
    memoi_rows_layer* layers;
    double least_s;         /* computation of a step, without what rows recompute */
    memob_swap_items items; /* of the table, */
    memob_step_rows rows;   /* and their law, which is one of */
    memoi_rows_law* laws;   /* these */
    int32_t n_laws;
    memob_arrays work; /* for a law */
    int64_t n_cells_most;

    memob_clock now;      /* on which rows and states pass */
    memob_states* states; /* own_states; NULL: none are streamed */
    memob_states own_states;
    memob_sink sink;            /* without states */
    memob_step *step, own_step; /* of the states; without: own_step */
    double update_s;            /* of the update after the micro-batches */
    double *stalls_s, before_s; /* before each row visit of the micro-batch; before the latest */

    /* A walk ends where its step takes longer than enough_s, whatever comes behind: less is left
     * for waits, updates and slower computation. */
    double enough_s, recompute_s; /* of a step; infinite: none ends */
    double begin_s, computed_s, left_s;
    int is_long; /* it has ended so */
} memoi_rows_clock;

/* The trainer's part: an update takes its time. */
MEMOI memo_status memoi_rows_update(void* clock, int32_t layer) {
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    memob_clock_compute(&c->now, c->desc->profile->update_s_per_byte *
                                     memob_states_update_bytes(c->states, layer));
    return MEMO_STATUS_OK;
}

/* --- the law of the rows --- */

MEMOI void memoi_rows_free_law(memoi_rows_clock* c) {
    memob_swap_items_free(&c->items);
    for (int32_t k = 0; k < c->n_laws && c->laws; k++) {
        memob_law_free(&c->laws[k].law);
        MEMO_FREE(c->laws[k].uses_of);
    }
    memob_arrays_free(&c->work);
    MEMO_FREE(c->rows.of.clock_cells);
}

MEMOI int memoi_rows_has_law(const memoi_rows_law* known, const memob_swap_items* it) {
    return known->n_items == it->n_items && known->input == it->input &&
           !memcmp(known->uses_of, it->uses_of, (size_t)it->n_items);
}

/* Makes the law of the items in its place. */
MEMOI memo_status memoi_rows_make_law(memoi_rows_clock* c, memoi_rows_law* made,
                                      memo_error* error) {
    memob_sink_law* of = &c->rows.of;
    memo_status status;
    made->n_items = 0; /* if it fails, none */
    if (!memob_reserve(&made->uses_of, &made->n_most, c->items.n_items, 1))
        return memob_no_memory(error, "the times of a step");
    status = memob_swap_items_law(&c->items, &c->order, &c->work, &made->law, error);
    if (status) return status;
    of->law = &made->law;
    if (!memob_reserve(&of->clock_cells, &c->n_cells_most, of->law->n_cells,
                       sizeof *of->clock_cells))
        return memob_no_memory(error, "the times of a step");

    /* Known from now on: all that its step needs is there. */
    made->n_items = c->items.n_items;
    made->input = c->items.input;
    memcpy(made->uses_of, c->items.uses_of, (size_t)c->items.n_items);
    return MEMO_STATUS_OK;
}

/* Finds the law of the table whose sums were added up. */
MEMOI memo_status memoi_rows_find_law(memoi_rows_clock* c, memo_error* error) {
    const memo_status status = memob_swap_items_make(c->desc->swap, &c->order, &c->items, error);
    memoi_rows_law* known;
    if (status) return status;
    known = &c->laws[memob_digest(c->items.uses_of, c->items.n_items) & (uint64_t)(c->n_laws - 1)];
    c->rows.moves = memob_swap_moves(&c->items);
    c->rows.of.law = &known->law;
    return memoi_rows_has_law(known, &c->items) ? status : memoi_rows_make_law(c, known, error);
}

MEMOI void memoi_rows_between(memoi_rows_clock* c) {
    memob_clock_compute(&c->now, c->desc->profile->between_s);
    c->computed_s += c->desc->profile->between_s;
}

/* What the trainer computes in a visit. */
MEMOI memo_status memoi_rows_compute(void* clock, const memob_visit* visit, int is_begun) {
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    const int is_backward = visit->pass == MEMOB_BACKWARD;
    if (memob_swap_computes_between(&c->order, visit, c->states != NULL, is_begun))
        memoi_rows_between(c);
    if (is_begun && visit->row >= 0) {
        const int32_t layer = c->order.visits[visit->row].layer;
        const double span_s = (is_backward ? c->order.sums[layer].recompute_s : 0) +
                              c->layers[layer].compute_s[is_backward];
        c->stalls_s[visit->row] = c->now.stall_s - c->before_s;
        c->before_s = c->now.stall_s;
        memob_clock_compute(&c->now, span_s);
        c->computed_s += span_s;
    }
    c->is_long = c->now.time_s[0] - c->begin_s - c->computed_s > c->left_s;
    return c->is_long ? MEMO_STATUS_INFEASIBLE : MEMO_STATUS_OK;
}

/* The most micro-batches of a step that are walked. */
#define MEMOI_ROWS_WALKED 16

/* What a micro-batch took, and how late its copies began, summed. */
typedef struct memoi_rows_pace {
    double compute_s, stall_s, late_s, copied_bytes[2];
} memoi_rows_pace;

MEMOI int memoi_rows_are_near(double a, double b) {
    return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b));
}

/* Walks a micro-batch.  Returns 1 if it took as long as the one before, with copies as late. */
MEMOI int memoi_rows_walk_batch(memoi_rows_clock* c, int is_last, memoi_rows_pace* pace) {
    const memoi_rows_pace before = *pace;
    const double begin_s = c->now.time_s[0], stalled_s = c->now.stall_s;
    const double copied[2] = {c->now.copied_bytes[0], c->now.copied_bytes[1]};
    c->now.late_s = 0;
    c->before_s = stalled_s;
    (void)memob_states_walk(c->states, c->step, &c->rows, is_last, memoi_rows_compute, c, NULL);
    pace->compute_s = c->now.time_s[0] - begin_s;
    pace->stall_s = c->now.stall_s - stalled_s;
    pace->late_s = c->now.late_s;
    for (int way = 0; way < 2; way++)
        pace->copied_bytes[way] = c->now.copied_bytes[way] - copied[way];
    return memoi_rows_are_near(pace->compute_s, before.compute_s) &&
           memoi_rows_are_near(pace->late_s, before.late_s);
}

MEMOI int32_t memob_rows_n_batches(const memo_swap_plan_desc* desc) {
    return desc->micro_batches > 0 ? desc->micro_batches : 1;
}

/* From now on a walk of n micro-batches ends where it takes longer than enough_s. */
MEMOI void memoi_rows_set_left(memoi_rows_clock* c, double enough_s, int32_t n) {
    const double span_s = (c->least_s / memob_rows_n_batches(c->desc) + c->recompute_s) * n;
    c->left_s = (1 + 1e-9) * enough_s - span_s + 1e-9 * span_s;
}

/* Micro-batches and the update of a step.  Sets stall_s and update_s.  Of those in the middle,
 * which do the same, walks as many as it takes until they are steady; the others take as long as
 * the steady one.  Infinite: the walk has ended early. */
MEMOI double memoi_rows_batches(memoi_rows_clock* c, int32_t n) {
    const double begin_s = c->now.time_s[0];
    memoi_rows_pace pace;
    double more_s = 0, end_s;
    memset(&pace, 0, sizeof pace);
    c->now.stall_s = c->now.copied_bytes[0] = c->now.copied_bytes[1] = 0;
    c->begin_s = begin_s;
    c->computed_s = 0;
    for (int32_t k = 0; k < n - 1 && !c->is_long; k++) {
        const int is_steady = memoi_rows_walk_batch(c, 0, &pace);
        const int32_t n_alike = n - 3 - k; /* rounds 2 to n - 3 are */
        if (n_alike <= 0 || k < 3 || (!is_steady && k < MEMOI_ROWS_WALKED)) continue;
        c->now.stall_s += n_alike * pace.stall_s;
        more_s += n_alike * pace.compute_s;
        for (int way = 0; way < 2; way++)
            c->now.copied_bytes[way] += n_alike * pace.copied_bytes[way];
        k += n_alike;
        c->states->round += n_alike;
    }
    if (!c->is_long) (void)memoi_rows_walk_batch(c, 1, &pace);
    if (c->is_long) return HUGE_VAL;

    /* Waits of the update are its own. */
    end_s = c->now.time_s[0];
    pace.stall_s = c->now.stall_s;
    if (c->states) (void)memob_states_end_step(c->states, NULL);
    c->update_s = c->now.time_s[0] - end_s;
    c->now.stall_s = pace.stall_s;
    return c->now.time_s[0] - begin_s + more_s;
}

/* The computation of a step, but for recomputed rows and the update: on a clock where nothing
 * else happens. */
MEMOI double memoi_rows_least(memoi_rows_clock* c) {
    const memob_swap_placement* order = &c->order;
    memset(&c->now, 0, sizeof c->now);
    for (int32_t k = 0; k < order->n_visits; k++) {
        const memob_row_visit* visit = &order->visits[k];
        if (memob_swap_is_between(order, k) || memob_swap_has_loss(order, k)) memoi_rows_between(c);
        memob_clock_add(&c->now, MEMOB_STREAM_COMPUTE,
                        c->layers[visit->layer].compute_s[visit->pass]);
    }
    return c->now.time_s[0] * memob_rows_n_batches(c->desc);
}

/* A step of streamed states is behind others, until copies and updates on the host are as late at
 * its end as at its begin, but for a thousandth of it. */
#define MEMOI_ROWS_STEPS   16
#define MEMOI_ROWS_AS_LATE 1e-3

/* How long each stream is still busy when computation ends. */
MEMOI void memoi_rows_left(const memob_clock* now, double left_s[MEMOB_N_STREAMS]) {
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++)
        left_s[s] = fmax(0, now->time_s[s] - now->time_s[MEMOB_STREAM_COMPUTE]);
}

/* Steps with streamed states, until one is like the next.  Deferred updates begin with the second.
 * If that takes too long, those behind it do, too: of 214,369 tables 95 had a second step that was
 * longer, by at most .7 %.  The first, before which no state is in its place, says nothing. */
MEMOI double memoi_rows_steady(memoi_rows_clock* c, int32_t n) {
    const int is_deferred = c->states->update_at == MEMO_UPDATE_DEFERRED;
    const int32_t least = is_deferred ? 2 : c->states->sizes.host_bytes > 0;
    double before_s[MEMOB_N_STREAMS], left_s[MEMOB_N_STREAMS], step_s = 0;
    int is_steady = 0;
    memob_states_reset(c->states);
    memoi_rows_left(&c->now, left_s);
    for (int32_t k = 0; k < MEMOI_ROWS_STEPS && !is_steady; k++) {
        memcpy(before_s, left_s, sizeof before_s);
        memoi_rows_set_left(c, k || !least ? c->enough_s : HUGE_VAL, n);
        step_s = memoi_rows_batches(c, n);
        if (c->is_long) break;
        memoi_rows_left(&c->now, left_s);
        is_steady = k >= least;
        for (int32_t s = 0; s < MEMOB_N_STREAMS; s++)
            is_steady &= fabs(left_s[s] - before_s[s]) <= MEMOI_ROWS_AS_LATE * step_s;
    }
    return step_s;
}

/* Seconds of a step: n micro-batches and the update, as everything that plans and predicts counts
 * them; infinite if it takes longer than enough_s.  Without states every micro-batch takes the same
 * time. */
MEMOI double memoi_rows_step(memoi_rows_clock* c) {
    const memob_sink_law* of = &c->rows.of;
    const int32_t n = memob_rows_n_batches(c->desc);
    double batch_s;

    /* Nothing is under way. */
    MEMO_ASSERT(of->law->n_cells <= c->n_cells_most); /* 2 */
    memset(&c->now, 0, sizeof c->now);
    c->now.rates = &c->rates;
    c->now.computes_on_host = c->desc->swap->computes_on_host;
    memob_sink_forget(of);

    if (!c->states) {
        memoi_rows_set_left(c, c->enough_s / n, 1);
        batch_s = memoi_rows_batches(c, 1);
        if (c->is_long) {
            memob_step_abandon(c->step);
            memob_step_reset(c->step);
        }
        c->now.stall_s *= n;
        for (int way = 0; way < 2; way++) c->now.copied_bytes[way] *= n;
        return n * batch_s;
    }
    return memoi_rows_steady(c, n);
}
