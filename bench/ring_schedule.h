/* ring_schedule.h - attention of all ring ranks in one schedule, to simulate: what each rank's
 * engine enqueues on paper (memo_recorder_desc.on_paper), joined where ranks exchange.  Include it
 * after extras/memo_look.h. */
#ifndef RING_SCHEDULE_H
#define RING_SCHEDULE_H

#include "memo_sp.h"
#include "tests/support/made_mask.h"

#define RING_SCHEDULE_RANKS 128

/* Durations.  A rate of 0 bytes per second means no time except the latency.  Ring and Ulysses have
 * links of their own, such as NIC and NVLink.  If they share one and run at the same time
 * (ulysses_groups), a real run takes longer. */
typedef struct ring_costs {
    double forward_s_per_score, backward_s_per_score; /* per pair (query, key) of one head */
    double ring_bytes_per_s, ring_latency_s;
    double ulysses_bytes_per_s, ulysses_latency_s;
    double nodes_bytes_per_s, nodes_latency_s; /* between nodes, if the desc has n_nodes */
} ring_costs;

/* An exchange that peers have, too, has the same number there, and numbers ascend in the order in
 * which ranks enqueue; the key of "ring exchange 7" or "node exchange 7" is 8, of others 0. */
static int32_t ring_schedule_joins(const memo_schedule* part, const memo_op* op) {
    const char *name = part->text + op->name, *number = strrchr(name, ' ');
    if (op->kind != MEMO_OP_RUN || !number) return 0;
    if (strncmp(name, "ring exchange ", 14) && strncmp(name, "node exchange ", 14)) return 0;
    return 1 + atoi(number);
}

/* A rank that a rank sends to in an exchange, or receives from. */
typedef struct ring_peer {
    int32_t key, peer, is_receive;
} ring_peer;

/* A rank's attention and links on paper. */
typedef struct ring_paper {
    memo_recorder* recorder;
    ring_costs costs;
    memo_message_call waiting[1024]; /* of a group */
    int32_t n_ranks;                 /* ring ranks of a node */
    int32_t place;                   /* of this rank in its node */
    ring_peer* peers;                /* in the order of enqueuing */
    int64_t n_peers, max_peers;
} ring_paper;

static memo_status ring_paper_add_peer(ring_paper* paper, ring_peer peer, memo_error* error) {
    for (int64_t i = paper->n_peers; i-- > 0 && paper->peers[i].key == peer.key;)
        if (!memcmp(&paper->peers[i], &peer, sizeof peer)) return MEMO_STATUS_OK;
    if (paper->n_peers == paper->max_peers) {
        const int64_t n = 2 * paper->max_peers + 64;
        ring_peer* more = (ring_peer*)realloc(paper->peers, (size_t)n * sizeof *more);
        if (!more) return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no memory");
        paper->peers = more;
        paper->max_peers = n;
    }
    paper->peers[paper->n_peers++] = peer;
    return MEMO_STATUS_OK;
}

/* An attention takes as long as its pairs, which the recorded operation does not have. */
static memo_status ring_paper_attend(const ring_paper* paper, const memo_attention_block* block,
                                     double s_per_score, memo_error* error) {
    memo_schedule* schedule = NULL;
    memo_status status = memo_recorder_get_schedule(paper->recorder, &schedule, error);
    if (!status && s_per_score > 0)
        schedule->ops[schedule->n_ops - 1].duration_s +=
            s_per_score * (double)block->n_batch * block->n_q_heads *
            count_pairs_of(block->segments.host, block->segments.n);
    return status;
}
static memo_status ring_paper_forward(void* user, memo_stream stream,
                                      const memo_attention_block* block, memo_error* error) {
    const ring_paper* paper = (const ring_paper*)user;
    (void)stream;
    return ring_paper_attend(paper, block, paper->costs.forward_s_per_score, error);
}
static memo_status ring_paper_backward(void* user, memo_stream stream,
                                       const memo_attention_block* block, memo_error* error) {
    const ring_paper* paper = (const ring_paper*)user;
    (void)stream;
    return ring_paper_attend(paper, block, paper->costs.backward_s_per_score, error);
}

