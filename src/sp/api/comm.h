#pragma once
/* ---- 1 comm: the table of communication functions -----------------------------------------------
 *
 * A communicator is a group of ranks 0 .. size-1.  Each rank holds a memo_comm, called from one
 * thread.  Every function except split, abort, status and destroy enqueues on a stream of the
 * rank's own device, and does not wait for the stream.  (Peers, and the first messages over NCCL,
 * wait for other ranks.)  A buffer must stay unchanged until the stream has passed the operation.
 * All ranks must call the collectives in the same order.  A communicator may be used on one stream
 * at a time; another stream waits on an event first.  Communicators may be active side by side.
 *
 * Between group_begin and group_end, sends and receives are collected.  They run as a single
 * operation without deadlock.  Outside a group a send completes when the receive does, and a rank
 * cannot send to itself.  Groups may be nested; the outermost group counts.  A group uses a single
 * stream, without collectives, and has at most max_waiting messages (threads 4096, NCCL 2048).  A
 * refused call cancels the group.  Between two ranks the k-th send meets the k-th receive; their
 * counts and types must match.
 *
 * If a rank is lost, or later than the communicator's time-out, the operation fails on every rank
 * with MEMO_STATUS_COMM, which the next call, memo_comm_status and the synchronization of the
 * stream return.  The communicator and all that are split from the same one are then unusable.
 *
 * Errors of every enqueueing call: INVALID_ARGUMENT; INVALID_STATE (a collective inside a group,
 * group_end without group_begin); COMM; errors of the device. */

MEMO_API int64_t memo_type_bytes(memo_type type);    /* 0 for an invalid type */
MEMO_API const char* memo_type_name(memo_type type); /* "bf16"; never NULL */

typedef enum memo_reduction {
    MEMO_REDUCTION_SUM = 0,
    MEMO_REDUCTION_MAX,
    MEMO_N_REDUCTIONS
} memo_reduction;

typedef enum memo_collective {
    MEMO_COLLECTIVE_ALL_REDUCE = 0,
    MEMO_COLLECTIVE_ALL_GATHER,
    MEMO_COLLECTIVE_REDUCE_SCATTER,
    MEMO_COLLECTIVE_BROADCAST,
    MEMO_COLLECTIVE_BARRIER,
    MEMO_N_COLLECTIVES
} memo_collective;

#define MEMO_LABEL_FIELDS 11

/* The step that a call belongs to, for example {"ring exchange", 3}, and digests of what its ranks
 * must agree on.  If two ranks give different labels, the call fails on all ranks with
 * MEMO_STATUS_COMM, and names the field.  The threads back end, and MPI in debug mode, compare the
 * labels of every message and collective.  Otherwise they are compared where is_first is set, on
 * NCCL the digests alone: a later call or memo_comm_status returns the error.  text NULL matches
 * every label, fields NULL all digests.  text and fields must outlive the communicator. */
typedef struct memo_label {
    const char* text;
    int64_t number;
    const char* const* fields; /* a name for each digest */
    uint32_t digests[MEMO_LABEL_FIELDS];
    int32_t is_first; /* of a pass; on all ranks of the communicator or on none */
} memo_label;

/* The arguments of a collective, see memo_all_reduce and the functions after it.  Fields that a
 * kind does not use are 0. */
typedef struct memo_collective_call {
    memo_collective kind;
    memo_type type;
    memo_reduction reduction;
    int32_t root;
    int64_t count;
    const void* from;
    void* to;
} memo_collective_call;

/* The arguments of a message: a send to peer, which only reads address, or a receive from peer. */
typedef struct memo_message_call {
    int32_t is_send, peer;
    memo_type type;
    int64_t count;
    void* address;
} memo_message_call;

typedef struct memo_comm {
    const char* name; /* back end and group: "threads world", "nccl ring" */
    void* context;
    int32_t rank, size;
    /* Bytes this rank has sent to other ranks, counted when a call is enqueued.  A collective
     * counts what the ring algorithm sends, whatever the back end does.
     * With n = size and b = count * bytes of the type:
     *   all_reduce 2 (n-1) b / n, rounded down | all_gather, reduce_scatter (n-1) b | barrier 0
     *   broadcast b, but 0 for rank root-1 (mod n), the end of the chain */
    int64_t sent_bytes;
    /* Set by the caller before a call (of a group: the end), which clears the label.  Optional. */
    memo_label label;

    /* All ranks must call split, each from its thread, and wait for each other.  Ranks of equal
     * color (>= 0) form a new communicator, ordered by key, then by rank.  If color < 0, *part is
     * NULL.  Errors: COMM, OUT_OF_HOST_MEMORY, the device's. */
    memo_status (*split)(struct memo_comm* comm, int32_t color, int32_t key, const char* name,
                         struct memo_comm** part, memo_error* error);
    /* The caller must have synchronized all streams.  Call before the rank's device is destroyed.
     * Communicators may be destroyed in any order. */
    void (*destroy)(struct memo_comm* comm);

    /* Enqueues the n messages of a group as one operation, or a single message.  The arguments are
     * valid.  n is 0 only if label.is_first, for back ends that compare digests then. */
    memo_status (*messages)(struct memo_comm* comm, memo_stream stream,
                            const memo_message_call* calls, int32_t n, memo_error* error);
    /* All ranks must call with the same kind, count, type, reduction and root.  The arguments are
     * valid.  After a failure the call returns the error. */
    memo_status (*collective)(struct memo_comm* comm, memo_stream stream,
                              const memo_collective_call* call, memo_error* error);

    /* Makes every current and later operation fail on all ranks.  Any thread may call it. */
    void (*abort)(struct memo_comm* comm);
    /* Returns the first asynchronous error so far.  Does not wait. */
    memo_status (*status)(struct memo_comm* comm, memo_error* error);

    /* The open group, of memo_group_begin and the functions after it. */
    memo_message_call* waiting; /* (max_waiting), memory of the back end */
    int32_t max_waiting, n_waiting, group_depth;
    memo_stream group_stream;
} memo_comm;

