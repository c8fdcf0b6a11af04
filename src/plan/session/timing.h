#pragma once
#include "memo/bulk.h"
#include "plan/session/times.h"
/* --- >>session timing ---
 * Knows: how a session is created and opened, the spans of its first training steps, and plans that
 * take turns.  Knows nothing of how a plan is made.
 *
 * 1  Every plan has the same bits, so steps are timed that train; no function of the trainer runs
 *    only to be timed.
 * 2  All plans have one block of device memory, in which buffers of the session lie first, at the
 *    same places.
 * 3  A plan is replaced between two steps, when no update is pending; states keep their bytes.
 * 4  Ranks plan at the same step, by the same times, or not at all.
 * 5  What fails leaves the first plan as it was.
 * 6  Times are read when no update is under way, which may write them on another thread. */

/* The file of a shape's profile. */
MEMOI void memoi_timing_path(const memo_session_desc* desc, int32_t shape, char path[4096]) {
    char number[16] = "";
    if (shape) snprintf(number, sizeof number, ".%d", (int)shape);
    snprintf(path, 4096, "%.4000s%s", desc->profile_path, number);
}

/* 1: a shape has a backward, whose times are wanted. */
MEMOI int memoi_timing_is_trained(const memo_session_desc* desc, int32_t shape) {
    return !desc->n_shapes || !desc->shapes[shape].is_forward_only;
}

/* Reads the profiles of a desc, if all files are there, on all ranks; *profiles NULL: they are
 * not.  The caller frees them. */
MEMOI memo_status memoi_timing_read_files(const memo_session_desc* desc, memo_profile** profiles,
                                          memo_error* error) {
    const int32_t n = (int32_t)memob_min(memob_max(desc->n_shapes, 1), MEMO_SHAPES_MAX);
    const int can = desc->n_shapes <= 0 || desc->shapes;
    int64_t values[2] = {0, !can};
    memo_profile* read;
    memo_status status = MEMO_STATUS_OK;
    char path[4096];
    *profiles = NULL;
    if (!desc->profile_path) return status;
    read = (memo_profile*)memob_calloc(MEMO_SHAPES_MAX, sizeof *read);
    if (!read) status = memob_no_memory(error, "a profile");
    for (int32_t k = 0; k < n && can; k++) {
        FILE* file;
        if (!memoi_timing_is_trained(desc, k)) continue;
        memoi_timing_path(desc, k, path);
        file = fopen(path, "rb");
        values[1] |= !file;
        if (file) fclose(file);
    }
    status = memoi_session_agree(desc, status, values, 2, error);

    /* All are there. */
    if (!status && !values[1]) {
        *profiles = read;
        for (int32_t k = 0; k < n && !status; k++) {
            memoi_timing_path(desc, k, path);
            if (memoi_timing_is_trained(desc, k)) status = memo_profile_read(path, &read[k], error);
        }
        status = memob_session_verdict(desc, status, error);
    } else
        MEMO_FREE(read);
    return status;
}

/* Memory for the spans of all shapes, and the times of copies. */
MEMOI void memoi_timing_prepare(memo_session* s) {
    const int32_t n = s->desc.n_shapes;
    int64_t n_spans = 4; /* of a step: its passes, its update, a part more */
    for (int32_t t = 0; t < s->desc.n_tensors; t++)
        n_spans += memob_is_recomputed(memob_item_away(&s->parts[0].plan->swap, t));
    n_spans = memob_min(s->most_steps * n_spans + 8, MEMOI_TIMERS_MAX);
    s->timing.profiles = (memo_profile*)memob_calloc(n, sizeof(memo_profile));
    s->layers_s = MEMOB_ARRAY(&s->arrays, double, s->most_steps);
    s->timers = MEMOB_ARRAY(&s->arrays, memoi_timer, n_spans);
    if (s->timers && !s->desc.computes_on_host) s->n_timers = (int32_t)n_spans;
    for (int32_t k = 0; k < n; k++)
        s->parts[k].spans_s =
            (double*)memob_arrays_add(&s->arrays, s->parts[k].plan->swap.n_layers,
                                      MEMOI_SPANS_MAX * MEMOI_SESSION_REPETITIONS * sizeof(double));
    if (s->arrays.failed || !s->timing.profiles)
        memoi_keep(s, memob_no_memory(&s->call_error, "the times of a session"));
    memoi_session_settle(s);
    if (!s->failure.status) memoi_session_measure_copies(s, s->timing.profiles);
}

