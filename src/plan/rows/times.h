#pragma once
#include "memo/states.h"
#include "memo/swap_items.h"
#include "plan/profile_file.h"
/* --- >>row times ---
 * Knows: durations.  Knows nothing of memory, and of the order of operations.
 *
 * A clock on which the operations of a step pass, as the law of memo.h's >>swap items lists them.  Every cost
 * of an operation is here: a new one is a field of memo_kind_times or memo_swap_plan_desc, a term
 * here, and a duration in memo_swap_generate (memo_look.h).  test_swap_plan compares both for
 * random problems. */

/* Of a step, whatever its rows. */
typedef struct memoi_rows_layer {
    double compute_s[2];    /* forward, backward */
    double traffic_s[2][2]; /* likewise; to host, to device */
} memoi_rows_layer;

/* Copies that follow each other, or a use of the file.  Each copy has a start, which does not use
 * the link, and bytes. */
typedef struct memoi_rows_job {
    double ready_s;     /* it begins not before, */
    int32_t n_after[4]; /* and not before each stream has done so many jobs */
    int32_t n_copies;
    double start_s, bytes_s; /* of each copy */
    double done_s;
} memoi_rows_job;

/* A stream of copies, or of the file.  The trainer's copies use the same link.  They follow each
 * other too; while bytes of both go, each gets half of the link. */
typedef struct memoi_rows_stream {
    memoi_rows_job* jobs; /* the first n_done have ended; the last is the next to come */
    int64_t n_most;
    int32_t n_jobs, n_done;
    double time_s;    /* up to which it is known */
    double traffic_s; /* of the trainer's copies, left then */
    int32_t n_phases; /* of the first job, ended then: starts and bytes in turn */
    double left_s;    /* of the phase after them; negative: not begun */
} memoi_rows_stream;

/* A time, or when a stream has done so many jobs. */
typedef struct memoi_rows_event {
    double time_s;
    int32_t stream, n_jobs;
} memoi_rows_event;

/* A step while its times are found. */
typedef struct memoi_rows_clock {
    const memo_swap_plan_desc* desc;
    memob_swap_placement order; /* of each table: sums, turns, sizes; no places */
    memoi_rows_layer* layers;
    /* The law of the pattern: which steps have which rows in rounding buffers, and where they
     * spill. */
    memob_swap_items items;
    memob_law law;
    memob_numbers* waits; /* (2, n_ops): of each operation in the first micro-batch, and the next */
    int32_t run;          /* which it is */
    int64_t n_ops[MEMOB_N_STREAMS];            /* enqueued so far */
    memoi_rows_event* events[MEMOB_N_STREAMS]; /* (2 n_ops + 1): by number */
    char *pattern, *new_pattern;               /* (n_pattern) */
    int64_t n_pattern;
    int32_t has_law;
    memob_arrays of_law; /* waits, events, jobs of the streams */
    int64_t n_state_jobs;
    int64_t* n_bytes;  /* (n_items most): of each item */
    int32_t* n_copies; /* likewise */
    int32_t has_traffic;
    double compute_s, stall_s; /* computes until then; until then it did not compute for so long */
    double in_flight_s[2];     /* to the host, to the device: enqueued since a step computed last */
    memoi_rows_stream streams[4];

    memob_states* states; /* own_states, whose device is this clock; NULL: none are streamed */
    memob_states own_states;
    memoi_rows_event* state_events; /* of both places (8), then of updates on the host (layers) */
    double update_s;                /* of the update's pass */
} memoi_rows_clock;

