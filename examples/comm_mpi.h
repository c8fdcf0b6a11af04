/* comm_mpi.h - a memo_comm of your own, here over MPI.  It is written as a user would write a back
 * end.
 *
 * A process is a rank and has a host device.  Each operation is a function launched on the stream.
 * It starts non-blocking sends and receives and polls them, so that a late peer or an abort ends
 * it.  Streams are threads, so MPI must provide MPI_THREAD_MULTIPLE.  Collectives consist of the
 * same messages and add in the order of ranks, so their sums have the same bits as with the threads
 * back end.
 *
 * A rank that fails sends an alarm to all others, which look for it while they poll.  After a
 * failure MPI may still hold buffers, so enqueued operations are not freed: print the error, and
 * end with MPI_Abort.
 *
 *     MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
 *     comm_mpi_create(MPI_COMM_WORLD, device, 30, 0, &comm, &error);      // all ranks
 *
 * Include after memo_sp.h. */
#ifndef COMM_MPI_H
#define COMM_MPI_H

#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COMM_MPI_PIECE_BYTES ((int64_t)1 << 30) /* MPI counts in int */
enum {
    COMM_MPI_TAG_MESSAGE = 1,
    COMM_MPI_TAG_COLLECTIVE,
    COMM_MPI_TAG_SPLIT, /* of the calling thread, beside collectives on streams */
    COMM_MPI_TAG_ALARM,
    COMM_MPI_TAG_WAITS,   /* for which rank of the world a rank waits; -1: for none */
    COMM_MPI_TAG_OF_SEND, /* checked: a description of a send, for its receiver */
    COMM_MPI_TAG_OF_RECEIVE
};

typedef struct comm_mpi_world { /* shared by all communicators of a world */
    MPI_Comm mpi;
    memo_device* device;
    double timeout_s;
    int32_t is_debug;
    int32_t n_comms;
    int32_t is_failed; /* 1: claimed, 2: failure is written */
    memo_error failure;
    int rank, size;
    char (*hosts)[MPI_MAX_PROCESSOR_NAME]; /* of all ranks; with the next two it is one block */
    int32_t* awaited;                      /* by each rank that has waited long */
    int32_t* words;                        /* -1 and all ranks, to be sent */
} comm_mpi_world;

/* memo_comm.label, as it travels; empty matches any. */
typedef struct comm_mpi_label {
    char text[32];
    int64_t number;
    const char* const* fields; /* the reading rank's; another's only tells that it has some */
    uint32_t digests[MEMO_LABEL_FIELDS];
} comm_mpi_label;

enum { COMM_MPI_MESSAGES = 4096 /* of a group */ };

typedef struct comm_mpi_message {
    char* address;
    int64_t n_bytes;
    int32_t peer, is_send, tag;
    memo_type type;
    int64_t number; /* of this rank's sends and receives */
    comm_mpi_label label;
} comm_mpi_message;

/* The messages of a group.  The stream frees them after the last one. */
typedef struct comm_mpi_group {
    int64_t n;
    int32_t is_checked; /* in debug mode, and at the begin of a pass */
    comm_mpi_message* messages;
} comm_mpi_group;

/* A collective on its stream; if it is checked, the ranks show it to each other. */
typedef struct comm_mpi_run {
    struct comm_mpi* comm;
    int32_t is_checked;
    memo_collective_call call;
    int64_t number; /* of this communicator's collectives */
    comm_mpi_label label;
} comm_mpi_run;

typedef struct comm_mpi {
    memo_comm table;
    comm_mpi_world* world;
    MPI_Comm mpi;
    char name[64];
    memo_message_call waiting[COMM_MPI_MESSAGES]; /* of the open group */
    int64_t n_collectives, n_messages;
    char* arrivals; /* a byte for each rank that has come to a split */
} comm_mpi;

/* --- on the stream --- */

static memo_status comm_mpi_failure(comm_mpi_world* w, memo_error* error) {
    return memo_error_set(error, w->failure.status, "%s", w->failure.message);
}

static int comm_mpi_has_failed(comm_mpi_world* w) {
    return __atomic_load_n(&w->is_failed, __ATOMIC_ACQUIRE) == 2;
}

