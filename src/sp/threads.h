#pragma once
#include "memo/host_device.h"
#include "sp/row_kernels.h"
/* ---- >>threads back end -------------------------------------------------------------------------
 * Knows: the host device, its counters and clock; of peers the device table.  Knows nothing of
 * attention, shardings or meshes.
 *
 * The caller's thread of a rank fills its messages and launches operations.  The stream that runs
 * an operation does the rest.  Ranks share four things:
 *
 *   way        from a sender to a receiver.  The sender posts a chain of messages; the receiver
 *              copies each, and leaves the way empty.  A waiting rank sleeps on its bell, and the
 *              other side rings it.  The bell is released and acquired, as ways are: who sees a
 *              ring sees the post or the empty way it announces.
 *   meeting    all ranks of a group arrive; none leaves before the last one has arrived.
 *   failure    the world keeps the first one.  A waiting rank checks it at least every
 *              MEMOI_THREADS_NAP_NS.
 *   is_busy    set while a rank uses memory of another rank (buffers, messages, a device).  A rank
 *              sets the flag, then checks for a failure.  A rank that gives up waits until all
 *              flags are clear.  So no buffer is touched after its operation has returned.
 *
 * 1. A message of the ring buffer is filled again only after it is done.
 * 2. A chain is posted on an empty way.
 * 3. No more ranks arrive at a meeting than the group has.
 * 4. Memory of another rank is read only while is_busy is set.
 *
 * Peers do the same in the calling thread: instead of copying, they enqueue a copy, and an event
 * goes with each post, each empty way and each meeting, for which the other side's stream waits.
 * The other side has enqueued the wait before the event is recorded again. */
#ifndef MEMO_NO_HOST_DEVICE

#ifndef MEMOI_THREADS_NAP_NS
#define MEMOI_THREADS_NAP_NS 10000000
#endif
#define MEMOI_THREADS_MESSAGES 4096 /* of a rank, enqueued and not done; a power of two */

typedef struct memoi_message {
    memo_message_call call;
    memo_label label;
    struct memoi_message* next; /* on the same way, in the same group */
    /* In the first message of a chain, used by the stream: the first that is not done; NULL: none.
     * NULL in others. */
    struct memoi_message* current;
} memoi_message;

/* From a rank to a peer. */
typedef struct memoi_way {
    /* The first posted message that is not copied: the receiver moves it on.  NULL: the sender may
     * post the next chain. */
    memoi_message* current;
    uint32_t n_messages; /* copied so far */
    memo_event copied;   /* peers: after the last copy of a chain; the receiver's */
    char apart[64];      /* so that two threads write different cache lines, here and below */
    /* The caller's: the last receive from the peer and the last send to the peer, in the group that
     * the caller fills. */
    memoi_message* last[2];
    char apart2[64]; /* the next way's peer writes it */
} memoi_way;

typedef struct memoi_meeting {
    uint32_t n_arrived;
    char apart[64];
    uint32_t complete; /* counter, set by the last rank to arrive */
} memoi_meeting;

/* A rank works on a stream, and for splits in the calling thread.  Each has its own meeting. */
enum { MEMOI_LANE_STREAM = 0, MEMOI_LANE_CALLER, MEMOI_N_LANES };

typedef struct memoi_threads_rank {
    memo_comm table;
    struct memoi_threads_group* group;
    memo_device* device;

    /* Used by the caller's thread: a ring buffer of messages.  Positions count in twos, as counters
     * do. */
    memoi_message* messages;
    uint32_t tail, seen_head;
    char apart1[64];
    /* Used by the stream. */
    const void** sources; /* what a reduction reads, by rank */
    uint32_t head;        /* counter of messages done */
    char apart2[64];

    /* Peers: the stream of a call, what cannot be enqueued; events of posts, and of meetings in
     * turn. */
    memo_stream stream;
    memo_error error;
    memo_event posted, met[2];
    uint32_t n_met;
    int32_t has_met; /* all ranks, once: their events exist */

    /* What the other ranks of its group see. */
    uint32_t bell; /* in steps of two; bit 0: this rank sleeps */
    int32_t is_busy[MEMOI_N_LANES];
    uint32_t arrived[MEMOI_N_LANES]; /* at meetings so far, times two */
    uint32_t n_collectives;          /* started; for error messages */
    int32_t is_gone;                 /* it has destroyed the communicator */
    /* Collectives use the two slots in turn: a rank may be one collective ahead of another that
     * still reads this slot.  It cannot be two ahead, because each collective begins with a
     * meeting. */
    memo_comm_op op[2];
    /* The current split. */
    int32_t color, key;
    memo_comm* part;
    char apart3[64];
} memoi_threads_rank;

typedef struct memoi_threads_world {
    memo_comm_threads_desc desc; /* without the caller's arrays */
    int32_t n_groups;            /* that use it */
    memob_failure failure;
} memoi_threads_world;

/* Lives until every rank has destroyed it. */
typedef struct memoi_threads_group {
    memoi_threads_world* world;
    char name[64];
    int32_t n_ranks, n_left; /* n_left: ranks that have not destroyed the group */
    int32_t* world_ranks;    /* by ranks of the group; NULL: the same */
    memob_arrays arrays;     /* all that follow, but messages */
    memoi_threads_rank* ranks;
    memoi_way* ways;         /* [sender * n_ranks + receiver] */
    const void** sources;    /* [rank * n_ranks + peer] */
    memoi_message* messages; /* [rank * MEMOI_THREADS_MESSAGES + number]; then as many calls */
    memoi_meeting meetings[MEMOI_N_LANES];
} memoi_threads_group;

/* --- failures --- */