static memo_status ring_paper_messages(memo_comm* comm, memo_stream stream,
                                       const memo_message_call* calls, int32_t n,
                                       memo_error* error) {
    ring_paper* paper = (ring_paper*)comm->context;
    const int is_of_nodes = !strcmp(comm->name, "nodes");
    const int32_t key = paper->n_ranks && comm->label.text ? 1 + (int32_t)comm->label.number : 0;
    memo_status status = MEMO_STATUS_OK;
    (void)stream;
    for (int32_t i = 0; i < n && key && !status; i++) {
        const int32_t rank =
            is_of_nodes ? calls[i].peer * paper->n_ranks + paper->place : calls[i].peer;
        const ring_peer peer = {key, rank, !calls[i].is_send};
        status = ring_paper_add_peer(paper, peer, error);
    }
    return status;
}
static memo_status ring_paper_collective(memo_comm* comm, memo_stream stream,
                                         const memo_collective_call* call, memo_error* error) {
    (void)comm, (void)stream, (void)call, (void)error;
    return MEMO_STATUS_OK;
}
static memo_status ring_paper_status(memo_comm* comm, memo_error* error) {
    (void)comm, (void)error;
    return MEMO_STATUS_OK;
}
static memo_comm ring_paper_comm(ring_paper* paper, int32_t rank, int32_t size) {
    memo_comm comm;
    memset(&comm, 0, sizeof comm);
    paper->n_ranks = 0; /* peers are not written down */
    comm.name = "paper";
    comm.context = paper;
    comm.rank = rank;
    comm.size = size;
    comm.messages = ring_paper_messages;
    comm.collective = ring_paper_collective;
    comm.status = ring_paper_status;
    comm.waiting = paper->waiting;
    comm.max_waiting = sizeof paper->waiting / sizeof *paper->waiting;
    return comm;
}

/* What is sent over a link takes its time. */
static void ring_paper_set_links(const ring_costs* costs, memo_schedule* schedule) {
    for (int64_t i = 0; i < schedule->n_ops; i++) {
        memo_op* op = &schedule->ops[i];
        const char* name = schedule->text + op->name;
        const int is_ulysses = strstr(name, " to heads") || strstr(name, " to rows");
        const int is_of_nodes = !strncmp(name, "node ", 5);
        const double rate = is_ulysses    ? costs->ulysses_bytes_per_s
                            : is_of_nodes ? costs->nodes_bytes_per_s
                                          : costs->ring_bytes_per_s;
        if (op->kind != MEMO_OP_RUN || (!is_ulysses && !ring_schedule_joins(schedule, op)))
            continue;
        op->duration_s = (is_ulysses    ? costs->ulysses_latency_s
                          : is_of_nodes ? costs->nodes_latency_s
                                        : costs->ring_latency_s) +
                         (rate > 0 ? (double)op->link_bytes / rate : 0);
    }
}

/* What one rank enqueues: the real engine, on paper.  desc: as for
 * memo_sp_attention_desc_get_sizes.  The recorder has the schedule. */