/* Calls of the table.  Calls that enqueue check all arguments, and count the bytes sent. */
MEMO_TRY_CALL memo_status memo_comm_split(memo_comm* comm, int32_t color, int32_t key,
                                          const char* name, memo_comm** part, memo_error* error) {
    return comm->split(comm, color, key, name, part, error);
}
MEMO_TRY memo_status memo_group_begin(memo_comm* comm, memo_error* error);
MEMO_TRY memo_status memo_group_end(memo_comm* comm, memo_stream stream, memo_error* error);
MEMO_TRY memo_status memo_send(memo_comm* comm, memo_stream stream, const void* from, int64_t count,
                               memo_type type, int32_t to_rank, memo_error* error);
MEMO_TRY memo_status memo_receive(memo_comm* comm, memo_stream stream, void* to, int64_t count,
                                  memo_type type, int32_t from_rank, memo_error* error);
/* Any collective, by arguments. */
MEMO_TRY memo_status memo_comm_collective(memo_comm* comm, memo_stream stream,
                                          const memo_collective_call* call, memo_error* error);
MEMO_TRY_CALL memo_status memo_comm_status(memo_comm* comm, memo_error* error) {
    return comm->status(comm, error);
}
/* Does nothing if comm is NULL. */
MEMO_FUNCTION void memo_comm_destroy(memo_comm* comm) {
    if (comm) comm->destroy(comm);
}
MEMO_FUNCTION void memo_comm_abort(memo_comm* comm) { comm->abort(comm); }

MEMO_TRY_CALL memo_status memoi_collective(memo_comm* comm, memo_stream stream,
                                           memo_collective kind, const void* from, void* to,
                                           int64_t count, memo_type type, memo_reduction reduction,
                                           int32_t root, memo_error* error) {
    const memo_collective_call call = {kind, type, reduction, root, count, from, to};
    return memo_comm_collective(comm, stream, &call, error);
}
/* to[i] = the sum or maximum of from[i] over all ranks; count elements each.  from == to is
 * allowed; other overlap is not.  Integers wrap modulo 2^n.  The maximum of anything and NaN is
 * NaN.  All ranks get bitwise the same result.  Threads and comm_mpi.h add in the order of ranks,
 * 16-bit types in fp32, and round once: every run has the same bits.  NCCL has its own order. */
MEMO_TRY_CALL memo_status memo_all_reduce(memo_comm* comm, memo_stream stream, const void* from,
                                          void* to, int64_t count, memo_type type,
                                          memo_reduction reduction, memo_error* error) {
    return memoi_collective(comm, stream, MEMO_COLLECTIVE_ALL_REDUCE, from, to, count, type,
                            reduction, 0, error);
}
/* to holds size * count elements; the count elements of rank r are at r * count.  In place: from is
 * this rank's part of to. */
MEMO_TRY_CALL memo_status memo_all_gather(memo_comm* comm, memo_stream stream, const void* from,
                                          void* to, int64_t count, memo_type type,
                                          memo_error* error) {
    return memoi_collective(comm, stream, MEMO_COLLECTIVE_ALL_GATHER, from, to, count, type,
                            MEMO_REDUCTION_SUM, 0, error);
}
/* from holds size * count elements; rank r gets the reduction of the count elements at r * count.
 * In place: to is this rank's part of from; the other parts keep their values. */