/* Fails the world of a rank. */
#define MEMOI_THREADS_FAIL(me, ...)                                                                \
    memob_failure_keep(&(me)->group->world->failure, MEMO_STATUS_COMM, __VA_ARGS__)

MEMOI int memoi_threads_has_failed(const memoi_threads_rank* me) {
    return memob_failure_is_kept(&me->group->world->failure);
}

MEMOI memo_status memoi_threads_status(memo_comm* comm, memo_error* error) {
    const memoi_threads_rank* me = (const memoi_threads_rank*)comm->context;
    return memob_failure_status(&me->group->world->failure, error);
}

MEMOI const char* memoi_threads_rank_text(char text[MEMO_RANK_TEXT], const memoi_threads_rank* me,
                                          int32_t rank) {
    const int32_t* world_ranks = me->group->world_ranks;
    return memo_comm_rank_text(text, rank, world_ranks ? world_ranks[rank] : -1, NULL);
}

MEMOI void memoi_threads_abort(memo_comm* comm) {
    memoi_threads_rank* me = (memoi_threads_rank*)comm->context;
    char text[MEMO_RANK_TEXT];
    MEMOI_THREADS_FAIL(me, "rank %s of '%s' aborted it",
                       memoi_threads_rank_text(text, me, comm->rank), comm->name);
}

MEMOI void memoi_threads_end_work(memoi_threads_rank* me, int lane) {
    __atomic_store_n(&me->is_busy[lane], 0, __ATOMIC_RELEASE);
}

/* Returns 0, with the flag clear, if the world has failed. */
MEMOI int memoi_threads_begin_work(memoi_threads_rank* me, int lane) {
    __atomic_store_n(&me->is_busy[lane], 1, __ATOMIC_SEQ_CST);
    if (!memoi_threads_has_failed(me)) return 1;
    memoi_threads_end_work(me, lane);
    return 0;
}

/* Afterwards no rank of the group uses this rank's memory any more. */
MEMOI void memoi_threads_await_idle(memoi_threads_group* group) {
    for (int32_t r = 0; r < group->n_ranks; r++)
        for (int lane = 0; lane < MEMOI_N_LANES; lane++)
            while (__atomic_load_n(&group->ranks[r].is_busy[lane], __ATOMIC_SEQ_CST))
                memob_sleep_until(memob_now_ns() + 50000);
}

/* Afterwards no peer's stream reads this rank's buffers any more.  This rank's stream may not wait
 * for peers, because its device may have failed.  A rank that is gone has synchronized its
 * streams. */
MEMOI void memoi_threads_await_copies(memoi_threads_rank* me) {
    memoi_way* ways = me->group->ways + (int64_t)me->table.rank * me->table.size;
    __atomic_store_n(&me->is_busy[MEMOI_LANE_CALLER], 1, __ATOMIC_SEQ_CST);
    for (int32_t r = 0; r < me->table.size; r++) {
        const memoi_threads_rank* peer = &me->group->ranks[r];
        const int has_taken = !__atomic_load_n(&ways[r].current, __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&peer->is_gone, __ATOMIC_SEQ_CST)) continue;
        if (has_taken) MEMOB_IGNORE(memo_event_synchronize(peer->device, ways[r].copied, NULL));
        for (int turn = 0; turn < 2 && me->has_met; turn++)
            MEMOB_IGNORE(memo_event_synchronize(peer->device, peer->met[turn], NULL));
    }
    memoi_threads_end_work(me, MEMOI_LANE_CALLER);
}

MEMOI memo_status memoi_threads_give_up(memoi_threads_rank* me, memo_error* error) {
    if (me->posted) { /* the flag of memoi_threads_launch */
        MEMOB_IGNORE(memo_stream_synchronize(me->device, me->stream, NULL));
        memoi_threads_end_work(me, MEMOI_LANE_CALLER);
    }
    memoi_threads_await_idle(me->group);
    if (me->posted) memoi_threads_await_copies(me);
    return memoi_threads_status(&me->table, error);
}

/* --- waiting --- */

MEMOI void memoi_threads_ring(memoi_threads_rank* peer) {
    memob_counter_wake(&peer->bell, __atomic_fetch_add(&peer->bell, 2, __ATOMIC_RELEASE));
}

typedef struct memoi_threads_patience {
    int64_t n_tries;
    int64_t since_ns; /* when it first ran out of tries; 0: not yet */
    int64_t looked_ns;
} memoi_threads_patience;

/* For each time there is nothing to do.  Spins a little, then sleeps until *word is not value.
 * Returns 1 when it is time to check the ranks that this rank waits for, 2 when those ranks are
 * late. */
MEMOI int memoi_threads_rest(const memoi_threads_rank* me, memoi_threads_patience* patience,
                             uint32_t* word, uint32_t value) {
    int64_t now_ns;
    if (patience->n_tries++ < MEMOB_SPINS) {
        memob_spin_pause();
        return 0;
    }
    memob_counter_sleep(word, value, MEMOI_THREADS_NAP_NS);
    now_ns = memob_now_ns();
    if (!patience->since_ns) patience->since_ns = patience->looked_ns = now_ns;
    if (now_ns - patience->looked_ns < MEMOI_THREADS_NAP_NS / 2) return 0;
    patience->looked_ns = now_ns;
    return 1 + ((double)(now_ns - patience->since_ns) > me->group->world->desc.timeout_s * 1e9);
}

MEMOI memoi_way* memoi_threads_way(const memoi_threads_rank* me, const memo_message_call* message) {
    int64_t from = message->is_send ? me->table.rank : message->peer;
    int64_t to = message->is_send ? message->peer : me->table.rank;
    return &me->group->ways[from * me->group->n_ranks + to];
}