/* Follows a stream until time_s, or until it has done so many jobs. */
MEMOI void memoi_rows_follow(memoi_rows_clock* c, int32_t which, double time_s, int32_t n_done) {
    memoi_rows_stream* stream = &c->streams[which];
    while (stream->n_done < n_done && stream->time_s < time_s) {
        memoi_rows_job* job = &stream->jobs[stream->n_done];
        double begin_s = stream->n_done < stream->n_jobs ? job->ready_s : time_s, passed_s;
        int slower;
        for (int k = 1; k < 4 && begin_s < time_s; k++) {
            const int32_t n_after = job->n_after[k];
            if (!n_after) continue;
            memoi_rows_follow(c, k, time_s, n_after);
            begin_s = c->streams[k].n_done < n_after
                          ? time_s
                          : memoi_rows_later(begin_s, c->streams[k].jobs[n_after - 1].done_s);
        }
        begin_s = memoi_rows_sooner(begin_s, time_s);

        /* The trainer's copies alone. */
        if (begin_s > stream->time_s) {
            stream->traffic_s = memoi_rows_later(0, stream->traffic_s - (begin_s - stream->time_s));
            stream->time_s = begin_s;
            continue;
        }

        /* A phase of the job, until the trainer's copies end.  Its bytes share the link. */
        if (stream->left_s < 0) stream->left_s = stream->n_phases & 1 ? job->bytes_s : job->start_s;
        slower = stream->traffic_s > 0 && stream->n_phases & 1 ? 2 : 1;
        passed_s = memoi_rows_sooner(stream->left_s, (time_s - stream->time_s) / slower);
        if (stream->traffic_s > 0) passed_s = memoi_rows_sooner(passed_s, stream->traffic_s);
        stream->left_s -= passed_s;
        stream->traffic_s = memoi_rows_later(0, stream->traffic_s - passed_s);
        stream->time_s += slower * passed_s;
        if (stream->left_s > 0) continue;

        stream->left_s = -1;
        if (++stream->n_phases < 2 * job->n_copies) continue;
        stream->n_phases = 0;
        stream->n_done++;
        job->done_s = stream->time_s;
    }
}

/* A stream of copies waits for an event, or compute does. */
MEMOI void memoi_rows_wait(memoi_rows_clock* c, int32_t which, const memoi_rows_event* event) {
    const memoi_rows_stream* stream = &c->streams[event->stream];
    const memoi_rows_job* last = event->n_jobs ? &stream->jobs[event->n_jobs - 1] : NULL;
    memoi_rows_job* next = NULL;
    if (which == MEMOB_SWAP_COMPUTE && !last) return;
    if (which != MEMOB_SWAP_COMPUTE) next = &c->streams[which].jobs[c->streams[which].n_jobs];
    if (which == MEMOB_SWAP_COMPUTE) {
        memoi_rows_follow(c, event->stream, HUGE_VAL, event->n_jobs);
        c->stall_s += memoi_rows_later(0, last->done_s - c->compute_s);
        c->compute_s = memoi_rows_later(c->compute_s, last->done_s);
    } else if (event->stream == MEMOB_SWAP_COMPUTE)
        next->ready_s = memoi_rows_later(next->ready_s, event->time_s);
    else if (event->n_jobs > stream->n_done)
        next->n_after[event->stream] =
            (int32_t)memob_max(next->n_after[event->stream], event->n_jobs);
    else if (last)
        next->ready_s = memoi_rows_later(next->ready_s, last->done_s);
}

/* Enqueues so many copies. */
MEMOI void memoi_rows_add_job(memoi_rows_clock* c, int32_t which, int32_t n_copies, double start_s,
                              double bytes_s) {
    memoi_rows_stream* stream = &c->streams[which];
    memoi_rows_job* job = &stream->jobs[stream->n_jobs];
    if (!n_copies) return;
    stream->n_jobs++;
    memset(job + 1, 0, sizeof *job);
    if (start_s <= 0) n_copies = 1;
    if (which != MEMOB_SWAP_FILE) c->in_flight_s[which - 1] += bytes_s;
    job->n_copies = n_copies;
    job->start_s = start_s;
    job->bytes_s = bytes_s / n_copies;
    if (c->has_traffic) return; /* what comes later may delay it */
    stream->time_s = memoi_rows_later(stream->time_s, job->ready_s) + n_copies * start_s + bytes_s;
    job->done_s = stream->time_s;
    stream->n_done++;
}

/* Enqueues copies on a stream, to the device or from it; or a use of the file, read or write. */
MEMOI void memoi_rows_add_copies(memoi_rows_clock* c, int32_t which, int is_back, int is_file,
                                 int32_t n_copies, int64_t n_bytes) {
    const memo_swap_plan_desc* desc = c->desc;
    const double rate = is_file
                            ? (is_back ? desc->from_file_bytes_per_s : desc->to_file_bytes_per_s)
                            : (is_back ? desc->to_device_bytes_per_s : desc->to_host_bytes_per_s);
    memoi_rows_add_job(c, which, n_copies, is_file ? desc->file_s : desc->copy_s,
                       memoi_rows_over((double)n_bytes, rate));
}