MEMO_TRY_CALL memo_status memo_reduce_scatter(memo_comm* comm, memo_stream stream, const void* from,
                                              void* to, int64_t count, memo_type type,
                                              memo_reduction reduction, memo_error* error) {
    return memoi_collective(comm, stream, MEMO_COLLECTIVE_REDUCE_SCATTER, from, to, count, type,
                            reduction, 0, error);
}
/* Copies buffer from rank root to all ranks. */
MEMO_TRY_CALL memo_status memo_broadcast(memo_comm* comm, memo_stream stream, void* buffer,
                                         int64_t count, memo_type type, int32_t root,
                                         memo_error* error) {
    return memoi_collective(comm, stream, MEMO_COLLECTIVE_BROADCAST, buffer, buffer, count, type,
                            MEMO_REDUCTION_SUM, root, error);
}
/* The stream passes the barrier after the streams of all ranks have reached the barrier. */
MEMO_TRY_CALL memo_status memo_barrier(memo_comm* comm, memo_stream stream, memo_error* error) {
    return memoi_collective(comm, stream, MEMO_COLLECTIVE_BARRIER, NULL, NULL, 0, MEMO_TYPE_U8,
                            MEMO_REDUCTION_SUM, 0, error);
}

/* For back ends: to = from[0] + from[1] + ... (or the maximum), of elements [begin, end) of each
 * from, on the host, with the bits of memo_all_reduce.  to may be the same elements of a from. */
MEMO_API void memo_comm_reduce(void* to, const void* const* from, int32_t n_from, int64_t begin,
                               int64_t end, memo_type type, memo_reduction reduction);
/* Writes the name of a rank in errors, "1 (world rank 5 on node7)", and returns text.  The number
 * of a part names no process, so that of the world is beside it; -1: rank is of the world.  host,
 * of the process: optional.  For back ends. */
#define MEMO_RANK_TEXT 160
MEMO_API const char* memo_comm_rank_text(char text[MEMO_RANK_TEXT], int32_t rank,
                                         int32_t world_rank, const char* host);

/* What a rank calls, for memo_comm_mismatch: a collective, or the type and count of a message. */
typedef struct memo_comm_op {
    const char* rank; /* memo_comm_rank_text */
    memo_collective_call call;
    memo_label label;
} memo_comm_op;
#define MEMO_MISMATCH_TEXT 480
/* For back ends.  Returns NULL if two ranks call the same.  Otherwise writes an error into text and
 * returns text: "rank 0 calls barrier as collective 2 of 'ring', rank 3 calls all_gather(8 f32)".
 * A message goes from rank a to rank b.  name: of the communicator; number: of the collective, or
 * of the message. */
MEMO_API const char* memo_comm_mismatch(char text[MEMO_MISMATCH_TEXT], const char* name,
                                        int64_t number, int32_t is_message, const memo_comm_op* a,
                                        const memo_comm_op* b);

/* --- ranks as threads ---
 *
 * Each rank has a device, in one process.  A receive copies from the sender's buffer; the sender's
 * operation ends when the copy has.  Ranks always compare messages, collectives and labels; an
 * error names two ranks and what differs.
 *
 *   host devices   (memo.h, chapter 6), for tests and CPUs.  Operations run on their streams and
 *                  meet their peers there.  For a race detector, messages and collectives order the
 *                  ranks that take part.
 *   peers          any devices that reach each other's memory, such as GPUs of a node that
 *                  computation should have for itself.  Streams copy with the device's own copies,
 *                  and wait for each other's events.  Sums are a row kernel that reads all buffers.
 *
 * PEERS.  A call returns when its peers have enqueued, too, and waits for no stream.  So ranks must
 * call in an order in which no two wait for each other.  A failure is returned by the call, after
 * its copies have ended.  If a rank's device has failed, peers may still read the rank's buffers:
 * call memo_comm_abort, then a collective, which returns when none does.  Calls cannot be captured.
 * Destroy no device before all ranks have synchronized their streams.  GPUs reach each other after
 * cudaDeviceEnablePeerAccess, each way.  Not yet run on several GPUs.
 *
 * Waiting ranks detect a failed device, a destroyed communicator or an abort within about 20 ms,
 * and a missing rank after timeout_s.  examples/thread_ranks.h runs a function on each rank. */
#ifndef MEMO_NO_HOST_DEVICE

typedef struct memo_comm_threads_desc {
    int32_t n_ranks;
    memo_device* const* devices; /* (n_ranks) */
    /* 1: peers, at most MEMO_REDUCE_MAX.  0: peers if a device is not from
     * memo_host_device_create. */
    int32_t are_peers;
    const char* name; /* copied; NULL: "threads world" */
    double timeout_s; /* must exceed the longest transfer; 0: 30 */

    /* A simulated link, not of peers; 0: none.  A receive from another rank takes bytes /
     * bytes_per_s; a collective takes what sent_bytes counts / bytes_per_s.  Transfers of a
     * communicator to a rank take turns. */
    double bytes_per_s;
} memo_comm_threads_desc;

/* Call this once.  Pass comms[r] to the thread of rank r, which must destroy comms[r].  Errors:
 * INVALID_ARGUMENT (1 to 32768 ranks are valid), OUT_OF_HOST_MEMORY; with peers, the device's. */
MEMO_TRY memo_status memo_comm_create_threads(const memo_comm_threads_desc* desc, memo_comm** comms,
                                              memo_error* error);

#endif