/* Keeps the first failure and, if it is this rank's own, tells the others. */
static memo_status comm_mpi_fail(comm_mpi_world* w, int is_own, const char* message,
                                 memo_error* error) {
    int32_t none = 0;
    int rank, size, r;
    if (__atomic_compare_exchange_n(&w->is_failed, &none, 1, 0, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
        memo_error_set(&w->failure, MEMO_STATUS_COMM, "%.400s", message);
        MPI_Comm_rank(w->mpi, &rank);
        MPI_Comm_size(w->mpi, &size);
        for (r = 0; r < size && is_own; r++) {
            MPI_Request request;
            if (r == rank) continue;
            MPI_Isend(w->failure.message, (int)sizeof w->failure.message, MPI_BYTE, r,
                      COMM_MPI_TAG_ALARM, w->mpi, &request);
            MPI_Request_free(&request);
        }
        __atomic_store_n(&w->is_failed, 2, __ATOMIC_RELEASE);
    }
    while (!comm_mpi_has_failed(w)) {
    }
    return comm_mpi_failure(w, error);
}

/* Tells all ranks for which rank of the world this one waits: one that is late names the rank at the
 * end of a chain, and none that only waits. */
static void comm_mpi_tell(comm_mpi_world* w, int32_t awaited) {
    for (int r = 0; r < w->size; r++) {
        MPI_Request request;
        if (r == w->rank) continue;
        MPI_Isend(&w->words[1 + awaited], 1, MPI_INT32_T, r, COMM_MPI_TAG_WAITS, w->mpi, &request);
        MPI_Request_free(&request);
    }
}

/* Takes what other ranks have told. */
static void comm_mpi_listen(comm_mpi_world* w) {
    for (int is_there = 1; is_there;) {
        MPI_Message note;
        MPI_Status status;
        int32_t awaited;
        is_there = 0;
        MPI_Improbe(MPI_ANY_SOURCE, COMM_MPI_TAG_WAITS, w->mpi, &is_there, &note, &status);
        if (!is_there) return;
        MPI_Mrecv(&awaited, 1, MPI_INT32_T, &note, &status);
        __atomic_store_n(&w->awaited[status.MPI_SOURCE], awaited, __ATOMIC_RELAXED);
    }
}

/* The rank of the world at the end of the chain of those that wait; if they wait for each other, the
 * first. */
static int32_t comm_mpi_missing(comm_mpi_world* w, int32_t first) {
    int32_t at = first;
    for (int32_t n = 0; n < w->size; n++) {
        const int32_t next = __atomic_load_n(&w->awaited[at], __ATOMIC_RELAXED);
        if (next < 0) return at;
        if (next == w->rank) break;
        at = next;
    }
    return first;
}

/* Has somebody else failed? */
static int comm_mpi_hears_alarm(comm_mpi_world* w) {
    MPI_Message alarm;
    MPI_Status status;
    int is_there = 0;
    char message[sizeof w->failure.message];
    comm_mpi_listen(w);
    MPI_Improbe(MPI_ANY_SOURCE, COMM_MPI_TAG_ALARM, w->mpi, &is_there, &alarm, &status);
    if (!is_there) return comm_mpi_has_failed(w);
    MPI_Mrecv(message, (int)sizeof message, MPI_BYTE, &alarm, &status);
    message[sizeof message - 1] = 0;
    comm_mpi_fail(w, 0, message, NULL);
    return 1;
}

/* The number in another communicator; -1: it has none. */
static int comm_mpi_rank_in(MPI_Comm other, MPI_Comm mpi, int rank) {
    MPI_Group from, to;
    int found = MPI_UNDEFINED;
    if (MPI_Comm_group(mpi, &from) == MPI_SUCCESS) {
        if (MPI_Comm_group(other, &to) == MPI_SUCCESS) {
            (void)MPI_Group_translate_ranks(from, 1, &rank, to, &found);
            MPI_Group_free(&to);
        }
        MPI_Group_free(&from);
    }
    return found == MPI_UNDEFINED ? -1 : found;
}

/* With the rank of the world, of a part; with the rank's host, if ranks are on several. */
static const char* comm_mpi_rank_text(char text[MEMO_RANK_TEXT], const comm_mpi* me, int32_t rank) {
    const comm_mpi_world* w = me->world;
    const int of_world = comm_mpi_rank_in(w->mpi, me->mpi, (int)rank);
    int are_many = 0;
    for (int r = 1; r < w->size; r++) are_many |= strcmp(w->hosts[r], w->hosts[0]) != 0;
    return memo_comm_rank_text(text, rank, me->table.size == w->size ? -1 : of_world,
                               are_many && of_world >= 0 ? w->hosts[of_world] : NULL);
}

/* The peer of the first message that is not through; requests lie as comm_mpi_exchange made
 * them. */
static int comm_mpi_awaited(const comm_mpi_message* messages, int64_t n,
                            const MPI_Request* requests) {
    int64_t i, begin;
    for (i = 0; i < n; i++)
        for (begin = 0; !begin || begin < messages[i].n_bytes; begin += COMM_MPI_PIECE_BYTES) {
            int is_done = 0;
            MPI_Request_get_status(*requests++, &is_done, MPI_STATUS_IGNORE);
            if (!is_done) return messages[i].peer;
        }
    return 0;
}

/* What a rank says that has waited in vain: for a rank of its own communicator, and, if that one
 * waits, too, for whom. */
static void comm_mpi_late(const comm_mpi* me, int awaited, const char* what, char* text,
                          size_t text_bytes) {
    comm_mpi_world* w = me->world;
    const int of_world = comm_mpi_rank_in(w->mpi, me->mpi, awaited);
    char own[MEMO_RANK_TEXT], other[MEMO_RANK_TEXT];
    int missing, here;
    comm_mpi_listen(w);
    missing = of_world < 0 ? -1 : comm_mpi_missing(w, of_world);
    here = missing < 0 ? awaited : comm_mpi_rank_in(me->mpi, w->mpi, missing);
    if (here >= 0)
        comm_mpi_rank_text(other, me, here);
    else
        memo_comm_rank_text(other, missing, -1, w->hosts[missing]);
    snprintf(text, text_bytes, "rank %s of '%s' waited %g s for %srank %s in %s",
             comm_mpi_rank_text(own, me, me->table.rank), me->name, w->timeout_s,
             here < 0 ? "world " : "", other, what);
}

/* Bytes of the piece of a message that begins at byte `begin`. */
static int comm_mpi_piece_bytes(const comm_mpi_message* message, int64_t begin) {
    const int64_t left = message->n_bytes - begin;
    return (int)(left < COMM_MPI_PIECE_BYTES ? left : COMM_MPI_PIECE_BYTES);
}

/* Returns 1 and writes text if a message failed, or came with another size than its receiver asked
 * for.  Statuses lie as requests do.  code: what MPI_Testall returned; MPI_SUCCESS if all messages
 * are through. */
static int comm_mpi_is_wrong(const comm_mpi* me, const comm_mpi_message* messages, int64_t n,
                             const MPI_Status* statuses, int code, const char* what, char* text,
                             size_t text_bytes) {
    char reason[MPI_MAX_ERROR_STRING] = "";
    char own[MEMO_RANK_TEXT], other[MEMO_RANK_TEXT];
    int64_t i, begin;
    int length;
    for (i = 0; i < n; i++)
        for (begin = 0; !begin || begin < messages[i].n_bytes;
             begin += COMM_MPI_PIECE_BYTES, statuses++) {
            const comm_mpi_message* m = &messages[i];
            const int asked = comm_mpi_piece_bytes(m, begin);
            int error = MPI_SUCCESS, come = asked;
            if (code)
                MPI_Error_class(statuses->MPI_ERROR, &error);
            else if (!m->is_send)
                MPI_Get_count(statuses, MPI_BYTE, &come);
            if ((error == MPI_SUCCESS && come == asked) || error == MPI_ERR_PENDING) continue;

            if (error == MPI_SUCCESS)
                snprintf(reason, sizeof reason, "%d", come);
            else if (error == MPI_ERR_TRUNCATE)
                snprintf(reason, sizeof reason, "more");
            else
                MPI_Error_string(statuses->MPI_ERROR, reason, &length);
            if (error == MPI_SUCCESS || error == MPI_ERR_TRUNCATE)
                snprintf(text, text_bytes,
                         "rank %s of '%s' receives %d bytes from rank %s in %s, which sends %s: "
                         "sizes differ",
                         comm_mpi_rank_text(own, me, me->table.rank), me->name, asked,
                         comm_mpi_rank_text(other, me, m->peer), what, reason);
            else
                snprintf(text, text_bytes, "rank %s of '%s', %s rank %s in %s: %.200s",
                         comm_mpi_rank_text(own, me, me->table.rank), me->name,
                         m->is_send ? "sending to" : "receiving from",
                         comm_mpi_rank_text(other, me, m->peer), what, reason);
            return 1;
        }
    return 0;
}

static int comm_mpi_is_checked(const memo_comm* comm) {
    return ((const comm_mpi*)comm->context)->world->is_debug || comm->label.is_first;
}

/* The step that a checked call belongs to. */
static comm_mpi_label comm_mpi_label_of(const memo_comm* comm) {
    comm_mpi_label label;
    memset(&label, 0, sizeof label);
    if (comm->label.text) snprintf(label.text, sizeof label.text, "%.31s", comm->label.text);
    label.number = comm->label.number;
    label.fields = comm->label.fields;
    if (label.fields) memcpy(label.digests, comm->label.digests, sizeof label.digests);
    return label;
}

/* A rank's call, to compare; the names of fields are this rank's. */
static memo_comm_op comm_mpi_op(const comm_mpi_label* label, const char* const* fields) {
    memo_comm_op op;
    memset(&op, 0, sizeof op);
    op.label.text = label->text[0] ? label->text : NULL;
    op.label.number = label->number;
    op.label.fields = label->fields ? fields : NULL;
    memcpy(op.label.digests, label->digests, sizeof op.label.digests);
    return op;
}

/* Returns 1 and writes text if two ranks call different things.  Names of ranks take long, so they
 * are found only then. */
static int comm_mpi_mismatch(const comm_mpi* me, char text[MEMO_MISMATCH_TEXT], int64_t number,
                             int is_message, memo_comm_op* a, int32_t a_rank, memo_comm_op* b,
                             int32_t b_rank) {
    char a_text[MEMO_RANK_TEXT], b_text[MEMO_RANK_TEXT];
    a->rank = b->rank = "";
    if (!memo_comm_mismatch(text, me->name, number, is_message, a, b)) return 0;
    a->rank = comm_mpi_rank_text(a_text, me, a_rank);
    b->rank = comm_mpi_rank_text(b_text, me, b_rank);
    memo_comm_mismatch(text, me->name, number, is_message, a, b);
    return 1;
}

/* What two ranks call for the same message, but for the peers. */
static int comm_mpi_differs(const comm_mpi* me, const comm_mpi_message* own,
                            const comm_mpi_message* theirs, char text[MEMO_MISMATCH_TEXT]) {
    const comm_mpi_message* sent = own->is_send ? own : theirs;
    const comm_mpi_message* received = own->is_send ? theirs : own;
    memo_comm_op from = comm_mpi_op(&sent->label, own->label.fields);
    memo_comm_op to = comm_mpi_op(&received->label, own->label.fields);
    from.call.type = sent->type;
    from.call.count = sent->n_bytes / memo_type_bytes(sent->type);
    to.call.type = received->type;
    to.call.count = received->n_bytes / memo_type_bytes(received->type);
    return comm_mpi_mismatch(me, text, sent->number, 1, &from, received->peer, &to, sent->peer);
}

/* Sends and receives all messages at once, and polls until they are done.  If `theirs` is given,
 * the first two thirds send heads and receive `theirs`, in turn, for the last third. */
static memo_status comm_mpi_exchange(comm_mpi* me, const comm_mpi_message* messages, int64_t n,
                                     const comm_mpi_message* theirs, const char* what,
                                     memo_error* error) {
    comm_mpi_world* w = me->world;
    MPI_Request* requests;
    MPI_Status* statuses;
    int64_t i, n_requests = 0;
    double start_s = MPI_Wtime();
    int is_done = 0, is_late = 0, is_wrong = 0, code = MPI_SUCCESS, n_tries = 0;
    int n_told = 0;
    char text[MPI_MAX_ERROR_STRING] = "", message[sizeof w->failure.message];

    /* Start everything, in pieces whose size fits in an int. */
    for (i = 0; i < n; i++) n_requests += 1 + messages[i].n_bytes / COMM_MPI_PIECE_BYTES;
    requests = (MPI_Request*)malloc((size_t)(n_requests + 1) * sizeof *requests);
    statuses = (MPI_Status*)malloc((size_t)(n_requests + 1) * sizeof *statuses);
    if (!requests || !statuses) {
        free(requests);
        free(statuses);
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "MPI requests");
    }
    for (i = 0, n_requests = 0; i < n && !code; i++) {
        const comm_mpi_message* m = &messages[i];
        int64_t begin = 0;
        do {
            const int piece = comm_mpi_piece_bytes(m, begin);
            MPI_Request* request = &requests[n_requests++];
            code = m->is_send ? MPI_Isend(m->address + begin, piece, MPI_BYTE, m->peer, m->tag,
                                          me->mpi, request)
                              : MPI_Irecv(m->address + begin, piece, MPI_BYTE, m->peer, m->tag,
                                          me->mpi, request);
            begin += piece;
        } while (begin < m->n_bytes && !code);
    }

    /* Poll, so that a late peer or an abort ends the exchange. */
    while (!code && !is_done) {
        struct timespec nap;
        code = MPI_Testall((int)n_requests, requests, &is_done, statuses);
        is_late = MPI_Wtime() - start_s > w->timeout_s;
        for (i = 0; theirs && (code || is_done || is_late) && i < n / 3 && !is_wrong; i++) {
            int has_come = 0;
            MPI_Request_get_status(requests[2 * i + 1], &has_come, MPI_STATUS_IGNORE);
            is_wrong =
                has_come && comm_mpi_differs(me, &messages[n / 3 * 2 + i], &theirs[i], message);
        }

        if (!is_wrong && (code == MPI_ERR_IN_STATUS || is_done))
            is_wrong =
                comm_mpi_is_wrong(me, messages, n, statuses, code, what, message, sizeof message);

        if (is_wrong) {
            comm_mpi_fail(w, 1, message, NULL);
            break;
        }
        if (code || is_done || n_tries++ < 20) continue;
        if (comm_mpi_hears_alarm(w)) break;

        /* Who waits long says so, four times before it is late. */
        if (MPI_Wtime() - start_s > w->timeout_s * (1 + n_told) / 5) {
            comm_mpi_tell(
                w, comm_mpi_rank_in(w->mpi, me->mpi, comm_mpi_awaited(messages, n, requests)));
            n_told++;
        }
        if (is_late) {
            comm_mpi_late(me, comm_mpi_awaited(messages, n, requests), what, message,
                          sizeof message);
            comm_mpi_fail(w, 1, message, NULL);
            break;
        }

        nap.tv_sec = 0;
        nap.tv_nsec = n_tries < 1000 ? 20000 : 1000000;
        nanosleep(&nap, NULL);
    }

    if (n_told && is_done) comm_mpi_tell(w, -1); /* a rank that has failed waits no less */
    free(requests);
    free(statuses);
    if (is_wrong) return comm_mpi_failure(w, error);
    if (code) {
        int length;
        MPI_Error_string(code, text, &length);
        snprintf(message, sizeof message, "rank %d of '%s', %s: %.200s", (int)me->table.rank,
                 me->name, what, text);
        return comm_mpi_fail(w, 1, message, error);
    }
    return is_done ? MEMO_STATUS_OK : comm_mpi_failure(w, error);
}