/* What is beside the plan that is open. */
MEMOI void memoi_timing_prepare_slowing(memo_session* s) {
    int64_t device_bytes = 0, host_bytes = 0;
    for (int32_t k = 0; k < s->desc.n_shapes; k++) {
        const memo_step_plan* plan = s->parts[k].plan;
        device_bytes = memob_max(device_bytes, plan->addresses->peak_bytes);
        host_bytes = memob_max(host_bytes, plan->sizes.host_bytes);
    }
    memoi_slowing_create(s, device_bytes, host_bytes);
}

/* --- times --- */

/* Each place of an order is visited by several turns, whose spans have been added. */
MEMOI void memoi_timing_divide(const memo_session* s) {
    const memo_step_plan* plan = s->part->plan;
    for (int32_t step = 0; step < s->n_steps && s->steps->order; step++) {
        int32_t n_visits = 0, n_last = 0;
        for (int32_t k = 0; k < plan->n_order; k++) {
            n_visits += s->steps->order[k] == step / s->n_turn_steps; /* its forwards */
            n_last += s->steps->order[k] < 0 && plan->order[k].chunk == plan->n_chunks - 1;
        }
        for (int32_t what = 0; what < MEMOI_SPANS_MAX; what++) {
            double* span_s = memoi_session_span(s, step, what);
            for (int32_t i = 0; i < MEMOI_SESSION_REPETITIONS && span_s; i++)
                span_s[i] /= (double)memob_max(what == MEMOI_SPAN_BETWEEN ? n_last : n_visits, 1);
        }
    }
}

/* Seconds of a byte that the update uses; the median of the micro-batches that had one.  A step may
 * leave layers out. */
MEMOI double memoi_timing_update(const memo_session* s, int32_t n) {
    double rates[MEMOI_SESSION_REPETITIONS];
    int32_t n_rates = 0;
    if (!s->states) return 0;
    for (int32_t i = 0; i < n; i++) {
        double sum_s = 0, n_bytes = 0;
        for (int32_t k = 0; k < s->states_desc.n_layers; k++) {
            int32_t step;
            const int32_t what = memoi_session_update_span(s, k, &step);
            const double span_s = memoi_session_span(s, step, what)[i];
            sum_s += span_s;
            if (span_s > 0) n_bytes += memob_states_update_bytes(s->states, k);
        }
        if (n_bytes > 0) rates[n_rates++] = sum_s / n_bytes;
    }
    return n_rates ? memoi_profile_median(rates, n_rates) : 0;
}

/* The profile of a shape, from its spans. */
MEMOI void memoi_timing_read_shape(memo_session* s, int32_t k, memo_profile* profile) {
    memoi_session_use_shape(s, k);
    s->batch.n_rows = s->steps->layer_rows;
    s->spans_s = s->part->spans_s;
    memoi_session_guess(s, profile);
    profile->update_s_per_byte = memoi_timing_update(s, s->part->n_timed);
    if (s->timing.host_bytes > 0)
        profile->update_host_s_per_byte = s->timing.host_s / s->timing.host_bytes;
    memoi_slowing_read(s, s->part->n_timed, profile);
    memoi_timing_divide(s);
    memoi_session_take_medians(s, s->part->n_timed);
    if (s->part->swap) memoi_session_leave_out(s);
    memoi_session_read_times(s, profile);
    memoi_session_read_calls(s, profile);
    s->spans_s = NULL;
}

/* The profile of a shape that has not trained: another one's times, by rows. */
MEMOI void memoi_timing_derive(const memo_session* s, int32_t k, int32_t from,
                               memo_profile* profiles) {
    const memo_swap_desc *swap = &s->parts[k].plan->swap, *other = &s->parts[from].plan->swap;
    const double ratio = (double)swap->n_rows / (double)other->n_rows;
    memo_profile* profile = &profiles[k];
    double* const times_s[] = {profile->forward_s, profile->backward_s, profile->forward_growth_s,
                               profile->backward_growth_s};
    *profile = profiles[from];
    profile->n_rows = swap->n_rows;
    for (int i = 0; i < 4; i++)
        for (int32_t kind = 0; kind < profile->n_kinds; kind++) times_s[i][kind] *= ratio;
    profile->between_s *= (double)swap->layer_rows / (double)other->layer_rows;
}