/* A function, for compilers warn of an atomic load in an assertion that is off. */
MEMOI int memoi_threads_is_taken(const memoi_way* way) {
    return __atomic_load_n(&way->current, __ATOMIC_RELAXED) != NULL;
}

/* For a sender: is the way empty?  For a receiver: is a message there?  Acquires before it returns
 * 1. */
MEMOI int memoi_threads_is_ready(const memoi_way* way, int is_send) {
    if (memoi_threads_is_taken(way) == is_send) return 0;
    (void)__atomic_load_n(&way->current, __ATOMIC_ACQUIRE);
    return 1;
}

/* Has a peer done its part of a message; or, without a message, arrived at the meeting of the lane?
 * Acquires before it returns 1. */
MEMOI int memoi_threads_has_come(const memoi_threads_rank* me, int lane, int32_t peer,
                                 const memo_message_call* message) {
    return message
               ? memoi_threads_is_ready(memoi_threads_way(me, message), message->is_send)
               : memob_counter_reached(&me->group->ranks[peer].arrived[lane], me->arrived[lane]);
}

/* Fails the world if the peer has not come to a message, or to the meeting of a call, and never
 * will or is late. */
MEMOI void memoi_threads_look_for(memoi_threads_rank* me, int lane, int32_t peer,
                                  const memo_message_call* message, const char* call, int is_late) {
    const int is_send = message && message->is_send;
    memoi_threads_rank* there = &me->group->ranks[peer];
    memo_error error;
    char reason[512], what[MEMO_RANK_TEXT + 96];
    char started[MEMO_RANK_TEXT + 80] = "", own[MEMO_RANK_TEXT], other[MEMO_RANK_TEXT];
    const char* rank = memoi_threads_rank_text(own, me, me->table.rank);
    int is_gone = 0, has_failed = 0;
    if (memoi_threads_has_come(me, lane, peer, message)) return;
    snprintf(reason, sizeof reason, "within %g s", me->group->world->desc.timeout_s);

    /* Has the rank left, or its device failed? */
    if (there != me && memoi_threads_begin_work(me, lane)) {
        is_gone = __atomic_load_n(&there->is_gone, __ATOMIC_SEQ_CST);
        has_failed = !is_gone && memo_device_status(there->device, &error);
        memoi_threads_end_work(me, lane);
    }
    if (is_gone) snprintf(reason, 512, "and is lost: it has destroyed its communicator");
    if (has_failed) snprintf(reason, 512, "and is lost: its device failed: %.400s", error.message);
    /* Check again: the rank may have come, and left, before it was lost. */
    if ((!is_gone && !has_failed && !is_late) || memoi_threads_has_come(me, lane, peer, message))
        return;

    if (message) {
        snprintf(what, sizeof what, "%s %lld %s that rank %s %s", is_send ? "receive" : "send",
                 (long long)message->count, memo_type_name(message->type), rank,
                 is_send ? "sends" : "receives");
    } else { /* numbers of collectives say nothing of messages */
        snprintf(what, sizeof what, "arrive at %s", call);
        snprintf(started, sizeof started, "; it has started %u collectives, rank %s has started %u",
                 __atomic_load_n(&there->n_collectives, __ATOMIC_RELAXED), rank,
                 __atomic_load_n(&me->n_collectives, __ATOMIC_RELAXED));
    }
    MEMOI_THREADS_FAIL(me, "rank %s of '%s' did not %s %.450s%s",
                       memoi_threads_rank_text(other, me, peer), me->table.name, what, reason,
                       started);
}

/* Meets the other ranks in a call.  Returns 0 if the world has failed. */
MEMOI int memoi_threads_meet(memoi_threads_rank* me, int lane, const char* call) {
    memoi_threads_group* group = me->group;
    memoi_meeting* meeting = &group->meetings[lane];
    memoi_threads_patience patience = {0, 0, 0};
    uint32_t target = me->arrived[lane] + 2, n_arrived;
    __atomic_store_n(&me->arrived[lane], target, __ATOMIC_RELEASE);
    n_arrived = __atomic_add_fetch(&meeting->n_arrived, 1, __ATOMIC_ACQ_REL);
    MEMO_ASSERT(n_arrived <= (uint32_t)group->n_ranks); /* 3 */
    if (n_arrived == (uint32_t)group->n_ranks) {
        __atomic_store_n(&meeting->n_arrived, 0, __ATOMIC_RELAXED);
        memob_counter_set(&meeting->complete, target);
        return 1;
    }
    while (!memob_counter_reached(&meeting->complete, target)) {
        uint32_t value = __atomic_load_n(&meeting->complete, __ATOMIC_RELAXED);
        int looks;
        if (memob_counter_is_past(value, target)) continue;
        looks = memoi_threads_rest(me, &patience, &meeting->complete, value);
        if (looks && memoi_threads_has_failed(me)) return 0;
        for (int32_t r = 0; r < group->n_ranks && looks; r++)
            memoi_threads_look_for(me, lane, r, NULL, call, looks > 1);
    }
    return 1;
}

/* When a transfer begins; 0 without a simulated link, which needs no clock. */
MEMOI int64_t memoi_threads_start(const memoi_threads_rank* me) {
    return me->group->world->desc.bytes_per_s > 0 ? memob_now_ns() : 0;
}

/* Sleeps until the simulated link has moved n_bytes, from start_ns on.  Returns 0 if the world
 * fails meanwhile. */