/* Where the part of rank begins, of total elements cut into as many as there are ranks. */
static int64_t comm_mpi_part(const comm_mpi* me, int64_t total, int32_t rank) {
    return memo_share_of(total, me->table.size, rank).begin;
}

/* Everybody sends to everybody, with this tag.  is_gather: its own part of `to`, which those of the
 * others complete.  Otherwise part r of `from` to rank r, and what comes, from rank r, to to + r *
 * (length of the own part). */
static memo_status comm_mpi_parts(comm_mpi* me, int tag, int is_gather, const char* from, char* to,
                                  int64_t total, int64_t bytes, memo_error* error) {
    int32_t n = me->table.size, rank = me->table.rank, r, k = 0;
    int64_t mine = comm_mpi_part(me, total, rank);
    int64_t my_count = comm_mpi_part(me, total, rank + 1) - mine;
    comm_mpi_message* m = (comm_mpi_message*)calloc((size_t)(2 * n), sizeof *m);
    memo_status status;
    if (!m) return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "MPI messages");
    for (r = 0; r < n; r++) {
        int64_t begin = comm_mpi_part(me, total, r),
                count = comm_mpi_part(me, total, r + 1) - begin;
        if (r == rank) continue;
        m[k].is_send = 1;
        m[k].peer = m[k + 1].peer = r;
        m[k].tag = m[k + 1].tag = tag;
        m[k].address = is_gather ? to + mine * bytes : (char*)(uintptr_t)from + begin * bytes;
        m[k].n_bytes = (is_gather ? my_count : count) * bytes;
        m[k + 1].address = to + (is_gather ? begin : r * my_count) * bytes;
        m[k + 1].n_bytes = (is_gather ? count : my_count) * bytes;
        k += 2;
    }
    status = comm_mpi_exchange(me, m, k, NULL,
                               tag == COMM_MPI_TAG_SPLIT ? "a split" : "a collective", error);
    free(m);
    return status;
}