/* The profiles of all shapes with a backward, the same on all ranks.  untimed: by shape. */
MEMOI void memoi_timing_read(memo_session* s, const int64_t* untimed) {
    memo_profile* profiles = s->timing.profiles;
    const int32_t n = s->desc.n_shapes;
    int32_t from = 0;
    if (s->states) /* updates on the host write the times that are read */
        memoi_keep(s, memob_states_synchronize(s->states, &s->call_error));
    MEMO_ASSERT(s->failure.status || !s->states || !s->states->n_unseen); /* 6 */
    while (untimed[from]) from++;
    for (int32_t k = 1; k < n; k++) profiles[k] = profiles[0]; /* the times of copies */
    for (int32_t k = from; k < from + n; k++)
        if (!untimed[k % n]) {
            memoi_timing_read_shape(s, k % n, &profiles[k % n]);
            memoi_session_settle_profile(s, &profiles[k % n]);
        } else if (!s->parts[k % n].plan->shape.is_forward_only)
            memoi_timing_derive(s, k % n, from, profiles);
    s->timing.is_known = !s->failure.status;
}

/* A file that cannot be written is no reason to stop. */
MEMOI void memoi_timing_write(const memo_session* s, const int64_t* untimed) {
    char path[4096];
    memo_error why;
    for (int32_t k = 0; k < s->desc.n_shapes && s->desc.profile_path; k++) {
        if (s->parts[k].plan->shape.is_forward_only) continue;
        memoi_timing_path(&s->desc, k, path);
        if (memo_profile_write(&s->timing.profiles[k], path, &why))
            memob_session_log(s, "session: the profile is not written: %s", why.message);
        else
            memob_session_log(s, "session: %s times are in %.200s",
                              untimed[k] ? "estimated" : "measured", path);
    }
}

/* --- plans take turns --- */

/* 1: two plans stream, spill and update the same. */
MEMOI int memoi_timing_streams_alike(const memo_step_plan* a, const memo_step_plan* b) {
    return a->n_streamed == b->n_streamed && a->n_spilled == b->n_spilled &&
           a->update_is_on_host == b->update_is_on_host && a->update_at == b->update_at;
}

/* 1: the plan is the one that is open, but perhaps for its policy. */
MEMOI int memoi_timing_is_open(const memo_session* s, const memo_step_plan* plan) {
    memoi_step_plan_line own, found;
    for (int32_t k = 0; k < s->desc.n_shapes; k++, plan = plan->next) {
        const memo_plan *a = s->parts[k].plan->addresses, *b = plan->addresses;
        for (int64_t i = 0; memoi_step_plan_get_line(s->parts[k].plan, i, &own); i++) {
            (void)memoi_step_plan_get_line(plan, i, &found);
            if (memcmp(own.values, found.values, sizeof own.values) != 0) return 0;
        }
        for (int64_t i = 0; i < a->n_buffers; i++)
            if (a->buffers[i].offset_bytes != b->buffers[i].offset_bytes) return 0;
    }
    return 1;
}

#define MEMOI_TIMING_PIECE ((int64_t)4 << 20)

/* What neither plan needs of the other: gradients, which have no meaning between steps, and FETCHED
 * states, which an engine fetches when it is created. */
MEMOI uint32_t memoi_timing_left_out(const memob_states* of) { return of->gradients | of->fetched; }

/* Bytes of states that lie on the device, for which host memory is needed while they move. */
MEMOI int64_t memoi_timing_kept_bytes(const memo_session* s) {
    const memob_states* of = s->states;
    int64_t n_bytes = 0;
    MEMOB_IGNORE(memob_states_keep(of, NULL, NULL, 0, memoi_timing_left_out(of), NULL, &n_bytes,
                                   NULL)); /* it only counts */
    return n_bytes;
}