MEMOI int memoi_threads_sleep(memoi_threads_rank* me, int64_t start_ns, int64_t n_bytes) {
    const double rate = me->group->world->desc.bytes_per_s;
    const int64_t due_ns = start_ns ? start_ns + (int64_t)((double)n_bytes / rate * 1e9) : 0;
    int64_t now_ns;
    while (due_ns && (now_ns = memob_now_ns()) < due_ns) {
        if (memoi_threads_has_failed(me)) return 0;
        memob_sleep_until(memob_min(due_ns, now_ns + MEMOI_THREADS_NAP_NS));
    }
    return 1;
}

/* --- sends and receives, on the stream --- */

typedef struct memoi_threads_group_args {
    memoi_threads_rank* me;
    uint32_t begin, end; /* positions of its messages */
} memoi_threads_group_args;

MEMOI memoi_message* memoi_threads_message(const memoi_threads_rank* me, uint32_t position) {
    return &me->messages[position / 2 % MEMOI_THREADS_MESSAGES];
}

/* Fails the world: two ranks call different things. */
MEMOI void memoi_threads_mismatch(memoi_threads_rank* me, int64_t number, int is_message,
                                  memo_comm_op a, int32_t a_rank, memo_comm_op b, int32_t b_rank) {
    char a_text[MEMO_RANK_TEXT], b_text[MEMO_RANK_TEXT], text[MEMO_MISMATCH_TEXT];
    a.rank = memoi_threads_rank_text(a_text, me, a_rank);
    b.rank = memoi_threads_rank_text(b_text, me, b_rank);
    MEMOI_THREADS_FAIL(me, "%s",
                       memo_comm_mismatch(text, me->table.name, number, is_message, &a, &b));
}
MEMOI memo_comm_op memoi_threads_op_of(const memoi_message* message) {
    memo_comm_op op = MEMO_ZERO(memo_comm_op);
    op.call.type = message->call.type;
    op.call.count = message->call.count;
    op.label = message->label;
    return op;
}

/* What a peer could not enqueue (me->error) fails the world. */
MEMOI void memoi_threads_enqueued(memoi_threads_rank* me, memo_status status) {
    if (status)
        MEMOI_THREADS_FAIL(me, "rank %d of '%s' cannot enqueue: %.400s", (int)me->table.rank,
                           me->table.name, me->error.message);
}
MEMOI void memoi_threads_record(memoi_threads_rank* me, memo_event event) {
    if (!me->posted) return;
    memoi_threads_enqueued(me, memo_event_record(me->device, event, me->stream, &me->error));
}
/* For an event of another rank. */
MEMOI void memoi_threads_await(memoi_threads_rank* me, memo_event event) {
    if (!me->posted) return;
    memoi_threads_enqueued(me, memo_event_wait(me->device, event, me->stream, &me->error));
}

MEMOI void memoi_threads_copy(memoi_threads_rank* me, void* to, const void* from, int64_t n_bytes) {
    if (!n_bytes || to == from) return;
    MEMO_ASSERT(me->is_busy[MEMOI_LANE_STREAM]); /* 4 */
    if (me->posted)
        memoi_threads_enqueued(me, memo_copy(me->device, me->stream, MEMO_COPY_ON_DEVICE, to, from,
                                             n_bytes, &me->error));
    else
        memcpy(to, from, (size_t)n_bytes);
}

/* to = elements [begin, begin + count) of the sources of all ranks, reduced. */
MEMOI void memoi_threads_reduce(memoi_threads_rank* me, const memo_collective_call* call, char* to,
                                int64_t begin, int64_t count) {
    memo_reduce_desc desc = {to, {NULL}, me->table.size, call->type, call->reduction, count};
    if (!me->posted) {
        memo_comm_reduce(to, me->sources, me->table.size, begin, begin + count, call->type,
                         call->reduction);
        return;
    }
    for (int32_t r = 0; r < me->table.size; r++)
        desc.from[r] = (const char*)me->sources[r] + begin * memo_type_bytes(call->type);
    memoi_threads_enqueued(me, memo_row_reduce(me->device, me->stream, &desc, &me->error));
}

/* Copies the next message of the way, if there is a message; a send is done when its way is empty.
 * Returns 1 if the message is done, 0 if nothing is posted yet, -1 if the world has failed. */
MEMOI int memoi_threads_try(memoi_threads_rank* me, const memoi_message* message) {
    memoi_threads_group* group = me->group;
    const int32_t peer = message->call.peer;
    memoi_way* way = memoi_threads_way(me, &message->call);
    const memoi_message* sent;
    memoi_message* next;
    int64_t n_bytes, start_ns;
    int is_same;
    if (!memoi_threads_is_ready(way, message->call.is_send)) return 0;
    if (message->call.is_send) {
        memoi_threads_await(me, way->copied);
        return 1;
    }
    start_ns = memoi_threads_start(me);

    /* Copy while is_busy is set: the sender's memory must not go away. */
    if (!memoi_threads_begin_work(me, MEMOI_LANE_STREAM)) return -1;
    sent = way->current;
    next = sent->next;
    n_bytes = sent->call.count * memo_type_bytes(sent->call.type);
    is_same = sent->call.count == message->call.count && sent->call.type == message->call.type &&
              memoi_comm_labels_match(&sent->label, &message->label);
    if (!is_same) {
        memoi_threads_mismatch(me, way->n_messages, 1, memoi_threads_op_of(sent), peer,
                               memoi_threads_op_of(message), me->table.rank);
    } else {
        if (sent->current) memoi_threads_await(me, group->ranks[peer].posted); /* a chain's first */
        memoi_threads_copy(me, message->call.address, sent->call.address, n_bytes);
        if (!next) memoi_threads_record(me, way->copied);
    }
    memoi_threads_end_work(me, MEMOI_LANE_STREAM);
    if (!is_same || (me->posted && memoi_threads_has_failed(me))) return -1;
    way->n_messages++;

    if (peer != me->table.rank && !memoi_threads_sleep(me, start_ns, n_bytes)) return -1;
    __atomic_store_n(&way->current, next, __ATOMIC_RELEASE);
    if (!next) memoi_threads_ring(&group->ranks[peer]);
    return 1;
}