/* to = the sum over ranks of the own part of their `from`. */
static memo_status comm_mpi_reduce(comm_mpi* me, const memo_collective_call* call, char* to,
                                   int64_t total, memo_error* error) {
    int32_t n = me->table.size, r;
    const char* from = (const char*)call->from;
    int64_t bytes = memo_type_bytes(call->type), mine = comm_mpi_part(me, total, me->table.rank);
    int64_t count = comm_mpi_part(me, total, me->table.rank + 1) - mine;
    char* parts = (char*)malloc((size_t)(n * count * bytes) + 1);
    const void** sources = (const void**)malloc((size_t)n * sizeof *sources);
    memo_status status =
        parts && sources
            ? comm_mpi_parts(me, COMM_MPI_TAG_COLLECTIVE, 0, from, parts, total, bytes, error)
            : memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "MPI: a reduction");
    for (r = 0; r < n && !status; r++)
        sources[r] = r == me->table.rank ? from + mine * bytes : parts + r * count * bytes;
    if (!status) memo_comm_reduce(to, sources, n, 0, count, call->type, call->reduction);
    free(parts);
    free((void*)sources);
    return status;
}

static memo_status comm_mpi_check(const comm_mpi_run* run, memo_error* error) {
    comm_mpi* me = run->comm;
    comm_mpi_run* all = (comm_mpi_run*)calloc((size_t)me->table.size, sizeof *all);
    char message[MEMO_MISMATCH_TEXT];
    memo_status status;
    int32_t r;
    if (!all) return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "MPI: a check");

    /* Every rank compares all calls with the one of rank 0. */
    all[me->table.rank] = *run;
    status = comm_mpi_parts(me, COMM_MPI_TAG_COLLECTIVE, 1, NULL, (char*)all,
                            me->table.size * (int64_t)sizeof *all, 1, error);
    for (r = 1; r < me->table.size && !status; r++) {
        memo_comm_op first = comm_mpi_op(&all[0].label, run->label.fields);
        memo_comm_op op = comm_mpi_op(&all[r].label, run->label.fields);
        first.call = all[0].call;
        op.call = all[r].call;
        if (!comm_mpi_mismatch(me, message, run->number, 0, &first, 0, &op, r)) continue;
        status = comm_mpi_fail(me->world, 1, message, error);
    }

    free(all);
    return status;
}

