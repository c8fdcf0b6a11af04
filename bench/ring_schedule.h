/* ring_schedule.h - attention of all ring ranks in one schedule, to simulate: each rank's own
 * schedule (memo_sp_attention_schedule), joined where ranks exchange.  Nothing is computed or sent,
 * so communicators and buffers are placeholders. */
#ifndef RING_SCHEDULE_H
#define RING_SCHEDULE_H

#include "memo_sp.h"

#define RING_SCHEDULE_RANKS 16

/* What one rank enqueues.  desc: as for memo_sp_attention_desc_get_sizes. */
static memo_status ring_schedule_of_rank(const memo_sp_attention_desc* rank_desc, int32_t r,
                                         memo_device* device, memo_stream stream,
                                         const memo_mask* masks, int is_backward,
                                         const memo_sp_attention_costs* costs,
                                         memo_schedule** schedule, memo_error* error) {
    char* somewhere = (char*)(uintptr_t)((uint64_t)1 << 40); /* never accessed */
    memo_host_attention local = {device, 0};
    memo_sp_attention_desc desc = *rank_desc;
    memo_sp_attention* attention = NULL;
    memo_sp_attention_tensors t;
    memo_comm ring, ulysses;
    memo_status status;
    memset(&ring, 0, sizeof ring);
    memset(&ulysses, 0, sizeof ulysses);
    ring.rank = r;
    ring.size = desc.sharding.ring;
    ulysses.rank = desc.ulysses_rank;
    ulysses.size = desc.sharding.ulysses;
    desc.ring_rank = r;
    desc.ring = &ring;
    desc.ulysses = &ulysses;
    desc.device = device;
    desc.stream = stream;
    desc.attention = memo_host_attention_functions(&local);
    desc.device_memory = somewhere + ((int64_t)1 << 40); /* apart from the tensors */
    memset(&t, 0, sizeof t);
    t.q = t.k = t.v = t.d_out = somewhere;
    t.out = t.saved = t.d_q = t.d_k = t.d_v = somewhere;
    t.lse = (float*)(void*)somewhere;
    status = memo_schedule_create(schedule, error);
    if (!status) status = memo_sp_attention_create(&desc, &attention, error);
    if (!status)
        status =
            memo_sp_attention_schedule(attention, &t, masks, is_backward, costs, *schedule, error);
    memo_sp_attention_destroy(attention);
    return status;
}

/* An operation that all ranks do together. */
static int ring_schedule_joins(const memo_schedule* part, const memo_op* op) {
    const char* name = part->text + op->name;
    return op->kind == MEMO_OP_RUN &&
           (!strcmp(name, "ring exchange") || !strcmp(name, "gather keys") ||
            !strcmp(name, "scatter gradients"));
}

/* Streams and events of rank r; those of one name are found again. */
static memo_status ring_schedule_begin(memo_schedule* all, const memo_schedule* part, int32_t r,
                                       int32_t* streams, int32_t* first_event, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    char name[48];
    int32_t i, event;
    for (i = 0; i < part->n_streams && !status; i++) {
        snprintf(name, sizeof name, "%s %d", part->text + part->streams[i], (int)r);
        for (streams[i] = 0; streams[i] < all->n_streams; streams[i]++)
            if (!strcmp(all->text + all->streams[streams[i]], name)) break;
        if (streams[i] == all->n_streams)
            status = memo_schedule_add_stream(all, name, &streams[i], error);
    }
    *first_event = all->n_events;
    for (i = 0; i < part->n_events && !status; i++)
        status = memo_schedule_add_event(all, &event, error);
    return status;
}

/* Appends op, on more streams too, without the bytes that it touches: ranks have memory of their
 * own. */
static memo_status ring_schedule_add(memo_schedule* all, const memo_schedule* part,
                                     const memo_op* op, const int32_t* streams, int32_t first_event,
                                     double duration_s, int64_t link_bytes,
                                     const int32_t* more_streams, int32_t n_more,
                                     memo_error* error) {
    memo_op_desc desc = memo_op_desc_default();
    if (op->kind == MEMO_OP_RECORD)
        return memo_schedule_add_record(all, first_event + op->event, streams[op->stream], error);
    if (op->kind == MEMO_OP_WAIT)
        return memo_schedule_add_wait(all, first_event + op->event, streams[op->stream], error);
    desc.name = part->text + op->name;
    desc.stream = streams[op->stream];
    desc.duration_s = duration_s;
    desc.link_bytes = link_bytes;
    desc.more_streams = more_streams;
    desc.n_more_streams = n_more;
    return memo_schedule_add_op(all, &desc, error);
}

/* Appends to schedule forward (is_backward 0) or backward of all ring ranks: streams "compute 0",
 * "ring 0", ...  An exchange occupies the streams of all ranks; the rank that sends most sets its
 * bytes and time. */
static memo_status ring_schedule(const memo_sp_attention_desc* desc, const memo_mask* masks,
                                 int is_backward, const memo_sp_attention_costs* costs,
                                 memo_schedule* schedule, memo_error* error) {
    memo_host_device_desc device_desc = memo_host_device_desc_default();
    memo_schedule* parts[RING_SCHEDULE_RANKS];
    int32_t streams[RING_SCHEDULE_RANKS][8], first_event[RING_SCHEDULE_RANKS];
    int64_t at[RING_SCHEDULE_RANKS];
    int32_t n = desc->sharding.ring, r;
    memo_device* device = NULL;
    memo_stream stream = NULL;
    memo_status status = memo_host_device_create(&device_desc, &device, error);
    if (!status) status = memo_stream_create(device, "compute", 0, &stream, error);
    memset(parts, 0, sizeof parts);
    memset(at, 0, sizeof at);
    for (r = 0; r < n && !status; r++)
        status = ring_schedule_of_rank(desc, r, device, stream, masks, is_backward, costs,
                                       &parts[r], error);
    for (r = 0; r < n && !status; r++)
        status = ring_schedule_begin(schedule, parts[r], r, streams[r], &first_event[r], error);

    while (!status) {
        int32_t more[RING_SCHEDULE_RANKS];
        double longest_s = 0;
        int64_t most = 0;
        /* Each rank up to its next exchange. */
        for (r = 0; r < n; r++)
            for (; at[r] < parts[r]->n_ops && !status; at[r]++) {
                const memo_op* op = &parts[r]->ops[at[r]];
                if (ring_schedule_joins(parts[r], op)) break;
                status = ring_schedule_add(schedule, parts[r], op, streams[r], first_event[r],
                                           op->duration_s, op->link_bytes, NULL, 0, error);
            }
        if (status || at[0] == parts[0]->n_ops) break;

        /* Their exchange. */
        for (r = 0; r < n; r++) {
            const memo_op* op = &parts[r]->ops[at[r]++];
            longest_s = op->duration_s > longest_s ? op->duration_s : longest_s;
            most = op->link_bytes > most ? op->link_bytes : most;
            if (r) more[r - 1] = streams[r][op->stream];
        }
        status = ring_schedule_add(schedule, parts[0], &parts[0]->ops[at[0] - 1], streams[0],
                                   first_event[0], longest_s, most, more, n - 1, error);
    }
    for (r = 0; r < n; r++) memo_schedule_destroy(parts[r]);
    if (stream) (void)memo_stream_destroy(device, stream, NULL);
    memo_host_device_destroy(device);
    return status;
}

#endif
