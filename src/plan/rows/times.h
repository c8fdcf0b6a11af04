#pragma once
#include "memo/swap_items.h"
#include "memo/walk.h"
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

/* What copies, uses of the file, and updates on the host cost. */
typedef struct memob_rows_rates {
    double copy_s;            /* of each copy, in addition to the bytes */
    double bytes_per_s[2][2]; /* of copies, of the file: out, back; 0: they take no time */
    double update_host_s_per_byte;
} memob_rows_rates;

/* Bytes by a time, or by a rate; 0: there is none. */
MEMOI double memoi_rows_over(double n_bytes, double by) { return by > 0 ? n_bytes / by : 0; }
MEMOI double memoi_rows_rate(double n_bytes, double time_s) {
    return fmin(memoi_rows_over(n_bytes, time_s), MEMOB_TIME_MAX);
}

/* Two copies give a line: its slope is the rate, and its value at 0 bytes is copy_s. */
MEMOI memob_rows_rates memob_rows_find_rates(const memo_profile* profile) {
    const memo_profile_transfer *small = &profile->copies[0], *large = &profile->copies[1];
    const memo_profile_transfer* file = &profile->file;
    const double small_bytes = (double)small->size_bytes;
    double bytes = (double)large->size_bytes - small_bytes;
    double out_s = large->out_s - small->out_s, back_s = large->back_s - small->back_s;
    memob_rows_rates rates;
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

/* To recompute all rows of a slice; late rows: as many as if all steps had the same.  The tensor
 * that a tensor is recomputed with has the time of both. */
MEMOI double memob_rows_recompute_s(const memo_swap_plan_desc* desc, int32_t step, int32_t t) {
    const memo_swap_desc* swap = desc->swap;
    const memo_profile_tensor* tensor = memoi_profile_find(desc->profile, swap->tensors, t);
    const int32_t kind = memob_layer_kind(swap, step);
    if (!tensor || swap->tensors[t].away == MEMO_WITH) return 0;
    if (memob_tensor_is_routed(swap, t))
        return tensor->recompute_s_per_row[kind] * (double)memob_swap_routed_rows(swap, t);
    return memoi_rows_slice_s(swap, step, tensor->recompute_s_per_row[kind] * (double)swap->n_rows,
                              tensor->recompute_growth_s_per_row[kind] * (double)swap->n_rows);
}

/* Seconds of a step's computation, forward and backward, without recomputed rows. */
typedef struct memoi_rows_layer {
    double compute_s[2];
} memoi_rows_layer;

/* A law, and what it depends on: tables that differ in bytes and in times alone have the same. */
#define MEMOI_ROWS_LAWS 4
typedef struct memoi_rows_law {
    memob_law law;
    int32_t n_items, input; /* of its items; n_items 0: there is no law */
    char* uses_of;
    int64_t n_most;
} memoi_rows_law;

/* A step while its times are found. */
typedef struct memoi_rows_clock {
    const memo_swap_plan_desc* desc;
    memob_rows_rates rates;
    memob_swap_placement order; /* of each table: sums, turns, sizes; no places */
    memoi_rows_layer* layers;
    double least_s;                       /* computation of a step, without what rows recompute */
    memob_swap_items items;               /* of the table, */
    const memob_law* law;                 /* and their law, which is one of */
    memoi_rows_law laws[MEMOI_ROWS_LAWS]; /* the latest */
    int64_t n_laws;
    memob_arrays work;       /* for a law */
    memob_clock now;         /* on which rows and states pass */
    memob_clock_cell* cells; /* (law.n_cells) */
    int64_t n_cells_most;
    double in_flight_s[2]; /* to the host, to the device: enqueued since a step computed last */

    memob_states* states; /* own_states, on the clock; NULL: none are streamed */
    memob_states own_states;
    memob_step* step;       /* of the states */
    double update_s;        /* of the update after the micro-batches */
    double copied_bytes[2]; /* of a step: to the host, to the device */
} memoi_rows_clock;

/* Enqueues copies on a stream, to the device or from it; or a use of the file, read or write.  Each
 * has a start, which does not use the link, and they share bytes. */
MEMOI void memoi_rows_add_copies(memoi_rows_clock* c, int32_t which, int is_back, int is_file,
                                 int32_t n_copies, int64_t n_bytes) {
    const double rate = c->rates.bytes_per_s[is_file != 0][is_back != 0];
    const double bytes_s = memoi_rows_over((double)n_bytes, rate);
    if (!is_file) c->copied_bytes[is_back != 0] += (double)n_bytes;
    if (!n_copies) return;
    if (!is_file) c->in_flight_s[is_back != 0] += bytes_s;
    memob_clock_add(&c->now, which, (is_file ? 0 : n_copies * c->rates.copy_s) + bytes_s);
}

/* A step computes.  Copies that were enqueued since the last one computed make it slower. */
MEMOI void memoi_rows_compute(memoi_rows_clock* c, double time_s) {
    const double* rates = c->rates.bytes_per_s[0];
    double slower_s = 0;
    for (int32_t way = 0; way < 2; way++) {
        slower_s += c->desc->profile->slowdown_s_per_byte[way] *
                    memoi_rows_sooner(c->in_flight_s[way] * rates[way], time_s * rates[way]);
        c->in_flight_s[way] = 0;
    }
    memob_clock_add(&c->now, MEMOB_STREAM_COMPUTE, time_s + slower_s);
}

/* The engine of states runs on the clock.  It calls these functions of its device. */
MEMOI memo_status memoi_rows_state_copy(void* clock, memo_stream stream, memo_copy_kind kind,
                                        void* to, const void* from, int64_t size_bytes,
                                        memo_error* error) {
    (void)to, (void)from, (void)error;
    memoi_rows_add_copies((memoi_rows_clock*)clock, (int32_t)(intptr_t)stream,
                          kind != MEMO_COPY_TO_HOST, 0, 1, size_bytes);
    return MEMO_STATUS_OK;
}
MEMOI memo_status memoi_rows_state_file(void* clock, memo_stream stream, memo_host_call* call,
                                        memo_error* error) {
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    const int32_t which = (int32_t)(intptr_t)stream;
    (void)error;
    if (call->function == memob_states_run_update) {
        const memob_states_update* update = (const memob_states_update*)call->argument;
        memob_clock_add(&c->now, which,
                        c->rates.update_host_s_per_byte *
                            memob_states_update_bytes(c->states, update->layer));
    } else {
        const memob_spill_op* op = (const memob_spill_op*)call->argument;
        memoi_rows_add_copies(c, which, !op->is_write, 1, 1, op->n_bytes);
    }
    return MEMO_STATUS_OK;
}
MEMOI memo_status memoi_rows_state_fill(void* clock, memo_stream stream, void* address,
                                        int32_t byte_value, int64_t size_bytes, memo_error* error) {
    (void)clock, (void)stream, (void)address, (void)byte_value, (void)size_bytes, (void)error;
    return MEMO_STATUS_OK;
}

/* The trainer's part: an update takes its time. */
MEMOI memo_status memoi_rows_update(void* clock, int32_t layer) {
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    memob_clock_add(&c->now, MEMOB_STREAM_COMPUTE,
                    c->desc->profile->update_s_per_byte *
                        memob_states_update_bytes(c->states, layer));
    return MEMO_STATUS_OK;
}

/* --- the law of the rows --- */

MEMOI void memoi_rows_free_law(memoi_rows_clock* c) {
    memob_swap_items_free(&c->items);
    for (int32_t k = 0; k < MEMOI_ROWS_LAWS; k++) {
        memob_law_free(&c->laws[k].law);
        MEMO_FREE(c->laws[k].uses_of);
    }
    memob_arrays_free(&c->work);
    MEMO_FREE(c->cells);
}

MEMOI int memoi_rows_has_law(const memoi_rows_law* known, const memob_swap_items* it) {
    return known->n_items == it->n_items && known->input == it->input &&
           !memcmp(known->uses_of, it->uses_of, (size_t)it->n_items);
}

/* Makes the law of the items in place of the oldest known. */
MEMOI memo_status memoi_rows_make_law(memoi_rows_clock* c, memo_error* error) {
    memoi_rows_law* made = &c->laws[c->n_laws++ % MEMOI_ROWS_LAWS];
    memo_status status;
    made->n_items = 0; /* if it fails, none */
    if (!memob_reserve(&made->uses_of, &made->n_most, c->items.n_items, 1))
        return memob_no_memory(error, "the times of a step");
    status = memob_swap_items_law(&c->items, &c->order, &c->work, &made->law, error);
    if (status) return status;
    c->law = &made->law;
    if (!memob_reserve(&c->cells, &c->n_cells_most, c->law->n_cells, sizeof *c->cells))
        return memob_no_memory(error, "the times of a step");

    /* Known from now on: all that its step needs is there. */
    made->n_items = c->items.n_items;
    made->input = c->items.input;
    memcpy(made->uses_of, c->items.uses_of, (size_t)c->items.n_items);
    return MEMO_STATUS_OK;
}

/* Finds the law of the table whose sums were added up. */
MEMOI memo_status memoi_rows_find_law(memoi_rows_clock* c, memo_error* error) {
    memo_status status = memob_swap_items_make(c->desc->swap, &c->order, &c->items, error);
    c->law = NULL;
    for (int32_t k = 0; k < MEMOI_ROWS_LAWS && !status && !c->law; k++)
        if (memoi_rows_has_law(&c->laws[k], &c->items)) c->law = &c->laws[k].law;
    return status || c->law ? status : memoi_rows_make_law(c, error);
}

/* An operation behind a visit.  One without bytes is left out, as the engine does. */
MEMOI void memoi_rows_enqueue(memoi_rows_clock* c, const memob_op* op) {
    const memob_part* parts = &c->law->parts[op->first_part];
    const int is_file = op->stream == MEMOB_STREAM_FILE;
    const int is_back = op->kind == MEMOB_OP_LOAD || op->kind == MEMOB_OP_READ;
    int32_t n_copies = 0;
    int64_t n_bytes = 0;
    for (int32_t i = 0; i < op->n_parts; i++) {
        n_bytes += (is_file ? c->items.file_bytes : c->items.n_bytes)[parts[i].item];
        n_copies += c->items.n_copies[parts[i].item];
    }
    if (!n_bytes) return;
    memob_clock_begin(&c->now, c->cells, c->law, op);
    memoi_rows_add_copies(c, op->stream, is_back, is_file, n_copies, n_bytes);
    memob_clock_end(&c->now, c->cells, c->law, op);
}

MEMOI void memoi_rows_turn(void* clock, int32_t k, int is_end) {
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    const memob_op *op = &c->law->ops[c->law->visit_ops[k]], *end = c->law->ops + c->law->n_ops;
    MEMO_ASSERT(op->kind == MEMOB_OP_VISIT); /* 1 */
    if (!is_end) {
        memob_clock_begin(&c->now, c->cells, c->law, op);
        return;
    }
    memob_clock_end(&c->now, c->cells, c->law, op);
    for (op++; op < end && op->kind != MEMOB_OP_VISIT; op++) memoi_rows_enqueue(c, op);
}

MEMOI void memoi_rows_compute_visit(void* clock, int32_t k) {
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    const memob_row_visit* visit = &c->order.visits[k];
    const memoi_rows_layer* layer = &c->layers[visit->layer];
    const int is_backward = visit->pass == MEMOB_BACKWARD;
    memoi_rows_compute(c, (is_backward ? c->order.sums[visit->layer].recompute_s : 0) +
                              layer->compute_s[is_backward]);
}

MEMOI void memoi_rows_between(void* clock) {
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    memob_clock_add(&c->now, MEMOB_STREAM_COMPUTE, c->desc->profile->between_s);
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
MEMOI int memoi_rows_walk_batch(memoi_rows_clock* c, const memob_walk* walk, int is_last,
                                memoi_rows_pace* pace) {
    const memoi_rows_pace before = *pace;
    const double begin_s = c->now.time_s[0], stalled_s = c->now.stall_s;
    const double copied[2] = {c->copied_bytes[0], c->copied_bytes[1]};
    c->now.late_s = 0;
    (void)memob_walk_batch(walk, is_last, NULL);
    pace->compute_s = c->now.time_s[0] - begin_s;
    pace->stall_s = c->now.stall_s - stalled_s;
    pace->late_s = c->now.late_s;
    for (int way = 0; way < 2; way++) pace->copied_bytes[way] = c->copied_bytes[way] - copied[way];
    return memoi_rows_are_near(pace->compute_s, before.compute_s) &&
           memoi_rows_are_near(pace->late_s, before.late_s);
}

/* Micro-batches and the update of a step.  Sets stall_s and update_s.  Of those in the middle,
 * which do the same, walks as many as it takes until they are steady; the others take as long as
 * the steady one. */
MEMOI double memoi_rows_batches(memoi_rows_clock* c, const memob_walk* walk, int32_t n) {
    const double begin_s = c->now.time_s[0];
    memoi_rows_pace pace;
    double more_s = 0, end_s;
    memset(&pace, 0, sizeof pace);
    c->now.stall_s = c->copied_bytes[0] = c->copied_bytes[1] = 0;
    for (int32_t k = 0; k < n - 1; k++) {
        const int is_steady = memoi_rows_walk_batch(c, walk, 0, &pace);
        const int32_t n_alike = n - 3 - k; /* rounds 2 to n - 3 are */
        if (n_alike <= 0 || k < 3 || (!is_steady && k < MEMOI_ROWS_WALKED)) continue;
        c->now.stall_s += n_alike * pace.stall_s;
        more_s += n_alike * pace.compute_s;
        for (int way = 0; way < 2; way++) c->copied_bytes[way] += n_alike * pace.copied_bytes[way];
        k += n_alike;
        c->states->round += n_alike;
    }
    (void)memoi_rows_walk_batch(c, walk, 1, &pace);

    /* Waits of the update are its own. */
    end_s = c->now.time_s[0];
    pace.stall_s = c->now.stall_s;
    (void)memob_walk_update(walk, NULL);
    c->update_s = c->now.time_s[0] - end_s;
    c->now.stall_s = pace.stall_s;
    return c->now.time_s[0] - begin_s + more_s;
}

MEMOI int32_t memob_rows_n_batches(const memo_swap_plan_desc* desc) {
    return desc->micro_batches > 0 ? desc->micro_batches : 1;
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

/* Steps with streamed states, until one is like the next.  Deferred updates begin with the
 * second. */
MEMOI double memoi_rows_steady(memoi_rows_clock* c, const memob_walk* walk, int32_t n) {
    const int is_deferred = c->states->update_at == MEMO_UPDATE_DEFERRED;
    const int32_t least = is_deferred ? 2 : c->states->sizes.host_bytes > 0;
    double before_s[MEMOB_N_STREAMS], left_s[MEMOB_N_STREAMS], step_s = 0;
    int is_steady = 0;
    memob_states_reset(c->states);
    memoi_rows_left(&c->now, left_s);
    for (int32_t k = 0; k < MEMOI_ROWS_STEPS && !is_steady; k++) {
        memcpy(before_s, left_s, sizeof before_s);
        step_s = memoi_rows_batches(c, walk, n);
        memoi_rows_left(&c->now, left_s);
        is_steady = k >= least;
        for (int32_t s = 0; s < MEMOB_N_STREAMS; s++)
            is_steady &= fabs(left_s[s] - before_s[s]) <= MEMOI_ROWS_AS_LATE * step_s;
    }
    return step_s;
}

/* Seconds of a step: n micro-batches and the update, as everything that plans and predicts counts
 * them.  Without states every micro-batch takes the same time. */
MEMOI double memoi_rows_step(memoi_rows_clock* c) {
    const memob_walk walk = {
        &c->order,          c->states, c->step, memoi_rows_turn, memoi_rows_compute_visit,
        memoi_rows_between, c};
    const int32_t n = memob_rows_n_batches(c->desc);
    double batch_s;

    /* Nothing is under way. */
    MEMO_ASSERT(c->law->n_cells <= c->n_cells_most); /* 2 */
    c->in_flight_s[0] = c->in_flight_s[1] = 0;
    memset(&c->now, 0, sizeof c->now);
    c->now.computes_on_host = c->desc->swap->computes_on_host;
    memset(c->cells, 0, (size_t)c->law->n_cells * sizeof *c->cells);

    if (!c->states) {
        batch_s = memoi_rows_batches(c, &walk, 1);
        c->now.stall_s *= n;
        for (int way = 0; way < 2; way++) c->copied_bytes[way] *= n;
        return n * batch_s;
    }
    return memoi_rows_steady(c, &walk, n);
}