/* A state that is in the file under one of two plans goes through a piece of memory. */
MEMOI void memoi_timing_pass(memo_session* s, memob_states* from, memob_states* to, int32_t layer,
                             int32_t state, const char* kept) {
    const int64_t size_bytes = s->desc.states[state].size_bytes;
    char* piece = kept ? NULL : (char*)MEMO_MALLOC((size_t)MEMOI_TIMING_PIECE);
    if (!kept && !piece) memoi_keep(s, memob_no_memory(&s->call_error, "a piece of a state"));
    for (int64_t at = 0; at < size_bytes && !s->failure.status; at += MEMOI_TIMING_PIECE) {
        const int64_t n = memob_min(size_bytes - at, MEMOI_TIMING_PIECE);
        char* bytes = kept ? (char*)memob_at(kept, at) : piece;
        if (!kept)
            memoi_keep(s,
                       memob_states_transfer(from, layer, state, 1, at, bytes, n, &s->call_error));
        if (!s->failure.status)
            memoi_keep(s, memob_states_transfer(to, layer, state, 0, at, bytes, n, &s->call_error));
    }
    MEMO_FREE(piece);
}

/* Takes states to the places that an engine has for them, from kept bytes of the device and from
 * their places on the host, all at once: copies to the device wait for nothing, and threads copy
 * from host to host.  to == from: what was kept goes back. */
MEMOI void memoi_timing_put(memo_session* s, memob_states* from, memob_states* to,
                            const char* kept) {
    memob_engine* e = &to->sink.engine;
    const memo_stream stream = e->streams[MEMOB_STREAM_TO_DEVICE];
    for (int32_t k = 0; k < from->n_layers * from->n_states && !s->failure.status; k++) {
        const int32_t layer = k / from->n_states, i = k % from->n_states;
        const memob_states_layer *of = &from->layers[layer], *l = &to->layers[layer];
        const int is_kept = !(of->streamed >> i & 1), is_resident = !(l->streamed >> i & 1);
        const int64_t n_bytes = from->bytes[k].n_bytes;
        const char* bytes = is_kept ? kept : (char*)memob_states_get_host_address(from, layer, i);
        char* on_host = (char*)memob_states_get_host_address(to, layer, i);
        if (!((of->has & ~(of->lent | memoi_timing_left_out(from))) >> i & 1)) continue;
        if (is_kept) kept += n_bytes;
        if (!n_bytes || (from == to && !is_kept)) continue;
        if (bytes && is_resident)
            memoi_keep(s, memo_copy(s->device, stream, MEMO_COPY_TO_DEVICE,
                                    e->memory.device + to->bytes[k].at[0], bytes, n_bytes,
                                    &s->call_error));
        else if (bytes && on_host)
            memob_bulk_copy(on_host, bytes, n_bytes);
        else
            memoi_timing_pass(s, from, to, layer, i, is_kept ? bytes : NULL);
    }
    if (!s->failure.status)
        memoi_keep(s, memo_stream_synchronize(s->device, stream, &s->call_error));
}

/* Opens a plan in the session's memory. */
MEMOI void memoi_timing_open(memo_session* s, memo_step_plan* plan) {
    for (int32_t k = 0; k < s->desc.n_shapes; k++, plan = plan->next) {
        s->parts[k].plan = plan;
        s->most_steps = memob_max(s->most_steps, plan->swap.n_layers);
    }
    memoi_session_use_shape(s, 0);
    memoi_session_stream(s);
    memoi_session_start(s);
}

/* Copies the states on the device to host memory, and streamed ones to their places there. */
MEMOI void memoi_timing_save(memo_session* s, char* kept) {
    memob_states* of = s->states;
    const memo_stream stream = of->sink.engine.streams[MEMOB_STREAM_TO_HOST];
    int64_t n_bytes;
    memoi_keep(s, memob_states_leave(of, &s->call_error));
    if (!s->failure.status && kept)
        memoi_keep(s, memob_states_keep(of, stream, kept, 0, memoi_timing_left_out(of), NULL,
                                        &n_bytes, &s->call_error));
}

/* Opens a plan in place of the open one, which is opened again if that fails.  moved: the states,
 * which get other places, and those of the device in kept; NULL: they keep their places. */