static memo_status ring_schedule_of_rank(const memo_sp_attention_desc* rank_desc, int32_t r,
                                         const memo_mask* masks, int is_backward,
                                         const ring_costs* costs, ring_paper* paper,
                                         memo_schedule** schedule, memo_error* error) {
    char* somewhere = (char*)(uintptr_t)((uint64_t)1 << 40); /* never accessed */
    memo_recorder_desc recorder_desc = MEMO_ZERO(memo_recorder_desc);
    memo_sp_attention_desc desc = *rank_desc;
    memo_exchange_desc exchange_desc = MEMO_ZERO(memo_exchange_desc);
    memo_sp_attention* attention = NULL;
    memo_exchange* exchange = NULL;
    memo_sp_attention_tensors t;
    memo_recorder* recorder;
    memo_comm ring, ulysses, nodes;
    memo_status status;
    int32_t n;
    if (costs) paper->costs = *costs;
    recorder_desc.on_paper = 1;
    status = memo_recorder_create(&recorder_desc, &paper->recorder, error);
    if (status) return status;
    recorder = paper->recorder;
    ulysses = ring_paper_comm(paper, desc.ulysses_rank, desc.sharding.ulysses);
    ulysses.context = calloc(1, sizeof *paper); /* its peers are not looked at */
    ring = ring_paper_comm(paper, r, desc.sharding.ring);
    desc.ring = &ring;
    desc.ulysses = &ulysses;
    n = desc.sharding.ring / (desc.n_nodes ? desc.n_nodes : 1);
    nodes = ring_paper_comm(paper, r / n, desc.n_nodes);
    nodes.name = "nodes";
    paper->n_ranks = n;
    paper->place = r % n;
    if (desc.n_nodes > 1) desc.nodes = &nodes;
    desc.device = memo_recorder_get_device(recorder);
    desc.attention.forward = ring_paper_forward;
    desc.attention.backward = ring_paper_backward;
    desc.attention.user = paper;
    desc.device_memory = somewhere + ((int64_t)1 << 40); /* apart from the tensors */
    memset(&t, 0, sizeof t);
    t.q = t.k = t.v = t.d_out = somewhere;
    t.out = t.saved = t.d_q = t.d_k = t.d_v = somewhere;
    t.lse = (float*)(void*)somewhere;
    status = memo_stream_create(desc.device, "compute", 0, &desc.stream, error);
    if (!status) status = memo_sp_attention_create(&desc, &attention, error);
    exchange_desc.masks = masks;
    if (!status) status = memo_exchange_create(attention, &exchange_desc, &exchange, error);
    if (!status)
        status = (is_backward ? memo_sp_attention_backward
                              : memo_sp_attention_forward)(attention, exchange, &t, error);
    memo_recorder_pause(recorder); /* the end of the engine is not part of the schedule */
    memo_exchange_destroy(exchange);
    memo_sp_attention_destroy(attention);
    free(((ring_paper*)ulysses.context)->peers);
    free(ulysses.context);
    if (!status) status = memo_recorder_get_schedule(recorder, schedule, error);
    if (!status && costs) ring_paper_set_links(costs, *schedule);
    return status;
}

/* Streams and events of rank r; those of one name are found again. */
static memo_status ring_schedule_begin(memo_schedule* all, const memo_schedule* part, int32_t r,
                                       int32_t* streams, int32_t* first_event, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    char name[48];
    int32_t event;
    for (int32_t i = 0; i < part->n_streams && !status; i++) {
        snprintf(name, sizeof name, "%s %d", part->text + part->streams[i], (int)r);
        for (streams[i] = 0; streams[i] < all->n_streams; streams[i]++)
            if (!strcmp(all->text + all->streams[streams[i]], name)) break;
        if (streams[i] == all->n_streams)
            status = memo_schedule_add_stream(all, name, &streams[i], error);
    }
    *first_event = all->n_events;
    for (int32_t i = 0; i < part->n_events && !status; i++)
        status = memo_schedule_add_event(all, &event, error);
    return status;
}

/* Appends op, without the bytes that it touches: ranks have memory of their own. */
static memo_status ring_schedule_add(memo_schedule* all, const memo_schedule* part,
                                     const memo_op* op, const int32_t* streams, int32_t first_event,
                                     memo_error* error) {
    memo_op_desc desc = MEMO_ZERO(memo_op_desc);
    if (op->kind == MEMO_OP_RECORD || op->kind == MEMO_OP_WAIT)
        return memo_schedule_add_order(all, op->kind, first_event + op->event, streams[op->stream],
                                       error);
    desc.name = part->text + op->name;
    desc.stream = streams[op->stream];
    desc.duration_s = op->duration_s;
    desc.link_bytes = op->link_bytes;
    return memo_schedule_add_op(all, &desc, error);
}