/* One attempt at every chain of messages.  Returns 1 if something moved, 0 if not, -1 if the world
 * has failed. *n_left: chains that are not done. */
MEMOI int memoi_threads_try_group(const memoi_threads_group_args* run, int* n_left) {
    int has_moved = 0;
    *n_left = 0;
    for (uint32_t position = run->begin; position != run->end; position += 2) {
        memoi_message** current = &memoi_threads_message(run->me, position)->current;
        int result = 1;
        while (*current && (result = memoi_threads_try(run->me, *current)) > 0) {
            *current = (*current)->call.is_send ? NULL : (*current)->next; /* sent as a whole */
            has_moved = 1;
        }
        if (result < 0) return -1;
        *n_left += *current != NULL;
    }
    return has_moved;
}

/* Runs whatever is ready, in any order.  So no message waits for one that was enqueued after it. */
MEMOI memo_status memoi_threads_run_group(void* args, memo_error* error) {
    const memoi_threads_group_args* run = (const memoi_threads_group_args*)args;
    memoi_threads_rank* me = run->me;
    memoi_threads_patience patience = {0, 0, 0};
    int n_left = 1;
    memoi_threads_record(me, me->posted);
    if (memoi_threads_has_failed(me)) return memoi_threads_status(&me->table, error);
    for (uint32_t position = run->begin; position != run->end; position += 2) {
        memoi_message* message = memoi_threads_message(me, position);
        memoi_way* way = memoi_threads_way(me, &message->call);
        if (!message->current || !message->call.is_send) continue;
        MEMO_ASSERT(!memoi_threads_is_taken(way)); /* 2 */
        __atomic_store_n(&way->current, message, __ATOMIC_RELEASE);
        memoi_threads_ring(&me->group->ranks[message->call.peer]);
    }

    while (n_left) {
        /* Read the bell before the attempt: a ring during it ends the rest at once. */
        uint32_t bell = __atomic_fetch_and(&me->bell, ~1u, __ATOMIC_ACQUIRE) & ~1u;
        int looks, has_moved = memoi_threads_try_group(run, &n_left);
        if (has_moved < 0) return memoi_threads_give_up(me, error);
        if (has_moved) memset(&patience, 0, sizeof patience);
        if (has_moved || !n_left) continue;
        looks = memoi_threads_rest(me, &patience, &me->bell, bell);
        for (uint32_t position = run->begin; position != run->end && looks; position += 2) {
            const memoi_message* message = memoi_threads_message(me, position)->current;
            if (message)
                memoi_threads_look_for(me, MEMOI_LANE_STREAM, message->call.peer, &message->call,
                                       NULL, looks > 1);
        }
        if (looks && memoi_threads_has_failed(me)) return memoi_threads_give_up(me, error);
    }
    memob_counter_set(&me->head, run->end);
    return me->posted && memoi_threads_has_failed(me) ? memoi_threads_give_up(me, error)
                                                      : MEMO_STATUS_OK;
}

/* --- collectives, on the stream --- */

typedef struct memoi_threads_collective_args {
    memoi_threads_rank* me;
    memo_comm_op op;
} memoi_threads_collective_args;

/* Stage 0 runs when all ranks have arrived.  Stage 1 runs when all ranks have done stage 0: in an
 * all_reduce each rank has reduced its share, and copies the shares of its peers. */
MEMOI void memoi_threads_work(memoi_threads_rank* me, const memo_collective_call* call, int turn,
                              int stage) {
    const memoi_threads_rank* ranks = me->group->ranks;
    const int64_t bytes = memo_type_bytes(call->type), part_bytes = call->count * bytes;
    int32_t n = me->table.size, rank = me->table.rank;
    memo_share share = memo_share_of(call->count, n, rank);
    char* to = (char*)call->to;
    if (!part_bytes) return;
    for (int32_t r = 0; r < n; r++)
        me->sources[r] = stage ? ranks[r].op[turn].call.to : ranks[r].op[turn].call.from;

    switch (call->kind) {
    case MEMO_COLLECTIVE_ALL_REDUCE:
        if (!stage)
            memoi_threads_reduce(me, call, to + share.begin * bytes, share.begin, share.count);
        for (int32_t r = 0; r < n && stage; r++) {
            share = memo_share_of(call->count, n, r);
            memoi_threads_copy(me, to + share.begin * bytes,
                               (const char*)me->sources[r] + share.begin * bytes,
                               share.count * bytes);
        }
        break;
    case MEMO_COLLECTIVE_ALL_GATHER:
        for (int32_t r = 0; r < n; r++)
            memoi_threads_copy(me, to + r * part_bytes, me->sources[r], part_bytes);
        break;
    case MEMO_COLLECTIVE_REDUCE_SCATTER:
        memoi_threads_reduce(me, call, to, rank * call->count, call->count);
        break;
    case MEMO_COLLECTIVE_BROADCAST:
        memoi_threads_copy(me, to, me->sources[call->root], part_bytes);
        break;
    case MEMO_COLLECTIVE_BARRIER:
    case MEMO_N_COLLECTIVES: break;
    }
}

/* The ranks of a collective meet, and of peers the streams, too.  Returns 0 if the world has
 * failed. */