MEMOI void memoi_timing_swap(memo_session* s, memo_step_plan* plan, memob_states* moved,
                             const char* kept) {
    memo_step_plan* const before MEMO_UNUSED = s->own_plan;
    const void* const memory MEMO_UNUSED = s->device_memory;
    memo_error why;
    memoi_session_stop(s);
    if (moved) s->states = NULL;
    memoi_timing_open(s, plan);
    MEMO_ASSERT(s->failure.status || s->device_memory == memory); /* 2 */
    if (moved && !s->failure.status) memoi_timing_put(s, moved, s->states, kept);
    memoi_session_settle(s);
    if (!s->failure.status) {
        for (int32_t i = 0; i < 2 && moved; i++)
            s->states->sink.engine.memory.copied_bytes[i] +=
                moved->sink.engine.memory.copied_bytes[i];
        memob_states_destroy(moved);
        s->own_plan = plan;
        return;
    }

    /* The plan before. */
    why = s->failure;
    memoi_session_begin_call(s);
    memoi_session_stop(s);
    if (moved) {
        memob_states_destroy(s->states);
        s->states = moved;
    }
    memoi_timing_open(s, before);
    MEMO_ASSERT(s->own_plan == before && s->part->plan == before); /* 5 */
    if (moved) memoi_timing_put(s, moved, moved, kept);
    if (moved && !s->failure.status) memoi_keep(s, memob_states_fetch(moved, &s->call_error));
    memoi_session_settle(s);
    s->timing.is_lost = s->all_failed;
    s->failure = why;
}

/* Replaces the open plan, on all ranks or on none, and destroys the other plan.  If states move,
 * those on the device go through host memory, as both plans have the same bytes there; the others
 * go from one engine to the other. */
MEMOI void memoi_timing_replace(memo_session* s, memo_step_plan* plan) {
    memo_step_plan* const before = s->own_plan;
    memob_states* const states = s->states;
    const int moves = states && !memoi_timing_streams_alike(before, plan);
    void* kept = s->timing.kept;

    MEMO_ASSERT(plan->slice_rows == before->slice_rows);           /* 1 */
    MEMO_ASSERT(!s->is_running && !(states && states->n_pending)); /* 3 */
    if (!s->desc.computes_on_host)
        memoi_keep(s, memo_stream_synchronize(s->device, s->desc.compute_stream, &s->call_error));
    if (states) memoi_keep(s, memob_states_synchronize(states, &s->call_error));
    if (moves && !s->failure.status) memoi_timing_save(s, (char*)kept);
    memoi_session_settle(s);
    if (!s->failure.status) memoi_timing_swap(s, plan, moves ? states : NULL, (const char*)kept);
    memo_step_plan_destroy(s->failure.status ? plan : before);
}

MEMOI void memoi_timing_forget_kept(memo_session* s) {
    if (s->timing.kept) MEMOB_IGNORE(memo_host_free(s->device, s->timing.kept, NULL));
    s->timing.kept = NULL;
}

/* 1: the budgets have room for the states of both plans at once, and beside them for those of the
 * device while they move; s->timing.kept is memory for these.  The same on all ranks. */
MEMOI int memoi_timing_may_move(memo_session* s, const memo_step_plan* plan) {
    int64_t host_bytes = s->own_plan->host_bytes, disk_bytes = 0; /* of the most rows, and states */
    int64_t kept_bytes, values[2] = {0, 0};
    if (!s->states || memoi_timing_streams_alike(s->own_plan, plan)) return 1;
    kept_bytes = memoi_timing_kept_bytes(s);
    for (; plan; plan = plan->next) { /* all shapes have the same states */
        host_bytes = memob_max(host_bytes, plan->host_bytes + s->states_sizes.host_bytes);
        disk_bytes = memob_max(disk_bytes, plan->disk_bytes + s->states_sizes.spill_bytes);
    }
    values[1] = s->desc.host_memory != NULL ||
                memoi_is_over(host_bytes + kept_bytes, s->desc.host_bytes) ||
                memoi_is_over(disk_bytes, s->desc.disk_bytes);
    if (!values[1] && kept_bytes)
        values[1] = memo_host_alloc(s->device, kept_bytes, &s->timing.kept, NULL) != MEMO_STATUS_OK;
    memoi_session_settle_values(s, values, 2);
    if (values[1]) memoi_timing_forget_kept(s);
    return !values[1];
}

/* Makes a plan by the times, in the memory that the session has; NULL: there is none.  Slices and
 * the place of the update stay, since both may change bits. */