/* Appends to schedule forward (is_backward 0) or backward of all ring ranks: streams "compute 0",
 * "ring 0", ...  An exchange of a rank begins when its peers have begun theirs, and ends when what
 * they send has been sent. */
static memo_status ring_schedule(const memo_sp_attention_desc* desc, const memo_mask* masks,
                                 int is_backward, const ring_costs* costs, memo_schedule* schedule,
                                 memo_error* error) {
    const int32_t n = desc->sharding.ring;
    ring_paper* papers = (ring_paper*)calloc((size_t)n, sizeof *papers);
    memo_schedule* parts[RING_SCHEDULE_RANKS]; /* the recorders' */
    int32_t streams[RING_SCHEDULE_RANKS][8], first_event[RING_SCHEDULE_RANKS];
    int32_t events[2][RING_SCHEDULE_RANKS]; /* an exchange has begun; what it sends has left */
    int64_t at[RING_SCHEDULE_RANKS], at_peer[RING_SCHEDULE_RANKS];
    memo_status status =
        papers && n <= RING_SCHEDULE_RANKS
            ? MEMO_STATUS_OK
            : memo_error_set(error, MEMO_STATUS_INVALID_ARGUMENT, "%d ranks", (int)n);
    memset(at, 0, sizeof at);
    memset(at_peer, 0, sizeof at_peer);
    for (int32_t r = 0; r < n && !status; r++)
        status =
            ring_schedule_of_rank(desc, r, masks, is_backward, costs, &papers[r], &parts[r], error);
    for (int32_t r = 0; r < n && !status; r++) {
        status = ring_schedule_begin(schedule, parts[r], r, streams[r], &first_event[r], error);
        for (int k = 0; k < 2 && !status; k++)
            status = memo_schedule_add_event(schedule, &events[k][r], error);
    }

    while (!status) {
        int32_t next = INT32_MAX;
        /* Each rank up to its next exchange. */
        for (int32_t r = 0; r < n; r++)
            for (; at[r] < parts[r]->n_ops && !status; at[r]++) {
                const memo_op* op = &parts[r]->ops[at[r]];
                const int32_t joins = ring_schedule_joins(parts[r], op);
                if (joins && joins < next) next = joins;
                if (joins) break;
                status =
                    ring_schedule_add(schedule, parts[r], op, streams[r], first_event[r], error);
            }
        if (status || next == INT32_MAX) break;

        /* The exchange with the lowest number: ranks begin, send, and have received. */
        for (int phase = 0; phase < 3; phase++)
            for (int32_t r = 0; r < n && !status; r++) {
                const memo_op* op = &parts[r]->ops[at[r]];
                if (at[r] == parts[r]->n_ops || ring_schedule_joins(parts[r], op) != next) continue;
                for (int64_t k = at_peer[r];
                     k < papers[r].n_peers && papers[r].peers[k].key == next && !status && phase;
                     k++) {
                    const ring_peer* peer = &papers[r].peers[k];
                    if (phase == 1 || peer->is_receive)
                        status = memo_schedule_add_order(schedule, MEMO_OP_WAIT,
                                                         events[phase - 1][peer->peer],
                                                         streams[r][op->stream], error);
                }
                if (phase == 1 && !status)
                    status = ring_schedule_add(schedule, parts[r], op, streams[r], first_event[r],
                                               error);
                if (phase < 2 && !status)
                    status = memo_schedule_add_order(schedule, MEMO_OP_RECORD, events[phase][r],
                                                     streams[r][op->stream], error);
                at[r] += phase == 2;
                while (phase == 2 && at_peer[r] < papers[r].n_peers &&
                       papers[r].peers[at_peer[r]].key == next)
                    at_peer[r]++;
            }
    }
    for (int32_t r = 0; r < n && papers; r++) {
        memo_recorder_destroy(papers[r].recorder);
        free(papers[r].peers);
    }
    free(papers);
    return status;
}

#endif