MEMOI int memoi_threads_meet_all(memoi_threads_rank* me, const char* name) {
    const memoi_threads_rank* ranks = me->group->ranks;
    const int turn = (int)(++me->n_met & 1);
    memoi_threads_record(me, me->met[turn]);
    if (!memoi_threads_meet(me, MEMOI_LANE_STREAM, name)) return 0;
    me->has_met = 1;
    if (!me->posted) return 1;
    for (int32_t r = 0; r < me->table.size; r++)
        if (&ranks[r] != me) memoi_threads_await(me, ranks[r].met[turn]);
    return !memoi_threads_has_failed(me);
}

/* Returns 0 if the world has failed. */
MEMOI int memoi_threads_collect(memoi_threads_rank* me, const memo_comm_op* op) {
    const memo_collective_call* call = &op->call;
    const char* name = memoi_comm_collective_name(call->kind);
    const int turn = (int)(me->n_collectives & 1);
    int n_stages = call->kind == MEMO_COLLECTIVE_ALL_REDUCE ? 2 : 1;
    int64_t start_ns;

    /* Show the call, and compare when all ranks have arrived. */
    me->op[turn] = *op;
    if (!memoi_threads_meet_all(me, name)) return 0;
    for (int32_t r = 1; r < me->table.size; r++) { /* with rank 0: all find the same difference */
        const memo_comm_op *a = &me->group->ranks[0].op[turn], *b = &me->group->ranks[r].op[turn];
        if (memoi_comm_calls_match(&a->call, &a->label, &b->call, &b->label)) continue;
        memoi_threads_mismatch(me, me->n_collectives, 0, *a, 0, *b, r);
        return 0;
    }

    start_ns = memoi_threads_start(me);
    for (int stage = 0; stage < n_stages; stage++) {
        if (!memoi_threads_begin_work(me, MEMOI_LANE_STREAM)) return 0;
        memoi_threads_work(me, call, turn, stage);
        memoi_threads_end_work(me, MEMOI_LANE_STREAM);
        if (stage == n_stages - 1 &&
            !memoi_threads_sleep(me, start_ns, memoi_comm_bytes(&me->table, call)))
            return 0;
        /* No rank goes on while peers read its buffers. */
        if (call->kind != MEMO_COLLECTIVE_BARRIER && !memoi_threads_meet_all(me, name)) return 0;
    }
    return 1;
}

MEMOI memo_status memoi_threads_run_collective(void* args, memo_error* error) {
    const memoi_threads_collective_args* run = (const memoi_threads_collective_args*)args;
    memoi_threads_rank* me = run->me;
    if (memoi_threads_has_failed(me)) return memoi_threads_status(&me->table, error);
    __atomic_store_n(&me->n_collectives, me->n_collectives + 1, __ATOMIC_RELAXED);
    return memoi_threads_collect(me, &run->op) ? MEMO_STATUS_OK : memoi_threads_give_up(me, error);
}

/* --- in the caller's thread --- */

/* Waits until n messages of the ring buffer are free. */
MEMOI memo_status memoi_threads_make_room(memoi_threads_rank* me, int32_t n, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    while (!status && me->tail - me->seen_head + 2 * (uint32_t)n > 2 * MEMOI_THREADS_MESSAGES) {
        uint32_t value = __atomic_load_n(&me->head, __ATOMIC_RELAXED);
        if (memob_counter_reached(&me->head, me->seen_head + 2)) {
            me->seen_head = __atomic_load_n(&me->head, __ATOMIC_ACQUIRE) & ~1u;
            continue;
        }
        status = memo_device_status(me->device, error);
        if (!status) status = memoi_threads_status(&me->table, error);
        if (!status && !memob_counter_is_past(value, me->seen_head + 2))
            memob_counter_sleep(&me->head, value, MEMOI_THREADS_NAP_NS);
    }
    return status;
}

/* Runs an operation on a stream.  Peers run the operation here, where it enqueues.  No rank
 * destroys its events meanwhile. */
MEMOI memo_status memoi_threads_launch(memoi_threads_rank* me, memo_stream stream,
                                       memo_host_function function, void* args, int64_t args_bytes,
                                       memo_error* error) {
    memo_status status;
    if (!me->posted)
        return memo_host_device_launch(me->device, stream, function, args, args_bytes, error);
    me->stream = stream;
    if (!memoi_threads_begin_work(me, MEMOI_LANE_CALLER)) return memoi_threads_give_up(me, error);
    status = function(args, error);
    memoi_threads_end_work(me, MEMOI_LANE_CALLER);
    return status;
}

MEMOI memo_status memoi_threads_messages(memo_comm* comm, memo_stream stream,
                                         const memo_message_call* calls, int32_t n,
                                         memo_error* error) {
    memoi_threads_rank* me = (memoi_threads_rank*)comm->context;
    memoi_way* ways = me->group->ways + (int64_t)comm->rank * comm->size;
    memoi_threads_group_args args = {me, me->tail, me->tail};
    memo_status status = memoi_threads_make_room(me, n, error);
    if (status || !n) return status;

    /* Each message follows the last message on its way. */
    MEMO_ASSERT(me->tail - me->seen_head <= 2 * (uint32_t)(MEMOI_THREADS_MESSAGES - n)); /* 1 */
    for (int32_t i = 0; i < comm->size; i++) ways[i].last[0] = ways[i].last[1] = NULL;
    for (int32_t i = 0; i < n; i++, args.end += 2) {
        memoi_message** last = &ways[calls[i].peer].last[calls[i].is_send];
        memoi_message* message = memoi_threads_message(me, args.end);
        memset(message, 0, sizeof *message);
        message->call = calls[i];
        message->label = comm->label;
        if (*last)
            (*last)->next = message;
        else
            message->current = message;
        *last = message;
    }
    status = memoi_threads_launch(me, stream, memoi_threads_run_group, &args, sizeof args, error);
    if (!status) me->tail = args.end;
    return status;
}