static memo_status comm_mpi_broadcast_run(comm_mpi* me, const memo_collective_call* call,
                                          memo_error* error) {
    int32_t is_root = me->table.rank == call->root, r, n = 0;
    comm_mpi_message* m = (comm_mpi_message*)calloc((size_t)me->table.size, sizeof *m);
    memo_status status;
    if (!m) return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "MPI messages");
    for (r = 0; r < me->table.size; r++) {
        if (is_root ? r == call->root : r != call->root) continue;
        m[n].address = (char*)call->to;
        m[n].n_bytes = call->count * memo_type_bytes(call->type);
        m[n].is_send = is_root;
        m[n].tag = COMM_MPI_TAG_COLLECTIVE;
        m[n++].peer = r;
    }
    status = comm_mpi_exchange(me, m, n, NULL, "broadcast", error);
    free(m);
    return status;
}

static memo_status comm_mpi_run_collective(void* args, memo_error* error) {
    const comm_mpi_run* run = (const comm_mpi_run*)args;
    const memo_collective_call* call = &run->call;
    comm_mpi* me = run->comm;
    int64_t count = call->count, bytes = memo_type_bytes(call->type), all = count * me->table.size;
    int32_t rank = me->table.rank;
    char* to = (char*)call->to;
    char* my_part = to + rank * count * bytes; /* of an all_gather */
    memo_status status = comm_mpi_has_failed(me->world) ? comm_mpi_failure(me->world, error)
                         : run->is_checked              ? comm_mpi_check(run, error)
                                                        : MEMO_STATUS_OK;
    if (status) return status;

    switch (call->kind) {
    case MEMO_COLLECTIVE_ALL_REDUCE:
        status =
            comm_mpi_reduce(me, call, to + comm_mpi_part(me, count, rank) * bytes, count, error);
        return status
                   ? status
                   : comm_mpi_parts(me, COMM_MPI_TAG_COLLECTIVE, 1, NULL, to, count, bytes, error);
    case MEMO_COLLECTIVE_ALL_GATHER:
        if (my_part != call->from && count) memcpy(my_part, call->from, (size_t)(count * bytes));
        return comm_mpi_parts(me, COMM_MPI_TAG_COLLECTIVE, 1, NULL, to, all, bytes, error);
    case MEMO_COLLECTIVE_REDUCE_SCATTER: return comm_mpi_reduce(me, call, to, all, error);
    case MEMO_COLLECTIVE_BROADCAST: return comm_mpi_broadcast_run(me, call, error);
    case MEMO_COLLECTIVE_BARRIER:
    case MEMO_N_COLLECTIVES: break;
    }
    return comm_mpi_parts(me, COMM_MPI_TAG_COLLECTIVE, 1, NULL, to, 0, 1, error);
}