MEMOI void memoi_rows_record(memoi_rows_clock* c, int32_t which, memoi_rows_event* event) {
    event->stream = which;
    event->n_jobs = c->streams[which].n_jobs;
    event->time_s = c->compute_s;
}

/* An operation of the law waits, then is enqueued, then recorded. */
MEMOI void memoi_rows_wait_all(memoi_rows_clock* c, int32_t op) {
    const memob_numbers* wait = &c->waits[c->run * c->law.n_ops + op];
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++)
        if (wait->of[s]) memoi_rows_wait(c, c->law.ops[op].stream, &c->events[s][wait->of[s]]);
}
MEMOI void memoi_rows_record_op(memoi_rows_clock* c, int32_t op) {
    const int32_t stream = c->law.ops[op].stream;
    memoi_rows_record(c, stream, &c->events[stream][++c->n_ops[stream]]);
}

/* A step computes, and the trainer's copies begin with it. */
MEMOI void memoi_rows_compute(memoi_rows_clock* c, const double* traffic_s, double time_s) {
    const double rates[] = {c->desc->to_host_bytes_per_s, c->desc->to_device_bytes_per_s};
    double slower_s = 0;
    for (int32_t way = 0; way < 2; way++) {
        const double in_flight_s = c->in_flight_s[way] + traffic_s[way];
        slower_s += c->desc->slowdown_s_per_byte[way] *
                    memoi_rows_sooner(in_flight_s * rates[way], time_s * rates[way]);
        c->in_flight_s[way] = 0;
        if (!(traffic_s[way] > 0)) continue;
        memoi_rows_follow(c, 1 + way, c->compute_s, INT32_MAX);
        c->streams[1 + way].traffic_s += traffic_s[way];
    }
    c->compute_s += time_s + slower_s;
}