MEMOI memo_status memoi_threads_collective(memo_comm* comm, memo_stream stream,
                                           const memo_collective_call* call, memo_error* error) {
    memoi_threads_rank* me = (memoi_threads_rank*)comm->context;
    memoi_threads_collective_args args = {me, {NULL, *call, comm->label}};
    const memo_status status = memoi_threads_status(comm, error);
    if (status) return me->posted ? memoi_threads_give_up(me, error) : status;
    return memoi_threads_launch(me, stream, memoi_threads_run_collective, &args, sizeof args,
                                error);
}

/* --- making, splitting and destroying --- */

MEMOI void memoi_threads_group_free(memoi_threads_group* group) {
    memob_arrays_free(&group->arrays);
    MEMO_FREE(group->messages);
    MEMO_FREE(group);
}

/* Event i of the n + 3 of a peer. */
MEMOI memo_event* memoi_threads_event(memoi_threads_rank* me, int32_t i) {
    memo_event* const own[] = {&me->met[0], &me->met[1], &me->posted};
    const int32_t n = me->table.size;
    return i < n ? &me->group->ways[(int64_t)i * n + me->table.rank].copied : own[i - n];
}

/* In the thread of the rank.  Without a peer's event "posted" nothing is enqueued. */
MEMOI memo_status memoi_threads_open(memoi_threads_rank* me, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    for (int32_t i = 0; i < me->table.size + 3 && me->group->world->desc.are_peers && !status; i++)
        status = memo_event_create_untimed(me->device, memoi_threads_event(me, i), error);
    return status;
}

MEMOI void memoi_threads_destroy(memo_comm* comm) {
    memoi_threads_rank* me = (memoi_threads_rank*)comm->context;
    memoi_threads_group* group = me->group;
    memoi_threads_world* world = group->world;
    __atomic_store_n(&me->is_gone, 1, __ATOMIC_SEQ_CST);
    memoi_threads_await_idle(group);
    for (int32_t i = 0; i < comm->size + 3 && world->desc.are_peers; i++)
        if (*memoi_threads_event(me, i))
            (void)memo_event_destroy(me->device, *memoi_threads_event(me, i), NULL);
    if (__atomic_sub_fetch(&group->n_left, 1, __ATOMIC_ACQ_REL)) return;
    memoi_threads_group_free(group);
    if (__atomic_sub_fetch(&world->n_groups, 1, __ATOMIC_ACQ_REL) == 0) MEMO_FREE(world);
}

/* A group whose ranks do not sit yet.  Returns NULL if there is no memory. */
MEMOI memoi_threads_group* memoi_threads_group_create(memoi_threads_world* world,
                                                      const char* prefix, const char* name,
                                                      int32_t n_ranks) {
    memoi_threads_group* group = (memoi_threads_group*)memob_calloc(1, sizeof *group);
    const int64_t n_pairs = (int64_t)n_ranks * n_ranks;
    const size_t n_messages = (size_t)n_ranks * MEMOI_THREADS_MESSAGES;
    if (!group) return NULL;
    group->world = world;
    group->n_ranks = group->n_left = n_ranks;
    snprintf(group->name, sizeof group->name, "%s%s", prefix, name);
    group->ranks = MEMOB_ARRAY(&group->arrays, memoi_threads_rank, n_ranks);
    group->ways = MEMOB_ARRAY(&group->arrays, memoi_way, n_pairs);
    group->sources = MEMOB_ARRAY(&group->arrays, const void*, n_pairs);
    /* Not zeroed, so that unused messages never touch their pages. */
    group->messages = (memoi_message*)MEMO_MALLOC(
        n_messages * (sizeof(memoi_message) + sizeof(memo_message_call)));
    if (group->arrays.failed || !group->messages) {
        memoi_threads_group_free(group);
        return NULL;
    }
    __atomic_fetch_add(&world->n_groups, 1, __ATOMIC_RELAXED);
    return group;
}

MEMOI memo_status memoi_threads_split(memo_comm* comm, int32_t color, int32_t key, const char* name,
                                      memo_comm** part, memo_error* error);

/* Makes a rank of the group from one of the world. */
MEMOI memo_comm* memoi_threads_sit(memoi_threads_group* group, int32_t rank, memo_device* device) {
    const int64_t first_message = (int64_t)rank * MEMOI_THREADS_MESSAGES;
    memoi_threads_rank* me = &group->ranks[rank];
    memo_comm* table = &me->table;
    me->group = group;
    me->device = device;
    me->messages = group->messages + first_message;
    me->sources = group->sources + (int64_t)rank * group->n_ranks;
    table->name = group->name;
    table->context = me;
    table->rank = rank;
    table->size = group->n_ranks;
    table->split = memoi_threads_split;
    table->destroy = memoi_threads_destroy;
    table->messages = memoi_threads_messages;
    table->waiting =
        (memo_message_call*)(group->messages + (int64_t)group->n_ranks * MEMOI_THREADS_MESSAGES) +
        first_message;
    table->max_waiting = MEMOI_THREADS_MESSAGES;
    table->collective = memoi_threads_collective;
    table->abort = memoi_threads_abort;
    table->status = memoi_threads_status;
    return table;
}