typedef struct comm_mpi_group_call {
    comm_mpi* comm;
    comm_mpi_group group;
} comm_mpi_group_call;

/* Sender and receiver tell each other what they call, besides. */
static memo_status comm_mpi_exchange_checked(comm_mpi* me, const comm_mpi_group* group,
                                             memo_error* error) {
    int64_t n = group->n, i;
    comm_mpi_message* theirs = (comm_mpi_message*)calloc((size_t)n, sizeof *theirs);
    comm_mpi_message* m = (comm_mpi_message*)calloc((size_t)(3 * n), sizeof *m);
    memo_status status;
    if (!theirs || !m) {
        free(theirs);
        free(m);
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "MPI: a check");
    }
    for (i = 0; i < 2 * n; i++) {
        comm_mpi_message* own = &group->messages[i / 2];
        m[i].is_send = i % 2 == 0;
        m[i].address = (char*)(m[i].is_send ? own : &theirs[i / 2]);
        m[i].n_bytes = (int64_t)sizeof *own;
        m[i].peer = own->peer;
        m[i].tag = own->is_send == m[i].is_send ? COMM_MPI_TAG_OF_SEND : COMM_MPI_TAG_OF_RECEIVE;
        m[2 * n + i / 2] = *own;
    }
    status = comm_mpi_exchange(me, m, 3 * n, theirs, "sends and receives", error);
    if (!status) free(theirs); /* else MPI may still write there */
    free(m);
    return status;
}

static memo_status comm_mpi_run_group(void* args, memo_error* error) {
    comm_mpi_group_call* call = (comm_mpi_group_call*)args;
    comm_mpi* me = call->comm;
    memo_status status = MEMO_STATUS_OK;
    if (comm_mpi_has_failed(me->world))
        status = comm_mpi_failure(me->world, error);
    else if (call->group.is_checked)
        status = comm_mpi_exchange_checked(me, &call->group, error);
    else
        status = comm_mpi_exchange(me, call->group.messages, call->group.n, NULL,
                                   "sends and receives", error);
    if (!status || !call->group.is_checked)
        free(call->group.messages); /* else MPI may still read */
    return status;
}

/* --- in the caller's thread --- */

static memo_status comm_mpi_status(memo_comm* comm, memo_error* error) {
    comm_mpi_world* w = ((comm_mpi*)comm->context)->world;
    return comm_mpi_hears_alarm(w) ? comm_mpi_failure(w, error) : MEMO_STATUS_OK;
}