/* The engine of states runs on the clock.  The engine calls these functions of its device. */
MEMOI memo_status memoi_rows_state_record(void* clock, memo_event event, memo_stream stream,
                                          memo_error* error) {
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    const int32_t which = (int32_t)(intptr_t)stream;
    const memoi_rows_stream* of = &c->streams[which];
    const memoi_rows_job* next = which ? &of->jobs[of->n_jobs] : NULL;
    (void)error;
    if (which && (next->ready_s > 0 || next->n_after[1] || next->n_after[2] || next->n_after[3]))
        memoi_rows_add_job(c, which, 1, 0, 0); /* it waits, but copies nothing */
    memoi_rows_record(c, which, (memoi_rows_event*)(void*)event);
    return MEMO_STATUS_OK;
}
MEMOI memo_status memoi_rows_state_wait(void* clock, memo_event event, memo_stream stream,
                                        memo_error* error) {
    (void)error;
    memoi_rows_wait((memoi_rows_clock*)clock, (int32_t)(intptr_t)stream,
                    (memoi_rows_event*)(void*)event);
    return MEMO_STATUS_OK;
}
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
        memoi_rows_add_job(c, which, 1, 0,
                           c->desc->update_host_s_per_byte *
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

/* A layer of the engine of states begins or ends a pass. */
MEMOI void memoi_rows_visit(void* clock, memob_states_pass pass, int32_t layer, int is_end) {
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    if (is_end && !c->states->updates && memob_states_updates(c->states, c->states->phase))
        c->compute_s += c->desc->update_s_per_byte * memob_states_update_bytes(c->states, layer);
    (void)(is_end ? memob_states_end : memob_states_begin)(c->states, pass, layer, NULL);
}

/* --- the law of the rows --- */

/* Bytes and copies of each item, and whether the law is still that of the pattern. */
MEMOI int memoi_rows_find_pattern(memoi_rows_clock* c) {
    const memo_swap_desc* swap = c->desc->swap;
    const memob_swap_placement* p = &c->order;
    const int32_t n = p->n_layers;
    char* to = c->new_pattern;
    for (int64_t k = 0; k < (int64_t)n * swap->n_tensors; k++)
        *to++ = (char)memob_min(p->moves[k], 1);
    for (int32_t i = 0; i < n; i++) {
        *to++ = (char)((p->sums[i].uses_layer > 0) | (p->sums[i].uses_routed > 0) << 1 |
                       memob_swap_shares_input(p, i) << 2 | (p->sums[i].pack_bytes > 0) << 3);
    }
    memcpy(to, &p->n_host_layers, sizeof p->n_host_layers);
    to += sizeof p->n_host_layers;
    *to++ = p->sizes.n_spilled_layers > 0;
    MEMO_ASSERT(to - c->new_pattern == c->n_pattern);
    return c->has_law && !memcmp(c->pattern, c->new_pattern, (size_t)c->n_pattern);
}

/* Of the table before. */
MEMOI void memoi_rows_forget_law(memoi_rows_clock* c) {
    memob_swap_items_free(&c->items);
    memob_law_free(&c->law);
    memob_arrays_free(&c->of_law);
    c->has_law = 0;
}

/* Two micro-batches from a device that does nothing. */
MEMOI memo_status memoi_rows_find_waits(memoi_rows_clock* c, memo_error* error) {
    memob_arrays* a = &c->of_law;
    memob_waits waits;
    memo_status status = memob_waits_make(&waits, c->law.n_cells, c->law.n_kept, error);
    c->waits = MEMOB_ARRAY(a, memob_numbers, 2 * (int64_t)c->law.n_ops);
    for (int32_t s = 0; s < MEMOB_N_STREAMS; s++) {
        c->events[s] = MEMOB_ARRAY(a, memoi_rows_event, c->law.n_kept[s] + 1);
        if (s && !memob_reserve(&c->streams[s].jobs, &c->streams[s].n_most,
                                c->law.n_kept[s] + c->n_state_jobs + 2, sizeof(memoi_rows_job)))
            a->failed = 1;
    }
    if (!status && a->failed) status = memob_no_memory(error, "the times of a step");
    for (int32_t k = 0; !status && k < 2 * c->law.n_ops; k++)
        (void)memob_law_add(&c->law, &waits, k % c->law.n_ops, &c->waits[k]);
    memob_waits_free(&waits);
    return status;
}

/* Finds the law of the table whose sums were added up. */
MEMOI memo_status memoi_rows_find_law(memoi_rows_clock* c, memo_error* error) {
    const memo_swap_desc* swap = c->desc->swap;
    const int32_t n = c->order.n_layers;
    memo_status status = MEMO_STATUS_OK;
    if (!memoi_rows_find_pattern(c)) {
        memoi_rows_forget_law(c);
        status = memob_swap_items_make(swap, &c->order, &c->items, error);
        if (!status) status = memob_swap_items_law(&c->items, &c->order, 1, &c->law, error);
        if (!status) status = memoi_rows_find_waits(c, error);
        if (status) return status;
        memcpy(c->pattern, c->new_pattern, (size_t)c->n_pattern);
        c->has_law = 1;
    }

    for (int32_t k = 0; k < c->items.n_items; k++) {
        const memob_swap_item_kind kind = memob_swap_item_kind_of(&c->items, k);
        const memob_swap_sum* sum = &c->order.sums[k % n];
        c->n_bytes[k] = c->n_copies[k] = 0;
        if (kind == MEMOB_SWAP_ITEM_LAYER) {
            c->n_bytes[k] = sum->layer_bytes;
            c->n_copies[k] = sum->n_layer_copies;
        } else if (kind == MEMOB_SWAP_ITEM_ROUTED) {
            c->n_bytes[k] = sum->routed_bytes;
            c->n_copies[k] = sum->n_routed_copies;
        } else if (kind == MEMOB_SWAP_ITEM_HANDED) {
            c->n_bytes[k] = memob_swap_step_rows(&c->order, k % n, memob_swap_layer_rows(swap)) *
                            c->order.handed_row_bytes;
            c->n_copies[k] = 1;
        }
    }
    for (int32_t t = 0; t < swap->n_tensors; t++)
        for (int32_t i = 0; i < n && c->items.class_of[t] >= 0; i++) {
            const int64_t n_bytes = c->order.moves[(int64_t)t * n + i];
            if (n_bytes <= 0) continue;
            c->n_bytes[c->items.class_of[t] * n + i] += n_bytes;
            c->n_copies[c->items.class_of[t] * n + i]++;
        }
    return status;
}

/* An operation behind a visit.  One without bytes is left out, as the engine does. */
MEMOI void memoi_rows_enqueue(memoi_rows_clock* c, int32_t k) {
    const memob_op* op = &c->law.ops[k];
    const memob_part* parts = &c->law.parts[op->first_part];
    const int is_file = op->kind == MEMOB_OP_WRITE || op->kind == MEMOB_OP_READ;
    const int is_back = op->kind == MEMOB_OP_LOAD || op->kind == MEMOB_OP_READ;
    int32_t n_copies = is_file;
    int64_t n_bytes = 0;
    if (is_file)
        n_bytes = memob_align_up(c->order.sums[parts->item % c->order.n_layers].host_bytes,
                                 MEMOB_SPILL_ALIGNMENT);
    for (int32_t i = 0; i < op->n_parts && !is_file; i++) {
        n_bytes += c->n_bytes[parts[i].item];
        n_copies += c->n_copies[parts[i].item];
    }
    if (n_bytes) {
        memoi_rows_wait_all(c, k);
        memoi_rows_add_copies(c, op->stream, is_back, is_file, n_copies, n_bytes);
    }
    memoi_rows_record_op(c, k);
}

MEMOI void memoi_rows_turn(void* clock, int32_t k, int is_end) {
    static const double no_traffic_s[2] = {0, 0};
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    int32_t op = c->law.visit_ops[k];
    if (!is_end) {
        memoi_rows_wait_all(c, op);
        return;
    }
    memoi_rows_record_op(c, op);
    for (op++; op < c->law.n_ops && c->law.ops[op].kind != MEMOB_OP_VISIT; op++)
        memoi_rows_enqueue(c, op);
    if (c->desc->turns_s && k % c->order.n_forwards == c->order.n_forwards - 1)
        memoi_rows_compute(c, no_traffic_s, c->desc->turns_s[k / c->order.n_forwards]);
}

MEMOI void memoi_rows_compute_visit(void* clock, int32_t k) {
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    const memob_swap_visit* visit = &c->order.visits[k];
    const memoi_rows_layer* layer = &c->layers[visit->step];
    const int is_backward = visit->is_backward;
    memoi_rows_compute(c, layer->traffic_s[is_backward],
                       (is_backward ? c->order.sums[visit->step].recompute_s : 0) +
                           layer->compute_s[is_backward]);
}

MEMOI void memoi_rows_between(void* clock, int32_t turn) {
    memoi_rows_clock* c = (memoi_rows_clock*)clock;
    if (c->desc->turns && c->desc->turns[turn].chunk != c->desc->last_chunk) return;
    c->compute_s += c->desc->between_s;
}

/* A micro-batch, or all that are in flight, and the update.  Returns when the compute stream ends
 * the last backward. */
MEMOI double memoi_rows_micro_batch(memoi_rows_clock* c) {
    const memob_walk walk = {
        &c->order,          c->states, memoi_rows_turn, memoi_rows_visit, memoi_rows_compute_visit,
        memoi_rows_between, c};
    double end_s, stall_s;
    if (c->states) (void)memob_states_set_batch(c->states, 1, 0, NULL);
    memob_walk_batch(&walk);
    end_s = c->compute_s;
    stall_s = c->stall_s;
    memob_walk_update(&walk);
    c->update_s = c->compute_s - end_s;
    c->stall_s = stall_s;
    return end_s;
}

/* The time of a micro-batch.  With streamed states another one comes before it, so that what the
 * update leaves on the device is there. */
MEMOI double memoi_rows_step(memoi_rows_clock* c) {
    double begin_s = 0;
    c->compute_s = c->stall_s = c->in_flight_s[0] = c->in_flight_s[1] = 0;
    memset(c->n_ops, 0, sizeof c->n_ops);
    c->run = 0;
    for (int32_t k = MEMOB_SWAP_TO_HOST; k <= MEMOB_SWAP_FILE; k++) {
        memoi_rows_stream* stream = &c->streams[k];
        stream->n_jobs = stream->n_done = stream->n_phases = 0;
        stream->time_s = stream->traffic_s = 0;
        stream->left_s = -1;
        memset(stream->jobs, 0, sizeof *stream->jobs);
    }
    if (c->states && c->states->sizes.host_bytes) {
        memset(c->state_events, 0, (size_t)(8 + c->states->n_layers) * sizeof *c->state_events);
        memob_states_reset(c->states);
        (void)memoi_rows_micro_batch(c);
        begin_s = c->compute_s;
        c->stall_s = 0;
        c->run = 1;
    }
    return memoi_rows_micro_batch(c) - begin_s;
}