MEMOI memo_step_plan* memoi_timing_make(memo_session* s) {
    memo_session_desc own = s->desc;
    memoi_planner planner = MEMO_ZERO(memoi_planner);
    memo_step_plan* plan = NULL;
    planner.profile = s->timing.profiles;
    own.policy = s->timing.policy;
    own.n_group = s->timing.n_group;
    own.device_bytes = s->memory_bytes;
    if (!own.shapes) own.n_shapes = 0;
    if (own.n_states)
        own.update_on = s->own_plan->update_is_on_host ? MEMO_UPDATE_HOST : MEMO_UPDATE_DEVICE;
    for (int keeps = 0; keeps < 2; keeps++) {
        planner.open = keeps ? s->own_plan : NULL;
        if (keeps && memoi_timing_may_move(s, plan)) break;
        memo_step_plan_destroy(plan);
        memoi_keep(s, memoi_planner_plan_groups(&planner, &own, &plan, &s->call_error));
        if (s->failure.status) return NULL;
        if (memob_step_plan_fits(plan)) continue;
        memoi_keep(s, memo_error_set(&s->call_error, MEMO_STATUS_INFEASIBLE, "%s", plan->shortage));
        memo_step_plan_destroy(plan);
        return NULL;
    }
    return plan;
}

/* Updates that are pending belong to the step before. */
MEMOI void memoi_timing_end_updates(memo_session* s) {
    const memo_status status = memo_session_flush(s, &s->call_error);
    memoi_keep(s, status);
    if (status) s->is_reported = 0; /* the micro-batch fails */
    memoi_session_settle(s);
}

/* The open plan takes the predicted times of the same plan. */
MEMOI void memoi_timing_take_times(memo_step_plan* own, memo_step_plan* plan) {
    for (; plan; plan = plan->next, own = own->next) {
        memo_swap_plan* times = own->times;
        own->times = plan->times;
        plan->times = times;
        own->policy = plan->policy;
    }
}

/* Puts a plan by the times of the shapes that are not untimed in place of the first plan, or gives
 * the first plan these times, if it is the same.  Returns what happened, for the log. */
MEMOI const char* memoi_timing_plan_by(memo_session* s, const int64_t* untimed) {
    memo_step_plan* plan;
    memoi_timing_read(s, untimed);
    memoi_slowing_destroy(s); /* another plan takes its memory */
    if (s->failure.status) return "";
    memoi_timing_write(s, untimed);
    memoi_session_settle(s);
    if (s->failure.status) return "";
    memoi_timing_end_updates(s);
    if (s->failure.status) return "";
    plan = memoi_timing_make(s);
    if (!plan) return "";
    if (memoi_timing_is_open(s, plan)) {
        memoi_timing_forget_kept(s);
        memoi_timing_take_times(s->own_plan, plan);
        memo_step_plan_destroy(plan);
        return "the first plan is the fastest that fits";
    }
    memoi_timing_replace(s, plan);
    memoi_timing_forget_kept(s);
    return "planned by the times of training steps";
}

/* Ends the timed steps: a plan by their times takes the place of the first plan.  If there is none,
 * or if it cannot be opened, the first plan stays. */
MEMOI void memoi_timing_plan(memo_session* s) {
    const memo_batch batch = s->batch;
    memoi_timing* t = &s->timing;
    int64_t values[1 + MEMO_SHAPES_MAX] = {0}, n_untimed = 0;
    const char* result = "";

    /* Has some shape times on all ranks? */
    memoi_session_begin_call(s);
    memoi_keep(s, memoi_session_read_timers(s, &s->call_error));
    for (int32_t k = 0; k < s->desc.n_shapes; k++) values[1 + k] = s->parts[k].n_timed < 2;
    memoi_session_settle_values(s, values, 1 + s->desc.n_shapes);
    for (int32_t k = 0; k < s->desc.n_shapes; k++) n_untimed += values[1 + k];
    if (!s->failure.status && n_untimed == s->desc.n_shapes) {
        t->due = (int32_t)memob_min(2 * (int64_t)t->due, INT32_MAX);
        return;
    }
    if (!s->failure.status) result = memoi_timing_plan_by(s, values + 1);
    if (s->failure.status) {
        snprintf(t->why, sizeof t->why, "%.180s", s->failure.message);
        memob_session_log(s, "session: the first plan stays: %s", t->why);
    } else
        memob_session_log(s, "session: %s", result);

    /* Times are known. */
    t->plan = NULL;
    t->is_open = 0;
    s->spans_s = NULL;
    memoi_session_destroy_timers(s);
    memoi_slowing_destroy(s);
    memob_arrays_free(&s->arrays);
    s->layers_s = NULL;
    s->batch = batch;
    s->checked.is_moved = 1;
    if (s->desc.planned && !t->is_lost) s->desc.planned(s->desc.user, s, s->own_plan);
}