static void comm_mpi_abort(memo_comm* comm) {
    char message[200];
    snprintf(message, sizeof message, "rank %d of '%s' aborted it", (int)comm->rank, comm->name);
    comm_mpi_fail(((comm_mpi*)comm->context)->world, 1, message, NULL);
}

static memo_status comm_mpi_messages(memo_comm* comm, memo_stream stream,
                                     const memo_message_call* calls, int32_t n, memo_error* error) {
    comm_mpi* me = (comm_mpi*)comm->context;
    comm_mpi_group_call call;
    memo_status status;
    int32_t i;
    if (!n) return MEMO_STATUS_OK;
    call.comm = me;
    call.group.n = n;
    call.group.is_checked = comm_mpi_is_checked(comm);
    call.group.messages = (comm_mpi_message*)calloc((size_t)n, sizeof(comm_mpi_message));
    if (!call.group.messages)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "MPI: messages");
    for (i = 0; i < n; i++) {
        comm_mpi_message* m = &call.group.messages[i];
        m->address = (char*)calls[i].address;
        m->n_bytes = calls[i].count * memo_type_bytes(calls[i].type);
        m->peer = calls[i].peer;
        m->is_send = calls[i].is_send;
        m->tag = COMM_MPI_TAG_MESSAGE;
        m->type = calls[i].type;
        m->number = ++me->n_messages;
        if (call.group.is_checked) m->label = comm_mpi_label_of(comm);
    }
    status = memo_host_device_launch(me->world->device, stream, comm_mpi_run_group, &call,
                                     sizeof call, error);
    if (status) free(call.group.messages); /* else the stream owns them */
    return status;
}

static memo_status comm_mpi_collective(memo_comm* comm, memo_stream stream,
                                       const memo_collective_call* call, memo_error* error) {
    comm_mpi* me = (comm_mpi*)comm->context;
    comm_mpi_run run;
    memo_status status = comm_mpi_status(comm, error);
    if (status) return status;
    memset(&run, 0, sizeof run);
    run.comm = me;
    run.call = *call;
    run.number = ++me->n_collectives;
    run.is_checked = comm_mpi_is_checked(comm);
    if (run.is_checked) run.label = comm_mpi_label_of(comm);
    return memo_host_device_launch(me->world->device, stream, comm_mpi_run_collective, &run,
                                   sizeof run, error);
}

/* --- making, splitting and destroying --- */

static void comm_mpi_destroy(memo_comm* comm) {
    comm_mpi* me;
    if (!comm) return;
    me = (comm_mpi*)comm->context;
    if (!comm_mpi_has_failed(me->world)) { /* else MPI may still use them */
        MPI_Comm_free(&me->mpi);
        free(me->arrivals);
    }
    if (--me->world->n_comms == 0) {
        if (!comm_mpi_has_failed(me->world)) {
            comm_mpi_listen(me->world);
            MPI_Comm_free(&me->world->mpi);
            free(me->world->hosts);
            free(me->world);
        } /* else an alarm may still be on its way from there */
    }
    free(me);
}

static memo_status comm_mpi_split(memo_comm* comm, int32_t color, int32_t key, const char* name,
                                  memo_comm** part, memo_error* error);

/* The communicator owns mpi. */
static memo_status comm_mpi_make(comm_mpi_world* world, MPI_Comm mpi, const char* name,
                                 memo_comm** comm, memo_error* error) {
    comm_mpi* me = (comm_mpi*)calloc(1, sizeof *me);
    memo_comm* table;
    int rank, size;
    MPI_Comm_rank(mpi, &rank);
    MPI_Comm_size(mpi, &size);
    if (me) me->arrivals = (char*)calloc((size_t)size, 1);
    if (!me || !me->arrivals) {
        free(me);
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "MPI: a communicator");
    }

    MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
    me->world = world;
    me->mpi = mpi;
    world->n_comms++;
    snprintf(me->name, sizeof me->name, "mpi %.50s", name ? name : "part");

    table = &me->table;
    table->name = me->name;
    table->context = me;
    table->rank = rank;
    table->size = size;
    table->split = comm_mpi_split;
    table->destroy = comm_mpi_destroy;
    table->messages = comm_mpi_messages;
    table->waiting = me->waiting;
    table->max_waiting = COMM_MPI_MESSAGES;
    table->collective = comm_mpi_collective;
    table->abort = comm_mpi_abort;
    table->status = comm_mpi_status;
    *comm = table;
    return MEMO_STATUS_OK;
}