/* The rank that a rank will be in the new group of its color.  *n: that group's ranks. */
MEMOI int32_t memoi_threads_place(const memoi_threads_group* group, int32_t rank, int32_t* n) {
    const memoi_threads_rank *ranks = group->ranks, *me = &ranks[rank];
    int32_t r, place = 0;
    for (*n = r = 0; r < group->n_ranks; r++) {
        if (ranks[r].color != me->color) continue;
        place += ranks[r].key < me->key || (ranks[r].key == me->key && r < rank);
        ++*n;
    }
    return place;
}

MEMOI memo_status memoi_threads_split(memo_comm* comm, int32_t color, int32_t key, const char* name,
                                      memo_comm** part, memo_error* error) {
    memoi_threads_rank* me = (memoi_threads_rank*)comm->context;
    memoi_threads_group *group = me->group, *made;
    memo_status status = memoi_threads_status(comm, error);
    int32_t n;
    *part = NULL;
    if (status) return status;

    /* Show color and key. */
    me->color = color;
    me->key = key;
    me->part = NULL;
    if (!memoi_threads_meet(me, MEMOI_LANE_CALLER, "split"))
        return memoi_threads_give_up(me, error);

    /* The first rank of a new group creates the group for all its ranks.  Without memory no rank
     * gets a part. */
    if (color >= 0 && memoi_threads_place(group, comm->rank, &n) == 0 &&
        memoi_threads_begin_work(me, MEMOI_LANE_CALLER)) {
        made = memoi_threads_group_create(group->world, "threads ", name ? name : "part", n);
        if (made) made->world_ranks = MEMOB_ARRAY(&made->arrays, int32_t, n);
        for (int32_t r = 0; r < group->n_ranks && made; r++) {
            memoi_threads_rank* from = &group->ranks[r];
            const int32_t place = memoi_threads_place(group, r, &n);
            if (from->color != color) continue;
            if (made->world_ranks)
                made->world_ranks[place] = group->world_ranks ? group->world_ranks[r] : r;
            from->part = memoi_threads_sit(made, place, from->device);
        }
        memoi_threads_end_work(me, MEMOI_LANE_CALLER);
    }
    if (!memoi_threads_meet(me, MEMOI_LANE_CALLER, "split")) {
        status = memoi_threads_give_up(me, error);
        memo_comm_destroy(me->part); /* the rank that made it is idle now */
        return status;
    }

    if (color >= 0 && !me->part)
        return memoi_threads_has_failed(me) ? memoi_threads_give_up(me, error)
                                            : memob_no_memory(error, "a communicator");
    if (me->part) status = memoi_threads_open((memoi_threads_rank*)me->part->context, error);
    if (status)
        memo_comm_destroy(me->part);
    else
        *part = me->part;
    return status;
}

/* Fills in the defaults: are_peers, if a device is not a host device, and the time-out. */
MEMOI memo_status memoi_threads_check_desc(memo_comm_threads_desc* desc, memo_error* error) {
    static const char name[] = "memo_comm_threads_desc";
    if (MEMOI_INTEGER(name, desc, n_ranks, 1, 32768)) return MEMO_STATUS_INVALID_ARGUMENT;
    if (!desc->devices)
        return MEMOI_REFUSE("memo_comm_threads_desc.devices: NULL; pass a device for each rank");

    /* The devices decide how operations run. */
    for (int32_t r = 0; r < desc->n_ranks; r++) {
        const memo_device* device = desc->devices[r];
        if (!device || !device->event_wait || !device->copy)
            return MEMOI_REFUSE(
                "memo_comm_threads_desc.devices, rank %d: no device (%p); pass one that is created",
                (int)r, (const void*)device);
        desc->are_peers |= memob_check_host_device(device, NULL) != MEMO_STATUS_OK;
    }
    if (desc->are_peers && (desc->n_ranks > MEMO_REDUCE_MAX || desc->bytes_per_s > 0))
        return MEMOI_REFUSE("memo_comm_threads_desc: %d peers, or a simulated link of peers; up to "
                            "%d peers without a link are valid",
                            (int)desc->n_ranks, MEMO_REDUCE_MAX);
    if (MEMOI_REAL(name, desc, timeout_s, 0, 1e9) ||
        memob_check_rate(name, "bytes_per_s", desc->bytes_per_s, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (!(desc->timeout_s > 0)) desc->timeout_s = 30;
    return MEMO_STATUS_OK;
}

memo_status memo_comm_create_threads(const memo_comm_threads_desc* desc, memo_comm** comms,
                                     memo_error* error) {
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "comms", comms);
    memoi_threads_world* world;
    memoi_threads_group* group = NULL;
    memo_comm_threads_desc filled = *desc;
    memo_status status = memoi_threads_check_desc(&filled, error);
    if (status) return status;
    world = (memoi_threads_world*)memob_calloc(1, sizeof *world);
    if (world)
        group = memoi_threads_group_create(world, "", desc->name ? desc->name : "threads world",
                                           desc->n_ranks);
    for (int32_t r = 0; r < desc->n_ranks; r++) comms[r] = NULL;
    if (!group) {
        MEMO_FREE(world);
        return memob_no_memory(error, "the communicators of a world");
    }

    world->desc = filled;
    for (int32_t r = 0; r < desc->n_ranks; r++)
        comms[r] = memoi_threads_sit(group, r, desc->devices[r]);

    /* The events of peers; ranks do not run yet. */
    for (int32_t r = 0; r < desc->n_ranks && !status; r++)
        status = memoi_threads_open((memoi_threads_rank*)comms[r]->context, error);
    for (int32_t r = 0; r < desc->n_ranks && status; r++) {
        memoi_threads_destroy(comms[r]);
        comms[r] = NULL;
    }
    return status;
}

#endif /* MEMO_NO_HOST_DEVICE */