memo_status memo_session_get_profile(const memo_session* s, int32_t shape, memo_profile* profile,
                                     memo_error* error) {
    MEMOB_REFUSE_NULL(error, "session", s);
    MEMOB_REFUSE_NULL(error, "profile", profile);
    if (memob_check_integer("memo_session_get_profile", "shape", shape, 0, s->desc.n_shapes - 1,
                            error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    memset(profile, 0, sizeof *profile);
    if (s->timing.is_known) {
        *profile = s->timing.profiles[shape];
        return MEMO_STATUS_OK;
    }
    if (*s->timing.why)
        return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                              "memo_session_get_profile: planning by the times has failed: %s",
                              s->timing.why);
    return memo_error_set(error, MEMO_STATUS_INVALID_STATE,
                          "memo_session_get_profile: times are not known; %s",
                          s->timing.plan ? "run more training steps"
                                         : "set memo_session_desc.timed_steps, or read a file");
}

/* --- the session opens --- */

/* Opens a plan; n_timed: steps that are timed before another plan takes its place, 0: none. */
MEMOI memo_status memoi_timing_open_first(const memo_session_desc* desc, const memo_step_plan* plan,
                                          int32_t n_timed, memo_session** session,
                                          memo_error* error) {
    memo_session* s = memoi_session_make(desc, plan, 0, error);
    memo_status status;
    *session = s; /* functions of the trainer may use it */
    if (!s) return MEMO_STATUS_OUT_OF_HOST_MEMORY;
    if (!s->failure.status && n_timed) {
        s->timing.plan = memoi_timing_plan;
        s->timing.due = n_timed;
        memoi_timing_prepare(s);
    }
    if (!s->failure.status) memoi_session_start(s);
    if (!s->failure.status && n_timed) memoi_timing_prepare_slowing(s);
    memoi_session_settle(s);
    status = memoi_session_end_call(s, error);
    if (!status) return status;
    memo_session_destroy(s);
    *session = NULL;
    return status;
}

memo_status memo_session_open(const memo_session_desc* desc, const memo_step_plan* plan,
                              memo_session** session, memo_error* error) {
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", session);
    *session = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    status = memob_check_given(__func__, "plan", plan, error);
    return status ? memob_session_verdict(desc, status, error)
                  : memoi_timing_open_first(desc, plan, 0, session, error);
}

/* A plan that fits, without times: with everything recomputed, or by estimated times. */
MEMOI memo_status memoi_timing_plan_first(const memo_session_desc* desc, memo_step_plan** plan,
                                          memo_error* error) {
    memo_session_desc own = *desc;
    memoi_planner planner = MEMO_ZERO(memoi_planner);
    memo_status status;
    if (memoi_session_chooses(desc)) { /* slices of the largest size that fits */
        status = memo_session_plan(desc, NULL, plan, error);
        if (status) return status;
        own.slice_rows = (*plan)->slice_rows ? (*plan)->slice_rows : desc->n_rows;
        memo_step_plan_destroy(*plan);
    }
    if (desc->policy == MEMO_POLICY_MEMO) own.policy = MEMO_POLICY_RECOMPUTE;
    own.alpha = 0;
    status = memoi_planner_plan_shapes(&planner, &own, plan, error);
    if (status || memob_step_plan_fits(*plan)) return status;
    memo_step_plan_destroy(*plan);
    return memo_session_plan(desc, NULL, plan, error);
}

/* The plan to open without known times.  *n_timed: if not everything can be kept, steps are timed,
 * unless times are estimated. */
MEMOI memo_status memoi_timing_plan_untimed(const memo_session_desc* desc, int32_t* n_timed,
                                            memo_step_plan** plan, memo_error* error) {
    memo_session_desc kept = *desc;
    memoi_planner planner = MEMO_ZERO(memoi_planner);
    memo_status status;
    if (desc->policy == MEMO_POLICY_MEMO) {
        kept.policy = MEMO_POLICY_KEEP;
        if (memoi_session_chooses(desc)) kept.slice_rows = desc->n_rows;
        planner.effort = MEMOI_ROWS_EFFORT_FIRST;
        status = memoi_planner_plan_sizes(&planner, &kept, plan, error);
        if (status || (memob_step_plan_fits(*plan) && !(*plan)->n_streamed)) return status;
        memo_step_plan_destroy(*plan);
    } else if (!memoi_session_is_alpha(desc))
        return memo_session_plan(desc, NULL, plan, error);
    *n_timed = 4;
    return desc->timed_steps < 0 ? memo_session_plan(desc, NULL, plan, error)
                                 : memoi_timing_plan_first(desc, plan, error);
}

/* host_bytes is 0, and a plan's bytes cannot be pinned: about as many as can, by trying.  0:
 * another memory was lacking, or nothing can. */
MEMOI int64_t memoi_timing_find_pinned(const memo_session_desc* desc, int64_t planned_bytes) {
    int64_t most_bytes = 0;
    for (int64_t more = planned_bytes; more >= memob_max(most_bytes / 8, 512); more /= 2) {
        void* memory = NULL;
        if (!memo_host_alloc(desc->device, most_bytes + more, &memory, NULL)) most_bytes += more;
        MEMOB_IGNORE(memo_host_free(desc->device, memory, NULL));
        if (most_bytes >= planned_bytes) return 0;
    }
    return most_bytes;
}

/* Plans and opens.  *plan: what was planned, also if it cannot be opened. */
MEMOI memo_status memoi_timing_create(const memo_session_desc* desc, const memo_profile* profiles,
                                      memo_step_plan** plan, memo_session** session,
                                      memo_error* error) {
    int32_t n_timed = 0;
    const memo_status status = profiles ? memo_session_plan(desc, profiles, plan, error)
                                        : memoi_timing_plan_untimed(desc, &n_timed, plan, error);
    if (desc->timed_steps && !profiles) n_timed = (int32_t)memob_max(desc->timed_steps, 0);
    return status ? status : memoi_timing_open_first(desc, *plan, n_timed, session, error);
}

/* The same with what can be pinned, if host_bytes is 0 and the plan's bytes cannot.  With ranks the
 * error stays: not all may have failed to pin.  why: the failure. */
MEMOI memo_status memoi_timing_create_pinned(const memo_session_desc* desc,
                                             const memo_profile* profiles, memo_step_plan** plan,
                                             memo_session** session, memo_error* why) {
    const int64_t planned_bytes = *plan ? (*plan)->host_bytes : 0;
    memo_session_desc own = *desc;
    memo_error error;
    memo_status status;
    char text[2][32];
    if (why->status != MEMO_STATUS_OUT_OF_HOST_MEMORY || !planned_bytes || !desc->device ||
        desc->host_bytes || desc->agree)
        return why->status;
    own.host_bytes = memoi_timing_find_pinned(desc, planned_bytes);
    if (!own.host_bytes) return why->status;

    memo_step_plan_destroy(*plan);
    *plan = NULL;
    status = memoi_timing_create(&own, profiles, plan, session, &error);
    memob_bytes_text(text[0], (double)planned_bytes);
    memob_bytes_text(text[1], (double)own.host_bytes);
    if (status)
        return memo_error_set(why, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "memo_session_desc.host_bytes: 0, and the plan pins %s, but the "
                              "device no more than about %s; with %lld, %s",
                              text[0], text[1], (long long)own.host_bytes, error.message);
    memob_session_log(*session, "session: host_bytes is 0; a plan would pin %s, this one %s of %s",
                      text[0], memob_bytes_text(text[0], (double)(*plan)->host_bytes), text[1]);
    return status;
}

/* Every rank takes the same way: plans fit on all ranks or on none. */
memo_status memo_session_create(const memo_session_desc* desc, memo_session** session,
                                memo_error* error) {
    memo_error why = MEMO_ZERO(memo_error);
    memo_profile* profiles = NULL;
    memo_step_plan* plan = NULL;
    memo_status status;
    MEMOB_REFUSE_NULL(error, "session", session);
    *session = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    status = memoi_timing_read_files(desc, &profiles, &why);
    if (!status) status = memoi_timing_create(desc, profiles, &plan, session, &why);
    why.status = status;
    if (status) status = memoi_timing_create_pinned(desc, profiles, &plan, session, &why);
    if (status) {
        MEMO_FREE(profiles);
        memo_step_plan_destroy(plan);
        *session = NULL;
        if (error) *error = why;
        return status;
    }

    (*session)->own_plan = plan;
    if (profiles) { /* what a file says is known at once */
        (*session)->timing.profiles = profiles;
        (*session)->timing.is_known = 1;
    }
    return status;
}