static memo_status comm_mpi_split(memo_comm* comm, int32_t color, int32_t key, const char* name,
                                  memo_comm** part, memo_error* error) {
    comm_mpi* me = (comm_mpi*)comm->context;
    MPI_Comm mpi = MPI_COMM_NULL;
    memo_status status = comm_mpi_status(comm, error);
    *part = NULL;
    if (status) return status;

    /* MPI_Comm_split would wait for ever for a rank that has stopped, so first all ranks arrive. */
    status = comm_mpi_parts(me, COMM_MPI_TAG_SPLIT, 1, NULL, me->arrivals, comm->size, 1, error);
    if (status) return status;
    if (MPI_Comm_split(me->mpi, color < 0 ? MPI_UNDEFINED : color, key, &mpi) != MPI_SUCCESS)
        return memo_error_set(error, MEMO_STATUS_COMM, "MPI_Comm_split of '%s'", comm->name);
    return mpi == MPI_COMM_NULL ? MEMO_STATUS_OK : comm_mpi_make(me->world, mpi, name, part, error);
}

/* Waits for a request; 0: for too long, and MPI may still write where it does. */
static int comm_mpi_wait(MPI_Request* request, double timeout_s) {
    const double start_s = MPI_Wtime();
    struct timespec nap;
    int is_done = 0;
    nap.tv_sec = 0;
    nap.tv_nsec = 100000;
    while (!MPI_Test(request, &is_done, MPI_STATUS_IGNORE) && !is_done &&
           MPI_Wtime() - start_s < timeout_s)
        nanosleep(&nap, NULL);
    return is_done;
}

/* MPI_Comm_dup that ends if a rank does not come. */
static int comm_mpi_copy(MPI_Comm mpi, double timeout_s, MPI_Comm* copy) {
    MPI_Comm* room = (MPI_Comm*)malloc(sizeof *room);
    MPI_Request request;
    if (!room || MPI_Comm_idup(mpi, room, &request)) return 0;
    if (!comm_mpi_wait(&request, timeout_s)) return 0;
    *copy = *room;
    free(room);
    return 1;
}

/* The hosts of all ranks, for messages. */
static int comm_mpi_learn_hosts(comm_mpi_world* w) {
    const int n = MPI_MAX_PROCESSOR_NAME;
    MPI_Request request;
    int length;
    MPI_Comm_rank(w->mpi, &w->rank);
    MPI_Comm_size(w->mpi, &w->size);
    w->hosts = (char(*)[MPI_MAX_PROCESSOR_NAME])calloc((size_t)w->size + 1, (size_t)n + 8);
    if (!w->hosts) return 0;
    w->awaited = (int32_t*)(void*)w->hosts[w->size + 1];
    w->words = w->awaited + w->size;
    for (int r = 0; r < w->size; r++) w->awaited[r] = -1;
    for (int r = 0; r <= w->size; r++) w->words[r] = r - 1;
    (void)MPI_Get_processor_name(w->hosts[w->rank], &length);
    return !MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, w->hosts, n, MPI_CHAR, w->mpi,
                           &request) &&
           comm_mpi_wait(&request, w->timeout_s);
}

/* All ranks of mpi must call it.  Afterwards errors on MPI_COMM_WORLD and MPI_COMM_SELF are returned
 * (MPI_ERRORS_RETURN), also from the program's own calls.  device must be a host device.  timeout_s 0 means 30.  is_debug
 * compares every collective, send and receive, with its label, with the other ranks' first; without
 * it, those that begin a pass.  If they differ, the call fails on all ranks and names both. */
static memo_status comm_mpi_create(MPI_Comm mpi, memo_device* device, double timeout_s,
                                   int32_t is_debug, memo_comm** comm, memo_error* error) {
    comm_mpi_world* world = (comm_mpi_world*)calloc(1, sizeof *world);
    MPI_Comm own;
    int provided = MPI_THREAD_SINGLE;
    *comm = NULL;
    if (!world) return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "MPI: a world");

    MPI_Query_thread(&provided);
    if (provided < MPI_THREAD_MULTIPLE) {
        free(world);
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "streams are threads: call MPI_Init_thread with "
                              "MPI_THREAD_MULTIPLE; this MPI provides level %d",
                              provided);
    }

    world->timeout_s = timeout_s > 0 ? timeout_s : 30;

    /* One communicator carries alarms, the other messages. */
    if (!comm_mpi_copy(mpi, world->timeout_s, &world->mpi) ||
        !comm_mpi_copy(mpi, world->timeout_s, &own) || !comm_mpi_learn_hosts(world)) {
        memo_error_set(error, MEMO_STATUS_COMM,
                       "comm_mpi_create: waited %g s for the other ranks; all must call it",
                       world->timeout_s);
        free(world); /* but not the hosts, which MPI may still write */
        return MEMO_STATUS_COMM;
    }
    MPI_Comm_set_errhandler(world->mpi, MPI_ERRORS_RETURN);
    /* MPI_Testall belongs to no communicator: by MPI 4 its errors go to MPI_COMM_SELF, by MPI 3, and
     * in MPICH 4.0.2, to MPI_COMM_WORLD.  There an error ends the process by default. */
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);

    world->device = device;
    world->is_debug = is_debug;
    return comm_mpi_make(world, own, "world", comm, error);
}

#endif
