/* memo_sp.h: made from src/ by scripts/amalgamate; edit there. */
/* memo_sp.h - sequence parallelism (Ulysses, ring, hybrid) and overlapped tensor parallelism.
 *
 * Ranks communicate through a small table of functions, memo_comm.  This header provides ranks as
 * threads of one process, on host devices or on GPUs that reach each other (no dependency).
 * memo_cuda.cuh implements a communicator over NCCL, examples/comm_mpi.h one over MPI.
 *
 * NOT FOR: choosing a model's parallel layout while it trains, moving weights between stages, or
 * starting processes.  Layouts are planned before, by extras/memo_layout.h; launchers start ranks.
 * Fused attention kernels are the trainer's: it hands in a local attention, such as cuDNN's.
 *
 * STEP BY STEP, in the order of calls:
 *
 *     1  a memo_comm: memo_comm_create_threads, memo_comm_create_nccl, or examples/comm_mpi.h
 *     2  memo_sequence_create, once; memo_sequence_batch_create with a batch's documents
 *     3  memo_sequence_batch_attend and memo_sequence_batch_attend_backward in each layer
 *     4  chapters 8 to 12 as needed: tensor-parallel blocks, loss, scans, experts
 *
 * The glossary of memo.h defines the terms, such as ring, Ulysses, zigzag and LSE.
 *
 * In exactly one translation unit, which contains memo.h's implementation:
 *
 *     #define MEMO_IMPLEMENTATION
 *     #define MEMO_SP_IMPLEMENTATION
 *     #include "memo_sp.h"              // cc -std=c99 ... -lpthread -lm
 *
 * EXAMPLE: causal attention of two packed documents over all ranks of comm, in every layer.  Each
 * rank holds some of the tokens: q, k, v and out are (local_tokens, heads, 64).  local computes a
 * rank's part, such as examples/host_attention.h on the host (examples/10_ulysses_threads.c).
 *
 *     memo_status attend(memo_comm* comm, memo_device* device, memo_stream stream,
 *                        memo_attention local, const memo_sp_attention_tensors* qkv_and_out,
 *                        memo_error* error) {
 *         const int64_t begins[] = {0, 400, 1000};
 *         const memo_sequence_batch_desc documents = {1000, begins, 2, NULL};
 *         memo_sequence_desc desc = {0};
 *         memo_sequence* sequence = NULL;
 *         memo_sequence_batch* batch = NULL;
 *         memo_status status;
 *         desc.device = device;
 *         desc.stream = stream;
 *         desc.comm = comm;
 *         desc.n_tokens = 1000;                            // any number; padded if necessary
 *         desc.n_layers = 2;
 *         desc.n_q_heads = 8;
 *         desc.n_kv_heads = 2;
 *         desc.head_size = 64;
 *         desc.attention = local;
 *         status = memo_sequence_create(&desc, &sequence, error);                    // once
 *         if (!status) status = memo_sequence_batch_create(sequence, &documents, &batch, error);
 *         for (int layer = 0; layer < 2 && !status; layer++)
 *             status = memo_sequence_batch_attend(batch, layer, qkv_and_out, error);
 *         if (!status) status = memo_stream_synchronize(device, stream, error);
 *         memo_sequence_batch_destroy(batch);
 *         memo_sequence_destroy(sequence);
 *         return status;
 *     }
 *
 * RULES.  As in memo.h.  In chapters 7 to 13 create returns INVALID_ARGUMENT, OUT_OF_HOST_MEMORY
 * and errors of the device; destroy waits for the desc's stream.  A pass enqueues on the desc's
 * stream and returns at once.  All ranks must call it, each from its thread, in one order.  It
 * returns INVALID_ARGUMENT; COMM if ranks differ (see memo_label); errors of callbacks, of
 * memo_comm and of the device.  The functions' comments name what differs from this.
 *
 * CHAPTERS  1 comm | 2 mesh | 3 shardings | 4 local attention | 5 Ulysses | 6 ring | 7 hybrid
 *           8 overlapped tensor-parallel blocks | 9 loss in tiles | 10 scan | 11 row kernels
 *           12 experts | 13 sequence
 *
 * OPTIONS (define before the implementation, and identically in every file that includes memo_sp.h)
 *     MEMO_NO_HOST_DEVICE      removes the threads back end, and memo.h's chapter 6
 *
 * License: MIT.  Language: C99 that is also C++11. */
#ifndef MEMO_SP_H
#define MEMO_SP_H

#include "memo.h"
#include <math.h>

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 5
#error "memo_sp.h: memo.h is of another release; use the memo.h of the same release"
#endif

#ifdef __cplusplus
extern "C" {
#endif

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

/* ---- 2 mesh: the groups of each rank ------------------------------------------------------------
 *
 * The ranks of a world form a box of pipeline x data x ring x ulysses x tensor ranks; tensor varies
 * fastest.  Tensor parallelism needs the fastest links, then ulysses, ring, data and pipeline
 * (unified SP paper, tip 7). */

typedef struct memo_mesh_desc {
    /* Degrees; 0: 1.  Their product must be the world's size. */
    int32_t data, pipeline, tensor, ring, ulysses;
    /* Nodes that a ring spans, each with as many consecutive ring ranks; 0: 1.  Divides ring. */
    int32_t nodes;
} memo_mesh_desc;

/* Every group exists; a group of degree 1 has a single rank, so no caller needs a branch. */
typedef struct memo_mesh {
    memo_mesh_desc degrees;                        /* none is 0 */
    int32_t rank, size;                            /* in the world */
    int32_t data_rank, pipeline_rank, tensor_rank; /* = rank in that group */
    int32_t ring_rank, ulysses_rank;
    int32_t sequence_rank; /* ring_rank * ulysses + ulysses_rank */
    int32_t gradient_rank; /* data_rank * ring * ulysses + sequence_rank */
    memo_comm* world;      /* borrowed */
    memo_comm *data, *pipeline, *tensor, *ring, *ulysses;
    memo_comm* nodes;    /* ring ranks at the same place of their nodes; NULL: one node */
    memo_comm* sequence; /* ring x ulysses: the ranks that share a sequence */
    memo_comm* gradient; /* data x sequence: sums gradients, and ZeRO shards over it (tip 3) */
} memo_mesh;

/* All ranks of world must call this with equal descs, each from its thread.  Errors:
 * INVALID_ARGUMENT, whose message lists degrees that fit; OUT_OF_HOST_MEMORY; those of split. */
MEMO_TRY memo_status memo_mesh_create(memo_comm* world, const memo_mesh_desc* desc,
                                      memo_mesh** mesh, memo_error* error);
MEMO_API void memo_mesh_destroy(memo_mesh* mesh);

/* ---- 3 shardings: which rank holds which tokens -------------------------------------------------
 *
 * A sequence is split over ring x ulysses ranks; sequence rank = ring_rank * ulysses +
 * ulysses_rank.  Each rank holds local_tokens rows.  The ranks of one ulysses group together hold
 * ring_tokens rows, in the order of their ranks; the attention of their ring rank works on these.
 * With rd = ring, and padded_tokens cut into equal chunks:
 *
 *   zigzag     2 rd chunks; ring rank r holds chunks r and 2 rd - 1 - r.  Equal work under a causal
 *              mask (unified SP paper, Algorithm 2).
 *   plain      rd chunks; ring rank r holds chunk r.  The last rank has the most work.
 *   documents  short documents stay on one ring rank, long ones are cut zigzag over as many as
 *              balance needs.  Equal work if attention ends at document borders.
 *
 * Padding.  If the length does not divide, fewer than 2 ring * ulysses padding tokens follow the
 * last token (documents: of each rank), at positions n_tokens and above.  Their output and gradient
 * are 0, their LSE is -inf or the head's sink, and they have no label.  A rank may have padding
 * only.
 *
 * Documents.  Packed documents need not divide by anything, and may be empty: the mask (chapter 4)
 * decides what attends to what.  The sharding "documents" halves the ring ranks again and again.
 * The document with most scores goes to the half with fewer, then the next one.  The document that
 * fills a half is cut there.  If the scores of a rank of both halves differ by more than 1 / 32 of
 * the mean over all ranks, the document with most scores is cut zigzag over all ranks of both
 * halves instead, so that each gets as many.  So the scores of ranks differ by a few percent, the
 * token counts by at most 1, and few documents have rows on several ranks.  Scores are causal in
 * each document, or those of the segments that are given.  A rank has as many rows whatever the
 * documents.  If these have fewer tokens than the capacity, each rank has its share of them, then
 * padding.
 *
 * Slices.  A sequence may be cut into slices, which are sharded one by one, zigzag or plain.  So
 * each rank has a share of each slice, and a layer may be computed slice by slice.
 *
 * The rows of a rank are runs of positions, ascending: at most MEMO_RUNS_MAX runs, of each slice if
 * there are slices; any number in the sharding "documents". */

typedef enum memo_sharding_kind {
    MEMO_SHARDING_ZIGZAG = 0,
    MEMO_SHARDING_PLAIN,
    MEMO_SHARDING_DOCUMENTS,
    MEMO_N_SHARDING_KINDS
} memo_sharding_kind;

/* The count positions start, start + 1, ... */
typedef struct memo_run {
    int64_t start, count;
} memo_run;
#define MEMO_RUNS_MAX 2

typedef struct memo_sharding_desc {
    memo_sharding_kind kind;
    int32_t ring, ulysses; /* degrees; 0: 1; ring of documents: at most 65536 */
    int64_t n_tokens;      /* of the whole sequence */
    /* MEMO_SHARDING_DOCUMENTS only: each rank has rows as if there were so many tokens; 0:
     * n_tokens. */
    int64_t capacity;
    /* MEMO_SHARDING_DOCUMENTS only: n_documents + 1 positions from 0 to n_tokens, not descending
     * (cu_seqlens).  Borrowed as long as the sharding is used. */
    const int64_t* document_begins;
    int64_t n_documents;
    /* As in memo_mask_desc: the scores of a document count those with its ancestors, and its
     * positions follow theirs.  NULL: none.  Borrowed, too. */
    const int64_t* document_parents;
    /* MEMO_SHARDING_DOCUMENTS only: what queries see (memo_mask.segments), if not causal documents.
     * Read by memo_sharding_make alone.  NULL, 0: causal. */
    const struct memo_segment* segments;
    int64_t n_segments;
    /* Tokens of every slice but the last; 0: one slice.  Multiples of 2 ring * ulysses work. */
    int64_t slice_tokens;
} memo_sharding_desc;

/* In the sharding "documents" the rows from `row` on, counted over all ranks, have the positions
 * from `position` on. */
typedef struct memo_sharding_piece {
    int64_t row, position;
} memo_sharding_piece;

typedef struct memo_sharding {
    memo_sharding_kind kind;
    int32_t ring, ulysses;
    int64_t n_tokens, capacity;
    int64_t padded_tokens;          /* ring * ulysses * local_tokens */
    int64_t local_tokens;           /* rows of each rank */
    int64_t ring_tokens;            /* ulysses * local_tokens */
    const int64_t* document_begins; /* as in the desc; otherwise NULL */
    int64_t n_documents;
    const int64_t* document_parents;
    int64_t slice_tokens;
    memo_sharding_piece* pieces; /* (n_pieces + 1) of documents, the last one an end; or NULL */
    int64_t n_pieces;
} memo_sharding;

/* Only documents take memory, which copies share.  Errors: INVALID_ARGUMENT, OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_sharding_make(const memo_sharding_desc* desc, memo_sharding* sharding,
                                        memo_error* error);
/* Frees the memory of documents; call this once, when no copy is used. */
MEMO_API void memo_sharding_free(memo_sharding* sharding);

/* Sets slice number k as a sharding of its own, and slices 0 .. k, whose keys k's queries may see.
 * Rows of a rank follow each other by slices: k's begin at so_far->local_tokens -
 * slice->local_tokens.  Without slices k is 0, and both are the sharding. */
MEMO_API void memo_sharding_slice(const memo_sharding* sharding, int64_t k, memo_sharding* slice,
                                  memo_sharding* so_far);
/* The position of a row in [0, local_tokens) of a sequence rank.  O(1); for documents
 * O(log n_pieces). */
MEMO_API int64_t memo_sharding_position(const memo_sharding* sharding, int32_t sequence_rank,
                                        int64_t row);
/* Writes the runs of a sequence rank and returns their number; no run is empty.  runs NULL: returns
 * the number only. */
MEMO_API int32_t memo_sharding_runs(const memo_sharding* sharding, int32_t sequence_rank,
                                    memo_run* runs);

/* Sets a rank's labels (n_batch, local_tokens): the label of a position is the token `ahead`
 * positions later: 1 for the next token, 2 or more for multi-token prediction, -1 for the previous
 * token.  A position without such a token in its document, and padding, get `ignored`.
 * document_begins (n_documents + 1): NULL means the documents of the sharding, or one document.
 * tokens (n_batch, n_tokens) are in host memory.  Returns the number of labels that are not
 * ignored.
 *
 * The mean loss: sum the losses and the numbers of labels over memo_mesh.gradient, and divide.  The
 * gradient of each label's loss is 1 / number of labels of all ranks.  Sum parameter gradients over
 * memo_mesh.gradient; do not average them. */
MEMO_API int64_t memo_sharding_labels(const memo_sharding* sharding, int32_t sequence_rank,
                                      int64_t n_batch, const int32_t* tokens, int64_t ahead,
                                      const int64_t* document_begins, int64_t n_documents,
                                      int32_t ignored, int32_t* labels);

/* ---- 4 local attention: a block of queries against a block of keys ------------------------------
 *
 * A callback computes a step of the ring on a rank, so that any kernel can be used.  The callback
 * gets queries and keys at known positions, and what they see, in rows.  Exact
 * callbacks are in examples/: host_attention.h, and exact_attention.h for GPUs. */

/* --- segments ---
 *
 * What queries see of keys is a list of segments: of positions in a mask, of rows in a block.  Of
 * the queries [q_begin, q_end), nq in number, query i sees these keys j of [k_begin, k_end), nk in
 * number, both counted from 0:
 *
 *     FULL     all                          CAUSAL   j <= i + nk - nq
 *     INVERSE  j >= i                       BAND     i <= j <= i + nk - nq
 *
 * nk is at least nq, unless all keys are seen, so each query of a segment sees a key.  Segments
 * ascend: q_begin is the last q_end or more, and neither end of the keys that a query sees descends
 * from a query to the next.
 *
 * A query may see several intervals of keys, each by a segment of another level.  Levels follow
 * each other in a list, and each ascends from its begin.  No two levels have the same pair. */

typedef enum memo_segment_type { /* the numbers of FlexFlashAttention's attn_type_map */
                                 MEMO_SEGMENT_FULL = 0,
                                 MEMO_SEGMENT_CAUSAL,
                                 MEMO_SEGMENT_INVERSE,
                                 MEMO_SEGMENT_BAND,
                                 MEMO_N_SEGMENT_TYPES
} memo_segment_type;

typedef struct memo_segment {
    int64_t q_begin, q_end, k_begin, k_end;
    memo_segment_type type;
    int32_t level; /* from 0 to MEMO_LEVELS_MAX - 1 */
} memo_segment;
#define MEMO_LEVELS_MAX 32

/* The keys [*begin, *end) that query q of a segment sees. */
MEMO_API void memo_segment_keys(const memo_segment* segment, int64_t q, int64_t* begin,
                                int64_t* end);

/* --- masks --- */

/* Positions from 0: of queries to the sharding's n_tokens, of keys to the key_sharding's.  A query
 * without a segment sees nothing. */
typedef struct memo_mask {
    const memo_segment* segments; /* (n_segments) */
    int64_t n_segments;
} memo_mask;

typedef enum memo_mask_kind {
    MEMO_MASK_CAUSAL = 0, /* a query sees the keys up to its own position */
    MEMO_MASK_FULL,
    MEMO_N_MASK_KINDS
} memo_mask_kind;

/* Packed documents.  The conditions hold together. */
typedef struct memo_mask_desc {
    memo_mask_kind kind;
    /* A query at position p sees keys in (p - window_before, p + window_after); 0: no limit.
     * CAUSAL is window_after 1. */
    int64_t window_before, window_after;
    /* Beside a window before, of a causal mask: a query also sees the first keys of its document,
     * up to its own position.  Level 1.  0: none. */
    int64_t n_first_keys;
    int64_t n_tokens; /* queries */
    int64_t n_keys;   /* 0: first_query + n_tokens */
    /* The position of query 0 among the keys: queries are a slice of a longer sequence.  Below 0:
     * queries before all keys. */
    int64_t first_query;
    /* n_documents + 1 positions of keys from 0 to n_keys, not descending (cu_seqlens).  A query
     * sees only keys of the same document; outside of all documents, none.  NULL: one document.
     * Chunked attention is a document for each chunk. */
    const int64_t* document_begins;
    int64_t n_documents;
    /* A tree of documents, so that many answers share one prompt: a query also sees all keys of the
     * parent of its document, of the parent's parent, and so on, each at a level of its own.
     * document_parents[i] (n_documents) is an earlier document, or -1.  Documents are in preorder:
     * the parent of document i is i - 1 or one of its ancestors.  At most MEMO_TREE_DEPTH_MAX
     * ancestors.  Not with windows or first_query.  NULL: no document has a parent. */
    const int64_t* document_parents;
} memo_mask_desc;
#define MEMO_TREE_DEPTH_MAX (MEMO_LEVELS_MAX - 1)

/* Each of these sets *n_segments, and unless segments is NULL writes as many.  Errors:
 * INVALID_ARGUMENT.
 *
 * Documents have at most 4 segments each within themselves, and one for each ancestor. */
MEMO_TRY memo_status memo_mask_documents(const memo_mask_desc* desc, memo_segment* segments,
                                         int64_t* n_segments, memo_error* error);
/* Query i sees the keys [key_first[i], key_end[i]) (n_tokens each), ends that do not descend:
 * images that attend within themselves, prefixes that all queries see. */
MEMO_TRY memo_status memo_mask_intervals(const int64_t* key_first, const int64_t* key_end,
                                         int64_t n_tokens, int64_t n_keys, memo_segment* segments,
                                         int64_t* n_segments, memo_error* error);
/* Cross-attention: queries of document i see all keys of document i.  (n_documents + 1) each. */
MEMO_TRY memo_status memo_mask_cross(const int64_t* query_begins, const int64_t* key_begins,
                                     int64_t n_documents, memo_segment* segments,
                                     int64_t* n_segments, memo_error* error);

/* --- the segments of a block --- */

/* What a local attention gets beside segments on the host: arrays in device memory. */
typedef enum memo_launch_kind {
    MEMO_LAUNCHES_NONE = 0,
    MEMO_LAUNCHES_RANGES, /* ranges and types: FlexFlashAttention, one call */
    MEMO_LAUNCHES_VARLEN, /* these, and launches of FlashAttention 2 and 3 */
    MEMO_LAUNCHES_RAGGED, /* these, and launches of cuDNN, whose INVERSE is from_top */
    MEMO_N_LAUNCH_KINDS
} memo_launch_kind;

/* Sequences that one call of a fused kernel computes; no two of a launch share queries or keys.
 * Query i of nq sees key j of nk, both counted within their sequence, if
 *     i + nk - nq - left <= j <= i + nk - nq + right
 *
 *   FlashAttention 3   cu_seqlens are begins; with has_gaps seqused are counts; causal if left is
 *                      -1 and right 0, otherwise window_size (left, right).  Its backward sets
 *                      gradients: let it write to scratch memory, and add the rows of sequences
 *   FlashAttention 2   has no seqused in backward: a gap is two sequences more, of queries without
 *                      keys and of keys without queries
 *   cuDNN              ragged offsets are begins x the elements of a row, lengths are counts.
 *                      Right 0: BOTTOM_RIGHT with right bound 0; a window also has the left bound
 *                      left + 1; from_top: TOP_LEFT with left bound 1 */
typedef struct memo_launch {
    int32_t n;            /* sequences */
    int32_t left, right;  /* -1: no limit */
    int32_t from_top;     /* 1: the left limit is i - left <= j */
    int32_t max_q, max_k; /* of the longest sequences */
    int32_t has_gaps;     /* rows lie between sequences */
    /* In device memory, rows of the block: begins are (n + 1), counts are (n). */
    const int32_t *q_begins, *q_counts, *k_begins, *k_counts;
    /* The same in host memory: one or two segments a sequence.  For a kernel that computes what
     * another cannot. */
    int32_t n_segments;
    const memo_segment* segments;
} memo_launch;

/* Segments of rows, of one level.  In a causal document that is cut zigzag, a rank's own keys are
 * one CAUSAL segment, and the keys of another rank one FULL segment.  Arrays stay unchanged until
 * the stream has passed. */
typedef struct memo_segments {
    int32_t n;
    const memo_segment* host; /* (n), in host memory */
    /* In device memory, as memo_attention.launches says; otherwise NULL. */
    const int32_t *q_ranges, *k_ranges, *types; /* (n, 2), (n, 2), (n) */
    int32_t n_launches;
    const memo_launch* launches; /* (n_launches), in host memory */
} memo_segments;

/* Rows are the positions of q_runs and k_runs in their order, without padding.  Element e of head h
 * of row i of sequence b of q is at
 *     q[b * q_batch_stride + i * q_row_stride + h * head_size + e].
 * The strides of q, k, v and out apply to d_q, d_k, d_v and d_out too.  Heads of v, out and their
 * gradients have v_head_size elements.  lse and row_dots have a number per row and head, with the
 * strides of lse.  Strides count elements.  Query head h reads key head h / (n_q_heads /
 * n_kv_heads).  The n_batch sequences share the runs and the segments. */
typedef struct memo_attention_block {
    memo_type type;       /* of q, k, v, d_out: F32, BF16 or F16 */
    float scale;          /* of the scores */
    float softcap;        /* not 0: a score s becomes softcap * tanh(s / softcap) */
    int32_t first_q_head; /* of n_q_heads of the desc, for biases by head such as ALiBi's */
    int32_t n_batch, n_q_heads, n_kv_heads;
    int32_t head_size, v_head_size; /* of q and k; of v and out */
    int32_t n_q_runs, n_k_runs;
    const memo_run *q_runs, *k_runs; /* unchanged until the stream has passed */
    memo_segments segments;          /* which pairs of rows there are, and no others */
    int64_t q_row_stride, q_batch_stride, k_row_stride, k_batch_stride, v_row_stride,
        v_batch_stride, out_row_stride, out_batch_stride, lse_row_stride, lse_batch_stride;
    const void *q, *k, *v, *d_out;
    float* out;             /* set by forward */
    float* lse;             /* set by forward, read by backward */
    const float* row_dots;  /* backward: sum of d_out * output over a head */
    float *d_q, *d_k, *d_v; /* backward adds here */
} memo_attention_block;

/* Enqueues on stream and returns.  block is valid only during the call.
 *   forward    the softmax over this block's keys: sets out and lse of the rows in segments, and
 *              no others
 *   backward   lse is over all keys, and row_dots belongs to the final output:
 *              P = exp(scale * q k - lse), d_v += P^T d_out, dS = P * (d_out v^T - row_dots),
 *              d_q += scale * dS k, d_k += scale * dS^T q
 *              With softcap, dS is multiplied by 1 - tanh^2.
 * Rows of k and v that no query of the block sees are finite numbers, but not always of their
 * positions.  A function that cannot do a block returns UNSUPPORTED.  The function may add biases
 * to scores, by head and by positions. */
typedef memo_status (*memo_attention_function)(void* user, memo_stream stream,
                                               const memo_attention_block* block,
                                               memo_error* error);

typedef struct memo_attention {
    memo_attention_function forward, backward; /* both are required */
    void* user;
    memo_launch_kind launches; /* device arrays of memo_segments that the functions read */
} memo_attention;

/* Latent keys (DeepSeek-V2's latent attention): keys and values are functions of narrow rows, which
 * travel instead.  The block is valid only during the call.  Rows and heads are contiguous. */
typedef struct memo_latent_block {
    memo_type type; /* of latent, k, v */
    int32_t first_kv_head, n_kv_heads;
    int64_t n_rows;
    const void* latent;     /* (n_rows, latent size) */
    void *k, *v;            /* (n_rows, n_kv_heads, head_size or v_head_size); expand sets both */
    const float *d_k, *d_v; /* reduce reads these, alike */
    float* d_latent;        /* reduce adds here */
} memo_latent_block;

/* Enqueues on stream and returns.
 *   expand   k and v of rows that have arrived, for heads that the caller's queries read
 *   reduce   d_latent += the gradient of the latent rows, before it travels.  Sums gradients of
 *            weights, too: over all ranks of memo_mesh.gradient they are complete.  k, v: undefined
 * Rows that no query sees are finite, but not always of their positions. */
typedef memo_status (*memo_latent_function)(void* user, memo_stream stream,
                                            const memo_latent_block* block, memo_error* error);

typedef struct memo_latent {
    int32_t size;    /* elements of a row; 0: keys and values travel */
    int32_t n_heads; /* key heads expanded at a time, which scratch memory holds; 0: all */
    memo_latent_function expand, reduce;
    void* user;
} memo_latent;

/* ---- 5 Ulysses: all positions of some heads -----------------------------------------------------
 *
 * Before attention an all-to-all exchange converts (n_batch, local_tokens, all heads) to (n_batch,
 * ring_tokens, some heads); after attention another exchange converts back.  Each is the backward
 * of the other (DeepSpeed-Ulysses).  The side by heads, and rows for a rank that needs all heads,
 * are sent in place; other rows are packed.
 *
 * Rank u of ud owns the query heads [u Hq / ud, (u + 1) Hq / ud), rounded down.  So the numbers of
 * heads may differ by 1, or be 0.  A rank needs the key heads that its query heads read, so several
 * ranks may need the same one.  The gradients of these replicas are sent and summed in fp32 on the
 * rank that holds the rows.
 *
 * A rank may split its heads into G equal groups (memo_sp_attention_desc.ulysses_groups): G ud
 * divides Hq.  Group g of rank u owns the heads that rank u G + g of G ud ranks would.  So a key
 * head that several groups read travels for each, unless G divides the key heads of a rank.  The
 * exchanges run on a stream of the engine, to heads ("g arrives") and back to rows ("g leaves"): 0
 * arrives, 1 arrives, 0 leaves, 2 arrives, 1 leaves.
 *
 *   g arrives    waits for  the start (g = 0); group g - 2, which used the same buffers, has left
 *   attention    waits for  the arrival of g; the results wait until the results of g - 1 have left
 *   g leaves     waits for  the results of g
 *   the end      waits for  the last group to leave */

typedef struct memo_ulysses_heads {
    int32_t first_q, n_q;
    int32_t first_kv, n_kv; /* key head of query head h: h / (Hq / Hkv) */
} memo_ulysses_heads;

/* ---- 6 ring: keys and values go round -----------------------------------------------------------
 *
 * In a step a ring rank computes all its queries against the keys and values of one rank, first of
 * its own.  Meanwhile those of later steps arrive on a stream of the engine.  Each step calls the
 * local attention with the runs that see each other under the mask: one to three times, so that
 * query heads share key heads evenly; more often for latent keys and separate masks.
 *
 * Each row travels once, straight from its owner, to each rank that reads it.  The messages of all
 * ranks are one list, which each rank makes alone from the masks.  In a turn of the list a rank
 * sends keys to at most one rank and gets some from at most one, and so with gradients; a rank
 * without a message does not wait in it.  Two orders are played on a clock, where receiving takes a
 * sixth of a forward: by distance of ranks, and always the message that can begin first.  The one
 * that takes less is the list (bench/batches).  A message is in a later turn than all that it waits
 * for, so no two ranks wait for each other.
 *
 *   forward    the outputs and LSEs of the steps are merged in fp32, and at the end with the sinks
 *   backward   keys and values travel again; the gradients of their rows return to the owner at
 *              once, in fp32 or rounded to the tensors' type; the owner adds these in fp32 on the
 *              engine's stream, in the order of turns; of step 0, the owner's own, a third comes
 *              first, while keys arrive, and the rest last, while gradients return; if it is one
 *              segment, all of it comes last
 *
 * The rows for a reader are ranges, each a message of k and a message of v.  A sequence has at most
 * 256 / n_batch ranges, but between 4 and 64.  Of more ranges the narrowest gaps travel, too, and
 * all gaps if these are then less than an eighth of all rows.
 *
 * Nodes.  With desc.nodes a row crosses to a node once, to the rank at the owner's place, which
 * holds all rows that anybody in its node reads until these have them, and adds up their gradients,
 * which return to the owner once.  Rows that cross, and sums that return, are messages of the same
 * list, on a stream and links of their own, which the clock takes for ten times slower.  This
 * takes as much memory more as two sets of keys, and in backward four of gradients.  What to
 * choose (simulated time over the ideal, 131,072 tokens on 128 ranks in 16 nodes, 32 heads, both
 * passes; bench/sp nodes):
 *
 *     ulysses 8, ring 16              1.03, 1.03   if each rank of a node has key heads of its own
 *     the same, latent keys           1.72, 1.38   every rank of a node gets all latent rows
 *     ring 128 over 16 nodes          1.00, 1.02   with any number of key heads, and latent keys
 *     ring 128 without nodes          6.51, 5.21   each row crosses 8 times
 *
 * Memory does not grow with the ring.  Keys and values of other ranks lie in a pool of twice the
 * rank's own rows, contributions to d_k and d_v in a pool of three times these rows (in fp32; twice
 * if they are rounded), each where there is room.  So ranks whose steps are unequal do not wait for
 * each other, unless a pool is full (bench/sp makespan).  memo_schedule_check finds a race if any
 * of these waits is removed:
 *
 *   an exchange  waits for  the start (the first one), so that k and v are complete, or are back
 *                           from swap; the latest step whose keys lay in the room that it fills; in
 *                           backward, the step that made the d_k and d_v that are sent
 *   step s       waits for  the exchange that brought its keys; in backward, for the exchange that
 *                           sent what lay in the room of its contribution
 *   rows that cross  wait for the start; the readers of those that lay in their room, and their sum
 *   a sum        waits for  all contributions to it
 *   the end      waits for  the last exchange, so that the caller may overwrite k and v, and a
 *                           synchronized stream has passed every exchange */

/* ---- 7 hybrid: attention over ulysses x ring ranks ----------------------------------------------
 *
 * Create an object per rank and shape, and an exchange per batch and kind of mask, alike on all
 * ranks of the mesh's sequence group; both serve all layers.  A degree of 1 costs nothing: no copy,
 * no message, no buffer.
 *
 * Slices.  A layer of a long sequence may be computed slice by slice (slice_tokens of a sharding).
 * Each slice has an attention of its own: sharding and key_sharding are of memo_sharding_slice, and
 * first_query of memo_mask_desc is the slice's first token.  k and v are this rank's rows of the
 * slices so far.  Backward sets their gradients, which the caller adds up over slices. */

typedef struct memo_sp_attention_desc {
    const memo_device* device; /* optional for get_sizes */
    /* Runs all but exchanges of the ring and, with several ulysses_groups, of Ulysses.  Not NULL:
     * pass a handle of CUDA's default stream, also in chapters 9, 10 and 12. */
    memo_stream stream;
    /* memo_mesh.ring and .ulysses; NULL if the degree is 1, and for get_sizes. */
    memo_comm *ring, *ulysses;
    int32_t ring_rank, ulysses_rank; /* used if ring or ulysses is NULL */
    /* A ring over nodes, whose ranks at the same place of each node are `nodes`: memo_mesh.nodes.
     * Each row crosses to a node once (chapter 6).  NULL: none.  n_nodes: used if it is NULL. */
    memo_comm* nodes;
    int32_t n_nodes;
    memo_sharding sharding;
    /* 0: 1.  Of a ring at most about max_waiting / 4: more fail in forward.  Up to 63 its groups
     * have at most 256 messages; NCCL is known to hang with more. */
    int32_t n_batch;
    /* The masks of an exchange: 1 (or 0) for all sequences of the batch, or n_batch in an array, so
     * that each sequence has separate documents. */
    int32_t n_masks;
    /* 1: masks may have several levels, which are merged in scratch memory. */
    int32_t has_levels;
    /* Cross-attention: the sharding of k and v, of any length and kind, with the same ring and
     * ulysses.  Empty: keys have the queries' sharding. */
    memo_sharding key_sharding;
    /* n_q_heads must be a multiple of n_kv_heads.  head_size: of q and k.  v_head_size: of v and
     * out; 0: head_size.  The local attention may limit both. */
    int32_t n_q_heads, n_kv_heads, head_size, v_head_size;
    /* Not 0 in latent.size: k and d_k are latent rows, and v and d_v NULL.  n_kv_heads, head_size
     * and v_head_size are of the expanded keys and values, which exist on their readers only. */
    memo_latent latent;
    memo_type type; /* F32, BF16, F16; lse, sinks and d_sinks are fp32 */
    float scale;    /* 0: 1 / sqrt(head_size) */
    float softcap;  /* of the scores, as in memo_attention_block; 0: none */
    /* 1: d_k and d_v travel in the tensors' type, so each step's contribution is rounded once. */
    int32_t rounds_gradients;
    /* If ulysses > 1, backward needs q, k and v by heads.  0: tensors.saved keeps them; 1: backward
     * sends them again. */
    int32_t sends_again;
    /* Groups of heads per rank (chapter 5); 0: 1.  The all-to-all of a group overlaps the attention
     * of another.  Scratch memory holds one group; what arrives during another group exists twice.
     * ulysses * ulysses_groups must divide n_q_heads; not used if ulysses is 1. */
    int32_t ulysses_groups;
    memo_attention attention;
    /* memo_sp_attention_sizes.device_bytes, aligned to 512; NULL: allocated from the device. */
    void* device_memory;
} memo_sp_attention_desc;

/* The memory of a desc, before anything is allocated. */
typedef struct memo_sp_attention_sizes {
    int64_t device_bytes; /* scratch, shared by all layers */
    int64_t saved_bytes;  /* tensors.saved, kept from forward to backward */
    int64_t lse_bytes;    /* tensors.lse, kept from forward to backward */
    memo_ulysses_heads heads;
} memo_sp_attention_sizes;

/* A layer's tensors in device memory: the rows of this rank, contiguous.  q and d_q are (n_batch,
 * local_tokens, n_q_heads, head_size); k and d_k have n_kv_heads.  out and d_out are (n_batch,
 * local_tokens, n_q_heads, v_head_size); v and d_v have n_kv_heads.  k, v, d_k and d_v have the
 * local_tokens of key_sharding, if there is one.  Latent keys are k and d_k (n_batch, local_tokens,
 * latent.size).  Set the struct to zero first; unused fields are NULL. */
typedef struct memo_sp_attention_tensors {
    const void *q, *k, *v; /* not read by a backward with tensors.saved */
    void* out;             /* set by forward, read by backward */
    /* (n_batch, ring_tokens, heads.n_q), fp32; set by forward, read by backward; -inf for rows that
     * see nothing, such as padding, unless they have sinks.  With groups of heads the arrays of
     * the groups follow each other, each with the heads of its group. */
    float* lse;
    void* saved; /* NULL is allowed if saved_bytes is 0 */
    /* Attention sinks: a logit per query head (n_q_heads), fp32, equal on all ranks, takes part in
     * the softmax of every row and has no value.  A row that sees no key has its head's sink as
     * LSE.  NULL, or -inf for a head: none.  Backward sets d_sinks (n_q_heads): the sum over the
     * rows and heads that this rank computes, 0 for other heads.  Sum it over memo_mesh.gradient,
     * as parameter gradients. */
    const float* sinks;
    float* d_sinks;
    const void* d_out; /* backward only, as are d_q, d_k and d_v */
    /* Set by backward.  If ring * ulysses is more than 1, d_k may be k and d_v may be v. */
    void *d_q, *d_k, *d_v;
} memo_sp_attention_tensors;

typedef struct memo_sp_attention memo_sp_attention;

MEMO_TRY memo_status memo_sp_attention_desc_get_sizes(const memo_sp_attention_desc* desc,
                                                      memo_sp_attention_sizes* sizes,
                                                      memo_error* error);
/* Each rank calls this independently. */
MEMO_TRY memo_status memo_sp_attention_create(const memo_sp_attention_desc* desc,
                                              memo_sp_attention** attention, memo_error* error);
/* Call before the stream, the device and the communicators are destroyed. */
MEMO_API void memo_sp_attention_destroy(memo_sp_attention* attention);

typedef struct memo_exchange_desc {
    /* The attention's desc.n_masks, read by memo_exchange_create alone; NULL: causal within the
     * documents of the keys' sharding, with their parents. */
    const memo_mask* masks;
    /* For a batch with other tokens and documents.  Its kind, degrees and rows of a rank must match
     * the desc's.  NULL: the desc's.  Its arrays are borrowed until the exchange is destroyed. */
    const memo_sharding* sharding;
    int32_t has_sinks; /* 1: passes get tensors.sinks; 0: they do not */
    /* For the device arrays of memo_segments, until the exchange is destroyed: device_bytes bytes,
     * aligned to 16.  NULL: allocated from the device.  Not used with MEMO_LAUNCHES_NONE. */
    void* device_memory;
    int64_t device_bytes;
} memo_exchange_desc;

/* Device bytes that are enough for an exchange whose masks have n_segments together. */
MEMO_API int64_t memo_exchange_device_bytes(const memo_sp_attention_desc* desc, int64_t n_segments);

/* Which rows travel in which step, and what each step computes. */
typedef struct memo_exchange memo_exchange;

/* All ranks of the sequence group must call this, as a pass.  Computes and allocates on the host
 * what passes need, so that passes do neither.  Enqueues a barrier of ring and ulysses, which
 * compares descs, shardings and masks of all ranks; passes compare nothing on NCCL.  COMM may come
 * from a later call. */
MEMO_TRY memo_status memo_exchange_create(memo_sp_attention* attention,
                                          const memo_exchange_desc* desc, memo_exchange** exchange,
                                          memo_error* error);
/* Call before memo_sp_attention_destroy, on the thread of passes.  Waits for nothing: memory is
 * freed, or serves another exchange, when the stream has passed. */
MEMO_API void memo_exchange_destroy(memo_exchange* exchange);

/* Passes of the sequence group.  Pass the same exchange to forward and backward.  Gradients of
 * padding rows are 0.  After a failure the results are undefined.  UNSUPPORTED: the device has no
 * row kernels, which every backward needs, and a forward with rows that see nothing. */
MEMO_TRY memo_status memo_sp_attention_forward(memo_sp_attention* attention,
                                               const memo_exchange* exchange,
                                               const memo_sp_attention_tensors* tensors,
                                               memo_error* error);
MEMO_TRY memo_status memo_sp_attention_backward(memo_sp_attention* attention,
                                                const memo_exchange* exchange,
                                                const memo_sp_attention_tensors* tensors,
                                                memo_error* error);

/* ---- 8 overlapped tensor-parallel blocks --------------------------------------------------------
 *
 * A model split by tensor parallelism is a sequence of blocks (attention, MLP, attention, ...).
 * Each block ends with a collective.  The collective sums the ranks' partial outputs in forward,
 * and the partial input gradients in backward.  If a batch is cut into parts (sub-batches), the
 * collective of a part overlaps the computation of another (Oases paper, section 3).
 *
 * --- the schedules ---
 *
 *   default    every operation waits for the previous operation (Megatron)
 *   pipelined  parts overlap within each pass; a whole layer is recomputed before its backward
 *              (Merak)
 *   cross      recomputation and backward overlap too (cross-pass)
 *   fine       recomputation starts after each collective of forward, and so needs none itself
 *              (cross-pass with fine-grained recomputation); the input of every block is saved,
 *              not only that of every layer
 *
 * The last three share the pipelined forward.  A collective starts right after the input gradient;
 * the weight gradient overlaps it.
 *
 * With splits_sequence the parts are consecutive ranges of a sequence, and the first block of each
 * layer is attention.  Its forward of a part reads the keys and values of earlier parts; its
 * backward of a part adds to their gradients.  So backward processes the last part first, and
 * attention is recomputed for all parts before the first backward. */

typedef enum memo_blocks_order {
    MEMO_BLOCKS_DEFAULT = 0,
    MEMO_BLOCKS_PIPELINED,
    MEMO_BLOCKS_CROSS,
    MEMO_BLOCKS_FINE,
    MEMO_N_BLOCKS_ORDERS
} memo_blocks_order;
MEMO_API const char* memo_blocks_order_name(memo_blocks_order order); /* "fine"; never NULL */

typedef struct memo_blocks_schedule_desc {
    memo_blocks_order order;
    int32_t n_blocks;         /* K: whole layers; n_blocks * n_parts is at most 2^20 */
    int32_t blocks_per_layer; /* 0: 2 */
    int32_t n_parts;          /* 0: 2 */
    int32_t splits_sequence;
} memo_blocks_schedule_desc;

/* --- running the blocks ---
 *
 * The trainer supplies a function for each piece of a block.  Once per pass the trainer calls
 * forward and backward, for all layers or layer by layer.  memo_blocks calls the functions in the
 * order of the schedule, and enqueues collectives and event waits between them.  Nothing waits on
 * the host.
 *
 * The functions compute, for part s, with the part's output buffer y and gradient buffer g:
 *
 *   forward      y = this rank's partial sum of the block's output.  The input h_i is given (i = 0)
 *                or h_{i-1} + y, with y the reduced output of the previous block.  Keeps h_i if
 *                call.keeps_input.
 *   recompute    what backward needs and forward did not keep, from h_i (call.is_input_saved) or
 *                from h_{i-1} and y.  If call.has_output, computes y again; otherwise may skip
 *                the last product.
 *   backward     g = this rank's partial sum of the gradient of the block's input.  The gradient
 *                d_i of the block's output stream is given (last block) or d_{i+1} + g (g reduced,
 *                and carried through the norm).
 *   weights      adds the gradients of this rank's weights.  Overlaps the collective of g, and
 *                must read neither y nor g.
 *   forward_end  the output of the last block, h_{K-1} + y.
 *   backward_end the gradient of the first block's input, d_0 + g.
 *
 * Parts run in the same sequence in every order of the schedule, so sums over parts have the same
 * bits.  The collective of a part reads and writes the trainer's buffers. */

typedef struct memo_block_call {
    int32_t block, part;
    memo_stream stream;     /* enqueue here */
    int32_t is_input_saved; /* 1: the input is saved; 0: previous block's input plus y */
    int32_t keeps_input;    /* forward: recompute reads the saved input */
    int32_t has_output;     /* 1: compute y, which is summed over the ranks */
} memo_block_call;

typedef memo_status (*memo_block_function)(void* context, const memo_block_call* call,
                                           memo_error* error);

typedef struct memo_block_functions {
    void* context;
    memo_block_function forward, recompute, backward;
    memo_block_function weights; /* NULL: backward computes these */
    /* Optional; call.block is the last block (forward_end) or the first (backward_end). */
    memo_block_function forward_end, backward_end;
} memo_block_functions;

/* The buffers of a part, in device memory, count elements each. */
typedef struct memo_block_buffers {
    void *output, *gradient; /* y and g */
    int64_t count;
} memo_block_buffers;

typedef struct memo_blocks_desc {
    const memo_device* device;
    memo_stream compute_stream;
    memo_comm* comm; /* memo_mesh.tensor; the passes use comm on a stream of high priority */
    memo_type type;
    memo_blocks_schedule_desc schedule;
    const memo_block_buffers* buffers; /* (n_parts), copied */
    memo_block_functions functions;
} memo_blocks_desc;

typedef struct memo_blocks memo_blocks;

/* Each rank calls this independently. */
MEMO_TRY memo_status memo_blocks_create(const memo_blocks_desc* desc, memo_blocks** blocks,
                                        memo_error* error);
MEMO_API void memo_blocks_destroy(memo_blocks* blocks);

/* Enqueue a layer, so that the trainer can act between layers (memo_swap_forward_begin and others),
 * or with MEMO_ALL_LAYERS a pass over all.  Call forward for layers 0, 1, ..., then backward for
 * ..., 1, 0.  After a pass the compute stream waits for all of it.  A forward of layer 0 always
 * starts a new pass.  Several passes of forward may come before as many of backward, for slices of
 * a micro-batch.  INVALID_STATE: out of order. */
#define MEMO_ALL_LAYERS (-1)
MEMO_TRY memo_status memo_blocks_forward(memo_blocks* blocks, int32_t layer, memo_error* error);
MEMO_TRY memo_status memo_blocks_backward(memo_blocks* blocks, int32_t layer, memo_error* error);

/* Elements [begin, begin + count) of n on a rank.  Counts of two ranks differ by at most 1. */
typedef struct memo_share {
    int64_t begin, count;
} memo_share;
MEMO_API memo_share memo_share_of(int64_t n, int32_t size, int32_t rank);

/* ---- 9 loss in tiles: classifier and cross-entropy without the logits of all rows ---------------
 *
 * The logits of a long sequence are larger than all activations.  So the classifier runs on tiles
 * of rows: logits of a tile, the loss, the gradient in the same memory, and the products of that
 * gradient.  Logits exist for a single tile at a time.
 *
 * Tensor ranks may split the vocabulary: rank r has the columns memo_share_of(vocabulary, size, r).
 * Each rank has all rows of x.  An all-gather of 12 bytes per row and rank (parts of the softmax,
 * memo_cross_entropy_desc) gives all ranks bitwise the same losses of the whole vocabulary.
 *
 * The matrix products are the trainer's (BLAS, cuBLASLt): functions.logits sets t->logits to rows
 * of x times W^T, and functions.gradients reads the logits' gradient there: d_x rows = t->logits
 * times W, d_W += t->logits^T times x rows.  After each micro-batch, or several, add tensors.sums
 * over memo_mesh.gradient (3 numbers, F64), and call memo_loss_read.
 *
 * For multi-token prediction run the loss once for each head, with labels from
 * memo_sharding_labels.  A whole example is examples/17_loss_in_tiles.c. */

/* Rows [first_row, first_row + n_rows) and this rank's columns. */
typedef struct memo_loss_tile {
    memo_stream stream; /* enqueue here */
    int64_t first_row, n_rows;
    int64_t first_column, n_columns; /* of the vocabulary; n_columns may be 0 */
    void* logits;                    /* (n_rows, n_columns) in desc.type; later their gradient */
} memo_loss_tile;

typedef struct memo_loss_functions {
    void* context;
    memo_status (*logits)(void* context, const memo_loss_tile* tile, memo_error* error);
    /* With tensor ranks d_x is a partial sum; reduce d_x over the ranks, here or after the run.
     * Optional if every run has scale 0. */
    memo_status (*gradients)(void* context, const memo_loss_tile* tile, memo_error* error);
} memo_loss_functions;

typedef struct memo_loss_desc {
    const memo_device* device; /* optional for get_sizes */
    memo_stream stream;
    memo_comm* tensor; /* NULL: a single rank has the whole vocabulary */
    int64_t vocabulary;
    memo_type type; /* of logits: F32, BF16, F16 */
    float softcap;  /* memo_cross_entropy_desc; 0: none */
    /* 0: as many as 64 MiB hold of logits, or of the parts that ranks exchange; at least 1. */
    int64_t tile_rows;
    memo_loss_functions functions;
    /* memo_loss_sizes.device_bytes, aligned to 512; NULL: allocated from the device. */
    void* device_memory;
} memo_loss_desc;

typedef struct memo_loss_sizes {
    int64_t device_bytes; /* logits, parts and losses of a tile */
    int64_t tile_rows;    /* the same on all tensor ranks */
    int64_t first_column, n_columns;
    int64_t sent_bytes_per_row; /* to other tensor ranks: 12 (size - 1) */
} memo_loss_sizes;

/* In device memory. */
typedef struct memo_loss_tensors {
    int64_t n_rows;
    const int32_t* labels; /* (n_rows), below vocabulary; below 0: no loss and no gradient */
    float* losses;         /* (n_rows), in nats; optional */
    /* (3): adds the losses, the number of labels, and that of labels at or beyond the vocabulary,
     * which only the device sees.  The loss of such a row is NaN, its gradient 0.  Optional. */
    double* sums;
    /* The gradient of each label's loss: usually 1 / number of labels of all ranks.  0: only the
     * loss; functions.gradients is not called. */
    float scale;
} memo_loss_tensors;

typedef struct memo_loss memo_loss;

MEMO_TRY memo_status memo_loss_desc_get_sizes(const memo_loss_desc* desc, memo_loss_sizes* sizes,
                                              memo_error* error);
/* Each rank calls this independently.  UNSUPPORTED: the device has no row kernels. */
MEMO_TRY memo_status memo_loss_create(const memo_loss_desc* desc, memo_loss** loss,
                                      memo_error* error);
MEMO_API void memo_loss_destroy(memo_loss* loss);
/* A pass of all tiles, with the same n_rows, labels and scale on all tensor ranks. */
MEMO_TRY memo_status memo_loss_run(memo_loss* loss, const memo_loss_tensors* tensors,
                                   memo_error* error);
/* Reads sums, of this rank or added over ranks, and waits for the desc's stream.  mean: the loss
 * per label; 0 without labels.  INVALID_ARGUMENT: a label is at or beyond the vocabulary. */
MEMO_TRY memo_status memo_loss_read(const memo_loss* loss, const double* sums, double* mean,
                                    memo_error* error);

/* ---- 10 scan: recurrences over ranks ------------------------------------------------------------
 *
 * A recurrence such as Mamba-2, linear attention or the gated delta net maps the state before a
 * token to the state after it: h -> M h + b.  A rank's rows together do the same.  So a rank first
 * summarizes its rows as M and b from a state of 0.  A prefix scan then gives each rank the state
 * before its first row, and the rank runs its rows from there.
 *
 *   summarize  M, and b: the state after the rows if the state before them is 0
 *   compose    (M2, b2) after (M1, b1) is (M2 M1, M2 b1 + b2)
 *   run        the rows, from the state before them
 *
 * The scan takes ceil(log2(ranks)) exchanges.  Their bytes do not depend on the number of tokens.
 * backward is the scan from the last rank to the first: h is the gradient of the state, M is
 * transposed, and b is the gradient of the state before the rows if that after them is 0.  Ranks
 * compose in a fixed order, so each run gives the same bits.
 *
 * The rows of a rank are consecutive positions, in the order of ranks, with any number of rows on
 * each.  A state ends where a document begins.  Nothing travels past such a border, and compose is
 * not called for it; but summarize and run must treat borders inside of their rows.
 *
 * The callbacks decide what the numbers mean.  Where M is diagonal, its logarithms do not underflow
 * (the library only moves M).  m_count 0 is an M that is the identity, as in linear attention.
 * examples/24_scan_ranks.c is a whole example. */

typedef struct memo_scan_call {
    memo_stream stream; /* enqueue here */
    int32_t is_backward;
    void* user; /* memo_scan_tensors.user */
    /* summarize and compose set M (m_count) and b (b_count), in device memory.  m NULL: M is not
     * needed, and first_m may be NULL too. */
    float *m, *b;
    /* compose: what is applied first, and then.  No array is m or b.  In backward M is not stored
     * transposed: M = first_m then_m, b = then_m^T first_b + then_b. */
    const float *first_m, *first_b, *then_m, *then_b;
    /* run: the state before the rows, in backward the gradient of the state after them; zeros if
     * there is none. */
    const float* state;
} memo_scan_call;

/* On a rank without rows the functions are not called. */
typedef memo_status (*memo_scan_function)(void* context, const memo_scan_call* call,
                                          memo_error* error);
typedef struct memo_scan_functions {
    void* context;
    memo_scan_function summarize, compose, run;
} memo_scan_functions;

typedef struct memo_scan_desc {
    const memo_device* device;
    memo_stream stream;
    memo_comm* comm;          /* the ranks of a sequence, such as memo_mesh.sequence; NULL: one */
    int64_t m_count, b_count; /* fp32 numbers, of all heads and sequences of the batch */
    memo_scan_functions functions;
    /* A convolution of width w reads halo_rows = w - 1 rows before each row; 0: no halo. */
    int32_t halo_rows;
    int64_t halo_columns; /* elements of a row */
    memo_type halo_type;  /* F32, BF16 or F16 */
} memo_scan_desc;

typedef struct memo_scan memo_scan;

/* Each rank calls this independently.  Allocates scratch of 4 (m_count + b_count) numbers and halo
 * rows from the device, shared by all layers.  UNSUPPORTED: a halo without row kernels. */
MEMO_TRY memo_status memo_scan_create(const memo_scan_desc* desc, memo_scan** scan,
                                      memo_error* error);
MEMO_API void memo_scan_destroy(memo_scan* scan);

/* Call this once a batch, on all ranks with equal numbers.  Rank r has the rows at positions
 * [row_begins[r], row_begins[r + 1]) (size + 1 positions, not descending).  Of a plain sharding, or
 * of a ring of 1, row_begins[r] is the smaller of r * local_tokens and n_tokens.  document_begins
 * (n_documents + 1, from 0, not descending; NULL: no border) may go beyond these rows: a document
 * that begins right behind the rows is of the next slice.  A document without tokens begins
 * nowhere, so begins may be padded to a fixed length with the end of the last document.  Copies the
 * positions, does not allocate, and enqueues a barrier that compares descs and numbers of all
 * ranks; passes compare nothing on NCCL.  COMM may come from a later call. */
MEMO_TRY memo_status memo_scan_set_rows(memo_scan* scan, const int64_t* row_begins,
                                        const int64_t* document_begins, int64_t n_documents,
                                        memo_error* error);

/* In device memory, except user. */
typedef struct memo_scan_tensors {
    void* user; /* the layer's rows, for the callbacks */
    /* (b_count): forward sets the state before this rank's rows, backward the gradient of the state
     * after them.  A rank without rows leaves it unchanged. */
    float* state;
    /* (b_count): the state before the first row of all ranks, in backward the gradient of the state
     * after the last one, for a sequence in slices.  Only the first (last) rank with rows reads it,
     * and only if no document begins there, in backward right behind the rows; the end of
     * document_begins is no begin.  NULL: 0. */
    const float* initial;
} memo_scan_tensors;

/* Passes.  INVALID_STATE: no rows are set, or a halo of a scan whose halo_rows is 0. */
MEMO_TRY memo_status memo_scan_forward(memo_scan* scan, const memo_scan_tensors* tensors,
                                       memo_error* error);
MEMO_TRY memo_status memo_scan_backward(memo_scan* scan, const memo_scan_tensors* tensors,
                                        memo_error* error);
/* forward sets halo (halo_rows, halo_columns): the rows before this rank's first, of one or more
 * ranks; 0 for rows of another document and before the first row of all ranks.  backward adds the
 * gradients d_halo to d_rows of the ranks that own the rows.  rows and d_rows have this rank's
 * rows.  A call is for one sequence. */
MEMO_TRY memo_status memo_scan_halo_forward(memo_scan* scan, const void* rows, void* halo,
                                            memo_error* error);
MEMO_TRY memo_status memo_scan_halo_backward(memo_scan* scan, const void* d_halo, void* d_rows,
                                             memo_error* error);

/* ---- 11 row kernels: the arithmetic between copies ----------------------------------------------
 *
 * Operations on rows other than matrix products.  memo_row_run computes on the calling thread, and
 * memo_row_kernel enqueues a kernel on a device: the host's, or a GPU by memo_cuda.cuh.
 *
 * Numbers are F32, BF16 or F16, computed in fp32 and rounded once, to nearest even.  Every product
 * that is added is an explicit fma, so that host and GPU agree bit for bit, but for exp, log,
 * log1p, tanh and the order of a loss's sums.  The merge differs by 4 units in the last place of
 * the weight, and of the larger term of the LSE; in the cross-entropy each exp(x) by 3 + |x| / 40
 * units (a GPU takes an exp below 2^-126 as 0), the LSE by 4 units of 1 or of the LSE.  A NaN stays
 * a NaN.  Arrays must be aligned to their element; 16 bytes are faster.
 *
 * Strides count elements from the start of one row to the next; 0 means contiguous rows.  An output
 * may overlap an input only if both are the same array with the same stride and element size. */

/* --- a number --- */

MEMO_INLINE uint32_t memob_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
MEMO_INLINE float memob_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

MEMO_INLINE float memo_f32_from_bf16(uint16_t bits) {
    return memob_f32_from_bits(MEMO_CAST(uint32_t, bits) << 16);
}
MEMO_INLINE uint16_t memo_bf16_from_f32(float value) {
    uint32_t bits = memob_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return MEMO_CAST(uint16_t, (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

MEMO_INLINE float memo_f32_from_f16(uint16_t bits) {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    uint32_t sign = MEMO_CAST(uint32_t, bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    if (magnitude >= 0x7c00) /* infinity and NaN */
        return memob_f32_from_bits(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
    if (magnitude >= 0x0400) return memob_f32_from_bits(sign | ((magnitude << 13) + 0x38000000u));
    /* Below the normal ones: a multiple of 2^-24, exact in fp32. */
    return memob_f32_from_bits(
        sign | memob_f32_bits(MEMO_CAST(float, magnitude) * 5.9604644775390625e-8f));
#endif
}
MEMO_INLINE uint16_t memo_f16_from_f32(float value) {
    uint32_t bits = memob_f32_bits(value), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
#if defined(__CUDA_ARCH__)
    uint16_t rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
#else
    {
        uint32_t sign = bits >> 16 & 0x8000;
        if (magnitude >= 0x477ff000u)
            return MEMO_CAST(uint16_t, sign | 0x7c00);                  /* 65520 and more */
        if (magnitude <= 0x33000000u) return MEMO_CAST(uint16_t, sign); /* 2^-25 and less */
        if (magnitude < 0x38800000u) { /* the result counts units of 2^-24 */
            uint32_t shift = 126 - (magnitude >> 23), one = (magnitude & 0x7fffffu) | 0x800000u;
            uint32_t odd = (one >> shift) & 1;
            return MEMO_CAST(uint16_t, sign | (one + (1u << (shift - 1)) - 1 + odd) >> shift);
        }
        magnitude += 0xfff + ((magnitude >> 13) & 1);
        return MEMO_CAST(uint16_t, sign | (magnitude - 0x38000000u) >> 13);
    }
#endif
}

/* --- merge of partial attention ---
 *
 * out and lse cover some keys, part_out and part_lse cover others.  Afterwards out and lse cover
 * all.  With a and O_a a row's lse and out, b and O_b its part_lse and part_out:
 *   e = exp(-|a - b|),  weights 1 / (1 + e) of the part with the larger LSE and e / (1 + e) of the
 *   other,  O = w_a O_a + w_b O_b,  LSE = max(a, b) + log1p(e).
 * LSE -inf means that no key was seen; O is then ignored.  The error of an output element is at
 * most (8 + |a - b|) 2^-24 (w_a |O_a| + w_b |O_b|), so a part keeps its precision beside another
 * that takes nearly all.  An LSE of fp32 is itself rounded, by |LSE| 2^-24 of its weight. */
typedef struct memo_merge_desc {
    float* out;           /* (n_batches, n_rows, n_columns); a row is a token and head */
    float* lse;           /* (n_batches, n_rows) */
    const void* part_out; /* as out */
    const float* part_lse;
    memo_type part_type; /* of part_out */
    int64_t n_batches;   /* 0: 1 */
    int64_t n_rows, n_columns;
    int64_t batch_stride_rows; /* of all four arrays; 0: n_rows */
} memo_merge_desc;

/* --- add: to = a + b; cast: to = a --- */
typedef struct memo_add_desc { /* of row sums too */
    void* to;                  /* (n_rows, n_columns) */
    const void *a, *b;         /* as to; a may be to; cast has no b */
    memo_type to_type, a_type, b_type;
    int64_t n_rows; /* 0: 1; of row sums: none */
    int64_t n_columns;
    int64_t to_stride, a_stride, b_stride;
} memo_add_desc;

/* --- add packed: rows of ranges += packed, which has one range after another --- */
#define MEMO_PACK_MAX 32
typedef struct memo_pack_desc {
    /* One tensor or two, such as gradients of keys and values: (any rows, n_columns). */
    void *packed[2], *rows[2];
    memo_type packed_type, rows_type;
    int64_t n_columns[2];
    int32_t n_ranges; /* 0 to MEMO_PACK_MAX */
    /* Range k begins at row begins[k].  Its packed rows end before row ends[k], where the packed
     * rows of the next range begin.  Ranges do not overlap. */
    int64_t begins[MEMO_PACK_MAX], ends[MEMO_PACK_MAX];
} memo_pack_desc;

/* --- row sums: to[row] = sum over columns of a * b ---
 *
 * Their desc is memo_add_desc.  With a = dO and b = O it is D of attention's backward.  to is F32,
 * a number a row.  Each of 8 lanes adds its products in order, by fma; then lanes l and l + 4, l
 * and l + 2, 0 and 1 are added. */

/* --- cross-entropy of logits, of which this rank may hold only some columns ---
 *
 * logits are columns first_column, first_column + 1, ... of the whole vocabulary of V columns.
 * Three kernels use the same desc, in this order:
 *
 *   softmax_parts   parts[part][row] = the largest logit m of the row's columns other than its
 *                   label, the sum of their exp(z - m), and the logit of the label (-inf if it is
 *                   not among these columns)
 *   cross_entropy   reads all parts, and sets losses and d_logits
 *   loss_sums       sums[0] += the losses of the rows with a label, sums[1] += the number of labels
 *                   below the vocabulary, sums[2] += the number of labels at or beyond it
 *
 * With z the logits (softcap: z = softcap tanh(x / softcap)), p = exp(z - LSE) and y = [the column
 * is the label]:
 *
 *   loss     = LSE - z[label]
 *   d_logits = scale (p - y) (1 - (z / softcap)^2)
 *
 * p - y of the label is minus the sum of the other p, and p is exp(z - max) / sum, which keeps the
 * precision with large logits and confident labels.  A row without label (label < 0) gets loss 0
 * and gradient 0.  A label at or beyond the vocabulary is an error that only the device sees: its
 * loss is NaN, so sums[0] is, its gradient is 0, and sums[2] counts it (memo_loss_read).
 *
 * On a GPU 32 lanes share a row: lane l takes groups l, l + 32, ... in order; then lanes l and l +
 * 16, l and l + 8, ... are joined.  The host joins chunks of 256 columns in order.  Lane l of
 * loss_sums adds rows l, l + 32, ... in double. */
typedef struct memo_cross_entropy_desc {
    const void* logits;    /* (n_rows, n_columns) */
    void* d_logits;        /* likewise, same stride; may be logits; NULL: no gradient */
    const int32_t* labels; /* (n_rows) */
    float* parts;          /* (n_parts, n_rows, MEMO_LOSS_NUMBERS) */
    float* losses;         /* (n_rows), in nats */
    double* sums;          /* (3); loss_sums only */
    memo_type type;        /* of logits and d_logits */
    int32_t n_parts;       /* 0: 1 */
    int32_t part;          /* the part that softmax_parts writes */
    float scale;
    float softcap; /* 0: none */
    int64_t n_rows, n_columns, stride;
    int64_t first_column;
    int64_t vocabulary; /* V; 0: first_column + n_columns, if there is one part */
} memo_cross_entropy_desc;
#define MEMO_LOSS_NUMBERS 3 /* of a row in parts */

/* --- attention sinks ---
 *
 * A sink is a logit of a head that takes part in the softmax of every row and has no value.
 *
 *   sinks       the merge with a part whose LSE is the sink and whose output is 0: out *= w_a,
 *               LSE = log(exp(LSE) + exp(sink)).  A row that saw no key has output 0 and the sink
 *               as LSE
 *   sink_sums   d_sinks[h] -= sum over the rows of exp(sink - LSE) * row_dots, with the LSE that
 *               sinks left, and row_dots = sum of d_out * out of a row and head.  A row that saw no
 *               key adds nothing, even if d_out is NaN there, as padding may be
 *
 * sink_sums takes 32 lanes a head: lane l adds rows l, l + 32, ... in double; then lanes l and l +
 * 16, l and l + 8, ... are added. */
typedef struct memo_sinks_desc {
    float* out;            /* (n_rows, n_heads, n_columns); sinks only */
    float* lse;            /* (n_rows, n_heads) */
    const float* sinks;    /* (n_heads) */
    const float* row_dots; /* (n_rows, n_heads); sink_sums only */
    float* d_sinks;        /* (n_heads); sink_sums only */
    int64_t n_rows, n_heads, n_columns;
} memo_sinks_desc;

/* --- reduce: to[i] = the sum or maximum of from[0][i], from[1][i], ... ---
 *
 * Arrays may lie on devices whose memory this one reaches.  All types, with the bits of
 * memo_all_reduce.  to may be one of from. */
#define MEMO_REDUCE_MAX 16
typedef struct memo_reduce_desc {
    void* to;                          /* (count) */
    const void* from[MEMO_REDUCE_MAX]; /* (n_from), each (count) */
    int32_t n_from;
    memo_type type;
    memo_reduction reduction;
    int64_t count;
} memo_reduce_desc;

/* --- running them --- */

/* All row kernels: K(memo_row_kind, name, name in schedules, desc). */
#define MEMO_ROW_KERNELS(K)                                                                        \
    K(MEMO_ROW_MERGE, merge, "merge", memo_merge_desc)                                             \
    K(MEMO_ROW_ADD, add, "add", memo_add_desc)                                                     \
    K(MEMO_ROW_SUMS, sums, "row sums", memo_add_desc)                                              \
    K(MEMO_ROW_CAST, cast, "cast", memo_add_desc)                                                  \
    K(MEMO_ROW_SOFTMAX_PARTS, softmax_parts, "softmax parts", memo_cross_entropy_desc)             \
    K(MEMO_ROW_CROSS_ENTROPY, cross_entropy, "cross entropy", memo_cross_entropy_desc)             \
    K(MEMO_ROW_LOSS_SUMS, loss_sums, "loss sums", memo_cross_entropy_desc)                         \
    K(MEMO_ROW_SINKS, sinks, "sinks", memo_sinks_desc)                                             \
    K(MEMO_ROW_SINK_SUMS, sink_sums, "sink sums", memo_sinks_desc)                                 \
    K(MEMO_ROW_REDUCE, reduce, "reduce", memo_reduce_desc)                                         \
    K(MEMO_ROW_ADD_PACKED, add_packed, "add packed", memo_pack_desc)

/* Enqueues a kernel, whose desc is that of its kind.  A recorder records what it reads and writes.
 * Errors: INVALID_ARGUMENT (a type other than F32, BF16 and F16, except reduce; a negative size; a
 * stride shorter than a row; an address that is NULL or not aligned to its element; sizes above
 * 2^62), UNSUPPORTED (the device has no row kernels), the device's. */
MEMO_TRY memo_status memo_row_kernel(const memo_device* device, memo_stream stream,
                                     memo_row_kind kind, const void* desc, memo_error* error);
/* Runs a kernel on the calling thread.  Errors: INVALID_ARGUMENT, as above; also a sink that is
 * NaN or +inf, which a GPU cannot report: NaN makes the output of the head NaN, +inf makes the
 * output 0 and the LSE +inf. */
MEMO_TRY memo_status memo_row_run(memo_row_kind kind, const void* desc, memo_error* error);
/* A desc of any kind, as a device's row_kernel gets it: valid, with each 0 replaced by its
 * default. */
typedef union memo_row_desc {
    memo_merge_desc merge;
    memo_add_desc add;
    memo_cross_entropy_desc entropy;
    memo_sinks_desc sinks;
    memo_reduce_desc reduce;
    memo_pack_desc pack;
} memo_row_desc;

/* memo_row_add(device, stream, &add, error) and so on: memo_row_kernel with the right desc. */
#define MEMOI_ROW_INLINE(kind, name, shown, desc_type)                                             \
    MEMO_FUNCTION memo_status memo_row_##name(const memo_device* device, memo_stream stream,       \
                                              const desc_type* desc, memo_error* error) {          \
        return memo_row_kernel(device, stream, kind, desc, error);                                 \
    }
MEMO_ROW_KERNELS(MEMOI_ROW_INLINE)

/* ---- 12 experts: rows go to the ranks of their experts ------------------------------------------
 *
 * Rank r of R has memo_share_of(E, R, r) of E experts.  Dispatch sends each row to the rank of its
 * expert, and combine brings the row back.  Each is the backward of the other.  Rows are in device
 * memory, contiguous, in two orders:
 *
 *   of the sender   (n_sent, row): by expert; of an expert in any order that the sender chooses
 *   of the expert   (n_received, row): by expert of this rank, then by sender, then as sent
 *
 * If the sender keeps the order of tokens, and rank r has the tokens before those of rank r + 1, an
 * expert gets its rows in the order of tokens, whatever the number of ranks.  Sums over these rows
 * then have the bits of one rank.  A token's results return to the rows that the token sent; their
 * sum is the sender's, in an order that the sender fixes.
 *
 * A dispatch is messages straight from place to place: one for each expert and sender, none for 0
 * rows, in groups of at most 256 (of the communicator's max_waiting).  Rows that stay on their rank
 * are copied. */

typedef struct memo_experts_desc {
    const memo_device* device;
    memo_stream stream; /* runs everything */
    memo_comm* comm;    /* the ranks that share the experts; NULL: one */
    int32_t n_experts;  /* of all ranks */
    /* The most rows that a rank may receive; 0: no limit. */
    int64_t max_received;
} memo_experts_desc;

typedef struct memo_experts memo_experts;

/* A layer's, kept from forward to backward. */
typedef struct memo_routing {
    /* (size, n_experts): the rows that each rank sends to each expert; the caller's memory on the
     * host, unchanged until the last dispatch or combine. */
    int64_t* counts;
    int64_t n_sent, n_received; /* set with counts */
} memo_routing;

/* All ranks must call this, each from its thread.  Allocates the memory of memo_experts_route, and
 * enqueues a barrier that compares the descs; COMM may come from a later call. */
MEMO_TRY memo_status memo_experts_create(const memo_experts_desc* desc, memo_experts** experts,
                                         memo_error* error);
MEMO_API void memo_experts_destroy(memo_experts* experts);

/* A pass that waits for the stream, and in which the numbers of all ranks travel.  counts
 * (n_experts), in device memory: the rows that this rank sends to each expert.  Errors, the same on
 * all ranks, which can then route again: INVALID_ARGUMENT (a rank has a negative count); INFEASIBLE
 * (a rank would receive more than max_received). */
MEMO_TRY memo_status memo_experts_route(memo_experts* experts, const int64_t* counts,
                                        memo_routing* routing, memo_error* error);
/* Passes, with equal row_elements and type on all ranks. */
MEMO_TRY memo_status memo_dispatch(memo_experts* experts, const memo_routing* routing,
                                   const void* rows, void* received, int64_t row_elements,
                                   memo_type type, memo_error* error);
MEMO_TRY memo_status memo_combine(memo_experts* experts, const memo_routing* routing,
                                  const void* received, void* rows, int64_t row_elements,
                                  memo_type type, memo_error* error);

/* ---- 13 sequence: attention of all layers in one object -----------------------------------------
 *
 * Chapters 3 and 7 in a few calls.  A sequence has what all batches share.  A batch has documents,
 * and any number of batches is in flight, as in a pipeline.  Attention is causal within documents,
 * which may have parents, and has a window if the desc has one.  The sharding is "documents".
 * Other masks, slices, sinks and cross-attention take chapters 3 to 7.  The head of this file has
 * an example. */

typedef struct memo_sequence_desc {
    const memo_device* device;
    memo_stream stream; /* runs the layers */
    /* Ranks that share the sequence: memo_mesh.sequence, or a world; NULL: one.  Each runs of
     * `ulysses` consecutive ranks (0: 1) shares heads; these groups are a ring. */
    memo_comm* comm;
    int32_t ulysses;
    int32_t nodes;             /* that the ring spans (chapter 6); 0: 1 */
    int64_t n_tokens;          /* of a batch, at most */
    int32_t n_batch, n_layers; /* 0: 1; sequences of a batch have the same documents */
    /* As in memo_sp_attention_desc. */
    int32_t n_q_heads, n_kv_heads, head_size, v_head_size;
    memo_latent latent;
    memo_type type;
    float scale, softcap;
    int32_t sends_again, rounds_gradients, ulysses_groups;
    memo_attention attention;
    int32_t has_trees; /* 1: batches may have document_parents */
    int64_t window;    /* a query sees fewer than `window` tokens back; 0: no limit */
    /* Batches that the sequence has memory for, to keep lse and saved of all layers from forward to
     * backward; 0: 1.  -1: none, passes get tensors.lse and tensors.saved, which a session can
     * keep. */
    int32_t n_in_flight;
} memo_sequence_desc;

typedef struct memo_sequence memo_sequence;

/* All ranks of comm must call this, each from its thread, and wait for each other.  Allocates from
 * the device: scratch, and the memory of n_in_flight batches. */
MEMO_TRY memo_status memo_sequence_create(const memo_sequence_desc* desc, memo_sequence** sequence,
                                          memo_error* error);
/* Destroy the batches first. */
MEMO_API void memo_sequence_destroy(memo_sequence* sequence);
/* lse_bytes and saved_bytes: of a layer of a batch. */
MEMO_API memo_sp_attention_sizes memo_sequence_get_sizes(const memo_sequence* sequence);

/* What passes keep, as items of a session: then it is in the session's budget, stays or travels,
 * and the sequence takes n_in_flight -1.
 *
 *     memo_sequence_get_items(sequence, &tensors[LSE]);  // and tensors[LSE + 1]
 *     desc.n_rows = n_batch * local_tokens;              // the rows of this rank
 *     ...
 *     t.lse = memo_session_get_address(session, layer, LSE);
 *     t.saved = memo_session_get_address(session, layer, LSE + 1);
 *
 * items[0] is "lse", items[1] "q_k_v_by_heads", which is absent (row_bytes 0) if nothing is
 * saved; both MOVE, as their rows are by heads.  The second may be WHOLE if `recompute` calls
 * memo_sequence_batch_attend. */
MEMO_API void memo_sequence_get_items(const memo_sequence* sequence, memo_item items[2]);

/* Equal on all ranks.  Everything is copied. */
typedef struct memo_sequence_batch_desc {
    int64_t n_tokens; /* 0: the sequence's.  Rows without tokens cost no scores */
    /* n_documents + 1 positions from 0 to n_tokens, not descending; NULL: one document. */
    const int64_t* document_begins;
    int64_t n_documents;
    /* As in memo_mask_desc; NULL: none.  Several answers to one prompt, which is in the batch once:
     * positions of a document follow those of its parent.  Labels end with each document.  If a
     * parent's last token has to predict the first token of each child, let each child begin with a
     * copy of that token instead. */
    const int64_t* document_parents;
} memo_sequence_batch_desc;

typedef struct memo_sequence_batch memo_sequence_batch;

/* Computes and allocates on the host alone, and waits for nothing.  Any thread may call this, such
 * as a loader's, while passes of other batches run. */
MEMO_TRY memo_status memo_sequence_batch_create(memo_sequence* sequence,
                                                const memo_sequence_batch_desc* desc,
                                                memo_sequence_batch** batch, memo_error* error);
/* On the thread of passes; before the first pass on any thread.  Waits for nothing, as
 * memo_exchange_destroy. */
MEMO_API void memo_sequence_batch_destroy(memo_sequence_batch* batch);

/* For labels, and to scatter and gather rows; lives as long as the batch. */
MEMO_API const memo_sharding* memo_sequence_batch_get_sharding(const memo_sequence_batch* batch);
/* positions[rows of this rank]: of each row, counted from the begin of its document, behind its
 * ancestors, for rotary embeddings. */
MEMO_API void memo_sequence_batch_get_positions(const memo_sequence_batch* batch,
                                                int64_t* positions);

/* Passes of a layer, in any order of batches and layers, the same on all ranks.  A forward may come
 * again, as recomputation.  Its backward comes once, with the same q, k, v and out, and lse and
 * saved at the same addresses.  If tensors.lse and saved are NULL, the sequence keeps them: for
 * n_in_flight batches, each from its first forward until it is destroyed.
 *
 * The first pass of a batch also compares it on all ranks (COMM may come from a later call), and
 * uploads the segments that the local attention reads on the device.  It allocates for these only
 * if they need more memory than those of earlier batches; do not capture it in a graph.
 *
 * INVALID_STATE: no memory for one more batch in flight; a backward without a forward, a second one
 * or with another lse; the batch was destroyed, as far as its memory still shows that. */
MEMO_TRY memo_status memo_sequence_batch_attend(memo_sequence_batch* batch, int32_t layer,
                                                const memo_sp_attention_tensors* tensors,
                                                memo_error* error);
MEMO_TRY memo_status memo_sequence_batch_attend_backward(memo_sequence_batch* batch, int32_t layer,
                                                         const memo_sp_attention_tensors* tensors,
                                                         memo_error* error);

#ifdef __cplusplus
}
#endif

#endif /* MEMO_SP_H */

/* ==== row arithmetic ======================================================================== */
/* For the implementation, and for that of memo_cuda.cuh: it compiles for host and GPU, so that both
 * agree.  Names without memoi_ are those that memo_cuda.cuh uses. */
#if (defined(MEMO_SP_IMPLEMENTATION) || defined(MEMO_CUDA_IMPLEMENTATION)) &&                      \
    !defined(MEMO_ROW_MATH_DONE)
#define MEMO_ROW_MATH_DONE

/* --- arithmetic of rows, which is the same on host and GPU --- */

#if defined(__CUDA_ARCH__)
#define MEMO_ROW_UNROLL _Pragma("unroll")
#else
#define MEMO_ROW_UNROLL
#endif

/* Bytes of an element; 0: the row kernels do not accept the type. */
MEMO_INLINE int64_t memo_row_type_bytes(memo_type type) {
    if (type == MEMO_TYPE_F32) return 4;
    return type == MEMO_TYPE_BF16 || type == MEMO_TYPE_F16 ? 2 : 0;
}

/* --- merge of partial attention --- */

/* The shares of two parts in the whole.  The shares add up to 1, but neither is computed as 1 minus
 * the other, so that the smaller share keeps its precision if the larger share rounds to 1. */
typedef struct memo_merge_weights {
    float out, part;
} memo_merge_weights;

MEMO_INLINE memo_merge_weights memo_merge_weights_of(float lse, float part_lse) {
    memo_merge_weights weights = {1, 0};
    float ratio, larger, smaller;
    if (part_lse == -INFINITY) return weights;
    ratio = lse == -INFINITY ? 0.0f : expf(-fabsf(lse - part_lse));
    larger = 1.0f / (1.0f + ratio);
    smaller = ratio * larger;
    weights.out = lse >= part_lse ? larger : smaller;
    weights.part = lse >= part_lse ? smaller : larger;
    return weights;
}
MEMO_INLINE float memo_merge_lse(float a, float b) {
    if (b == -INFINITY) return a;
    if (a == -INFINITY) return b;
    return (a > b ? a : b) + log1pf(expf(-fabsf(a - b)));
}

/* --- cross-entropy --- */

#define MEMO_LOSS_LANES 32

/* Some columns of a row, without the label. */
typedef struct memo_softmax_sum {
    float max, sum; /* the sum of exp(z - max) */
} memo_softmax_sum;

MEMO_INLINE memo_softmax_sum memo_softmax_none(void) {
    const memo_softmax_sum none = {-INFINITY, 0};
    return none;
}
/* 2^t within 2 units; on a GPU 0 below 2^-126. */
MEMO_INLINE float memoi_two_to(float t) {
#if defined(__CUDA_ARCH__)
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(t));
    return power;
#else
    return exp2f(t);
#endif
}
/* exp(x) by a power of two, x <= 0.  The product t = x log2(e) is rounded; what it lost,
 * x - t ln 2, corrects the power.  Clamped, because -inf - -inf is NaN.  2^(-104 log2(e)) is 0. */
MEMO_INLINE float memoi_exp_by_two(float x) {
    float t, power;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0, %1, 0fC2D00000;" : "=f"(x) : "f"(x)); /* one instruction */
#else
    x = x < -104 ? -104 : x;
#endif
    t = x * 1.44269504f;
    power = memoi_two_to(t);
    return fmaf(power, fmaf(t, -0.693147181f, x), power);
}
/* exp(x), x <= 0, of which the loss needs one or two an element. */
MEMO_INLINE float memo_loss_exp(float x) {
#if defined(__CUDA_ARCH__)
    return memoi_exp_by_two(x);
#else
    return expf(x);
#endif
}

/* The larger one; y if x is NaN. */
MEMO_INLINE float memoi_larger(float x, float y) {
#if defined(__CUDA_ARCH__)
    return fmaxf(x, y); /* one instruction */
#else
    return x > y ? x : y;
#endif
}
/* The sum relative to a maximum that is not below its own. */
MEMO_INLINE float memoi_softmax_scaled(memo_softmax_sum x, float max) {
    return x.max == max ? x.sum : x.sum * memo_loss_exp(x.max - max);
}
MEMO_INLINE memo_softmax_sum memo_softmax_join(memo_softmax_sum a, memo_softmax_sum b) {
    memo_softmax_sum both;
    both.max = a.max > b.max ? a.max : b.max;
    both.sum = memoi_softmax_scaled(a, both.max) + memoi_softmax_scaled(b, both.max);
    return both;
}

MEMO_INLINE float memo_softcap(const memo_cross_entropy_desc* entropy, float x) {
    return entropy->softcap > 0 ? entropy->softcap * tanhf(x / entropy->softcap) : x;
}
/* Its derivative, 1 - tanh^2, which keeps its precision where tanh rounds to 1. */
MEMO_INLINE float memoi_softcap_slope(float softcap, float x) {
    float e = expf(-2 * fabsf(x / softcap));
    return 4 * e / ((1 + e) * (1 + e));
}

/* Adds n numbers, in order.  A logit of -inf adds nothing to the sum, even first. */
MEMO_INLINE memo_softmax_sum memo_softmax_add(memo_softmax_sum to, const float* x, int n) {
    float max = to.max, base;
    MEMO_ROW_UNROLL
    for (int k = 0; k < n; k++) max = memoi_larger(x[k], max);
    base = max == -INFINITY ? 0.0f : max;
    to.sum = memoi_softmax_scaled(to, max);
    to.max = max;
    MEMO_ROW_UNROLL
    for (int k = 0; k < n; k++) to.sum += memo_loss_exp(x[k] - base);
    return to;
}

/* The label's column among these; -1: it is not. */
MEMO_INLINE int64_t memo_label_column(const memo_cross_entropy_desc* entropy, int64_t row) {
    int64_t column = (int64_t)entropy->labels[row] - entropy->first_column;
    return entropy->labels[row] >= 0 && column >= 0 && column < entropy->n_columns ? column : -1;
}

/* What the columns of a row need: d_logits = factor exp(z - max), or of the label. */
typedef struct memo_entropy_row {
    float loss, max, factor, of_label;
} memo_entropy_row;

/* Joins the parts of a row, in order.  Every lane does. */
MEMO_INLINE memo_entropy_row memo_entropy_row_of(const memo_cross_entropy_desc* entropy,
                                                 int64_t row) {
    memo_softmax_sum all = memo_softmax_none();
    memo_entropy_row r;
    float label = -INFINITY, others, sum;
    for (int32_t p = 0; p < entropy->n_parts; p++) {
        const float* part = entropy->parts + (p * entropy->n_rows + row) * MEMO_LOSS_NUMBERS;
        const memo_softmax_sum next = {part[0], part[1]};
        all = memo_softmax_join(all, next);
        if (!(part[2] <= label)) label = part[2]; /* a NaN too */
    }

    /* Relative to the largest logit.  Its own term is 1, so that no log loses precision. */
    r.max = label > all.max ? label : all.max;
    others = memoi_softmax_scaled(all, r.max);
    sum = others + expf(label - r.max);
    r.loss = r.max - label + (label >= all.max ? log1pf(others) : logf(sum));
    r.factor = 1 / sum;
    r.of_label = -others / sum;
    return r;
}

/* The gradient of logit x of a column. */
MEMO_INLINE float memo_entropy_gradient(const memo_cross_entropy_desc* entropy,
                                        const memo_entropy_row* r, int is_label, float x) {
    float d = entropy->scale;
    if (entropy->softcap > 0) d *= memoi_softcap_slope(entropy->softcap, x);
    return d *
           (is_label ? r->of_label : r->factor * memo_loss_exp(memo_softcap(entropy, x) - r->max));
}

/* One lane's share of number k of loss_sums: the losses, the labels, those that are not valid. */
MEMO_INLINE double memo_loss_lane(const memo_cross_entropy_desc* entropy, int64_t k, int32_t lane) {
    double sum = 0;
    for (int64_t row = lane; row < entropy->n_rows; row += MEMO_LOSS_LANES) {
        const int is_valid = entropy->labels[row] < entropy->vocabulary;
        if (entropy->labels[row] < 0) continue;
        sum += k == 0 ? (double)entropy->losses[row] : is_valid == (k == 1);
    }
    return sum;
}
MEMO_INLINE void memo_loss_end(const memo_cross_entropy_desc* entropy, int64_t k, double sum) {
    entropy->sums[k] += sum;
}

/* --- attention sinks --- */

MEMO_INLINE double memo_sink_sum_lane(const memo_sinks_desc* sinks, int64_t head, int32_t lane) {
    float sink = sinks->sinks[head];
    double sum = 0;
    for (int64_t row = lane; row < sinks->n_rows && sink != -INFINITY; row += MEMO_LOSS_LANES) {
        const int64_t place = row * sinks->n_heads + head;
        const float dot = sinks->row_dots[place]; /* of a row without keys: 0, or 0 * NaN */
        if (dot == dot || sinks->lse[place] != sink)
            sum += (double)(expf(sink - sinks->lse[place]) * dot);
    }
    return sum;
}
MEMO_INLINE void memo_sink_sum_end(const memo_sinks_desc* sinks, int64_t head, double sum) {
    sinks->d_sinks[head] -= (float)sum;
}

/* --- reduce --- */

#define MEMOI_AS_IS(a) (a)

/* A function, because compilers warn of an integer that is compared with itself. */
MEMO_INLINE int memoi_reduce_is_nan(double a) { return a != a; }

/* Elements are widened, and added as ADDED; integers unsigned, because signed overflow is
 * undefined: K(NAME, TYPE, WIDE, WIDEN, NARROW, ADDED). */
#define MEMOI_REDUCE_ALL(K)                                                                        \
    K(F32, float, float, MEMOI_AS_IS, MEMOI_AS_IS, float)                                          \
    K(F64, double, double, MEMOI_AS_IS, MEMOI_AS_IS, double)                                       \
    K(BF16, uint16_t, float, memo_f32_from_bf16, memo_bf16_from_f32, float)                        \
    K(F16, uint16_t, float, memo_f32_from_f16, memo_f16_from_f32, float)                           \
    K(I32, int32_t, int32_t, MEMOI_AS_IS, MEMOI_AS_IS, uint32_t)                                   \
    K(I64, int64_t, int64_t, MEMOI_AS_IS, MEMOI_AS_IS, uint64_t)                                   \
    K(U8, uint8_t, uint8_t, MEMOI_AS_IS, MEMOI_AS_IS, unsigned)
#if defined(__CUDA_ARCH__)
#define MEMOI_REDUCE_CHUNK 1
#else
#define MEMOI_REDUCE_CHUNK 512 /* elements; partial results stay in the first-level cache */
#endif
/* Defines memoi_reduce_NAME: to[at .. at + n) = the reduction of elements [begin, begin + n) of
 * every from, n at most MEMOI_REDUCE_CHUNK, in the order of from.  to may be the same elements of
 * one of them: it is written last.  A NaN is above everything. */
#define MEMOI_REDUCE(NAME, TYPE, WIDE, WIDEN, NARROW, ADDED)                                       \
    MEMO_INLINE void memoi_reduce_##NAME(void* to, int64_t at, const void* const* from,            \
                                         int32_t n_from, int64_t begin, int64_t n,                 \
                                         memo_reduction reduction) {                               \
        WIDE result[MEMOI_REDUCE_CHUNK];                                                           \
        const TYPE* x = (const TYPE*)from[0] + begin;                                              \
        int64_t i;                                                                                 \
        int32_t r;                                                                                 \
        for (i = 0; i < n; i++) result[i] = WIDEN(x[i]);                                           \
        for (r = 1; r < n_from; r++) {                                                             \
            x = (const TYPE*)from[r] + begin;                                                      \
            if (reduction == MEMO_REDUCTION_SUM) {                                                 \
                for (i = 0; i < n; i++) result[i] = (WIDE)((ADDED)result[i] + (ADDED)WIDEN(x[i])); \
            } else {                                                                               \
                for (i = 0; i < n; i++) {                                                          \
                    const WIDE wide = WIDEN(x[i]);                                                 \
                    const int is_more = wide > result[i] || memoi_reduce_is_nan((double)wide);     \
                    result[i] = is_more ? wide : result[i];                                        \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        for (i = 0; i < n; i++) ((TYPE*)to)[at + i] = NARROW(result[i]);                           \
    }
MEMOI_REDUCE_ALL(MEMOI_REDUCE)
#define MEMOI_REDUCE_CASE(NAME, TYPE, WIDE, WIDEN, NARROW, ADDED)                                  \
    case MEMO_TYPE_##NAME: memoi_reduce_##NAME(to, at, from, n_from, begin, n, reduction); break;
MEMO_INLINE void memo_reduce_elements(void* to, int64_t at, const void* const* from, int32_t n_from,
                                      int64_t begin, int64_t n, memo_type type,
                                      memo_reduction reduction) {
    switch (type) {
        MEMOI_REDUCE_ALL(MEMOI_REDUCE_CASE)
    case MEMO_N_TYPES: break;
    }
}

#endif /* MEMO_ROW_MATH_DONE */

/* ==== implementation ======================================================================== */
#if defined(MEMO_SP_IMPLEMENTATION) && !defined(MEMO_SP_IMPLEMENTATION_DONE)
#define MEMO_SP_IMPLEMENTATION_DONE
#ifndef MEMO_IMPLEMENTATION_DONE
#error "memo_sp.h: MEMO_IMPLEMENTATION is not defined; define it in the same file"
#endif
#if defined(MEMO_CUDA_IMPLEMENTATION_DONE) && !defined(MEMO_CUDA_ROW_KERNELS)
#error "memo_sp.h: include it before memo_cuda.cuh, whose implementation compiles the row kernels"
#endif

/* ROOMS, each with the words to search for.  A room uses public functions, memob_ ones of
 * memo.h, and the rooms above it.
 *
 *     >>comm calls          types, checks, groups of messages, bytes and labels for all back ends
 *     >>row kernels         loops over rows on the host; the devices of row kernels
 *     >>threads back end    ranks as threads: messages, meetings, failures, simulated links
 *     >>mesh                coordinates and groups of a rank
 *     >>segments            lists of segments, and those of the rows of a block
 *     >>shardings           positions, ranks and rows
 *     >>target              streams and events to enqueue on; messages and row kernels
 *     >>masks               documents and intervals as segments; checks of a list
 *     >>launches            segments as calls of fused kernels
 *     >>attention shape     tokens, heads and masks of a rank
 *     >>ulysses exchange    rows to heads and back
 *     >>pairs of ranks      who reads which rows of whom, from runs and masks
 *     >>pools of rows       rows that come one after another, where there is room
 *     >>messages            the messages of all ranks, and the orders of their steps
 *     >>distances           all messages of a distance in one turn
 *     >>order of messages   a pass played once: what can begin first
 *     >>clock of messages   the time of a list, and the choice of one
 *     >>exchange plans      steps and rows that travel of a rank
 *     >>ring attention      steps, exchanges and merges of the ring
 *     >>attention desc      checks of a desc, and the shape that follows
 *     >>uploads             segments of all steps on the device
 *     >>attention buffers   what a pass keeps in scratch memory
 *     >>hybrid attention    exchanges and passes of Ulysses x ring
 *     >>sequence            attention of all layers in one object
 *     >>block orders        the orders of overlapped blocks
 *     >>block runs          creation, passes and layers of blocks
 *     >>loss                tiles of the classifier, their losses and gradients
 *     >>scan                states and halo rows of recurrences
 *     >>experts             rows that go to the ranks of their experts, and back */

/* ---- >>comm calls -------------------------------------------------------------------------------
 * Knows: the table of communication functions; which calls are valid, and what a group is.  Knows
 * nothing of back ends, devices or attention.
 *
 * 1. The messages of an open group fit the back end's memory; without a group none waits.
 * 2. sent_bytes never descends. */

/* The name of an enum's value. */
#define MEMOI_NAME(names, value, unknown)                                                          \
    ((size_t)(value) < sizeof(names) / sizeof *(names) ? (names)[(size_t)(value)] : (unknown))

/* Sets error, and returns its status. */
#define MEMOI_FAIL(status, ...) memo_error_set(error, MEMO_STATUS_##status, __VA_ARGS__)
#define MEMOI_REFUSE(...)       MEMOI_FAIL(INVALID_ARGUMENT, __VA_ARGS__)

/* Check a field of a desc; desc: its type in errors. */
#define MEMOI_INTEGER(desc, x, field, least, most)                                                 \
    memob_check_integer(desc, #field, (x)->field, least, most, error)
#define MEMOI_REAL(desc, x, field, least, most)                                                    \
    memob_check_real(desc, #field, (double)(x)->field, least, most, error)
/* A pointer that is required. */
#define MEMOI_GIVEN(desc, x, field) ((x)->field ? 0 : memoi_is_missing(desc, #field, error))
MEMOI memo_status memoi_is_missing(const char* desc, const char* field, memo_error* error) {
    return MEMOI_REFUSE("%s.%s: NULL; it is required", desc, field);
}
typedef struct memoi_type {
    int64_t n_bytes;
    const char* name;
} memoi_type;
static const memoi_type memoi_types[] = {{4, "f32"}, {8, "f64"}, {2, "bf16"}, {2, "f16"},
                                         {4, "i32"}, {8, "i64"}, {1, "u8"}};
MEMOB_TABLE_OF(MEMO_N_TYPES, memoi_types);

int64_t memo_type_bytes(memo_type type) {
    return (size_t)type < MEMO_N_TYPES ? memoi_types[type].n_bytes : 0;
}
const char* memo_type_name(memo_type type) {
    return (size_t)type < MEMO_N_TYPES ? memoi_types[type].name : "no type";
}

/* What memo_comm.sent_bytes counts. */
MEMOI int64_t memoi_comm_bytes(const memo_comm* comm, const memo_collective_call* call) {
    const int64_t size = comm->size;
    int64_t n_bytes = call->count * memo_type_bytes(call->type);
    switch (call->kind) {
    /* Divided first, so that no product overflows. */
    case MEMO_COLLECTIVE_ALL_REDUCE:
        return n_bytes / size * 2 * (size - 1) + n_bytes % size * 2 * (size - 1) / size;
    case MEMO_COLLECTIVE_ALL_GATHER:
    case MEMO_COLLECTIVE_REDUCE_SCATTER: return n_bytes * (size - 1);
    case MEMO_COLLECTIVE_BROADCAST:
        return comm->rank == (call->root + size - 1) % size ? 0 : n_bytes;
    case MEMO_COLLECTIVE_BARRIER:
    case MEMO_N_COLLECTIVES: break;
    }
    return 0;
}

/* desc: "memo_loss_desc". */
MEMOI memo_status memoi_check_memory(const char* desc, const void* address, memo_error* error) {
    if ((uintptr_t)address % MEMOB_DEVICE_ALIGNMENT == 0) return MEMO_STATUS_OK;
    return MEMOI_REFUSE("%s.device_memory: not aligned (%p); align it to %d bytes", desc, address,
                        MEMOB_DEVICE_ALIGNMENT);
}

MEMOI const char* memoi_comm_collective_name(memo_collective kind) {
    static const char* const names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                        "barrier"};
    MEMOB_TABLE_OF(MEMO_N_COLLECTIVES, names);
    return MEMOI_NAME(names, kind, "operation");
}

memo_share memo_share_of(int64_t n, int32_t size, int32_t rank) {
    const int64_t each = n / size, rest = n % size;
    const memo_share share = {each * rank + (rank < rest ? rank : rest), each + (rank < rest)};
    return share;
}

/* n_parts: how many times count elements the buffer holds. */
MEMOI memo_status memoi_comm_check_buffer(const memo_comm* comm, const char* what,
                                          const void* address, int64_t count, int64_t n_parts,
                                          memo_type type, memo_error* error) {
    int64_t element_bytes = memo_type_bytes(type), most;
    if (!element_bytes)
        return MEMOI_REFUSE("%s.type on '%s': not a memo_type (%d); 0 to %d are valid", what,
                            comm->name, (int)type, MEMO_N_TYPES - 1);
    most = MEMOB_BYTES_MAX / element_bytes / (2 * n_parts);
    if (count < 0 || count > most)
        return MEMOI_REFUSE("%s.count on '%s': out of range (%lld); 0 to %lld elements are valid",
                            what, comm->name, (long long)count, (long long)most);
    if (!address && count)
        return MEMOI_REFUSE("%s on '%s': a buffer of %lld elements is NULL; pass its address", what,
                            comm->name, (long long)count);
    return MEMO_STATUS_OK;
}

/* Ends a call or the open group, which a refused call cancels, and its label. */
MEMOI memo_status memoi_comm_end(memo_comm* comm, memo_status status) {
    comm->group_depth = comm->n_waiting = 0;
    memset(&comm->label, 0, sizeof comm->label);
    return status;
}

MEMOI memo_status memoi_comm_enqueue(memo_comm* comm, memo_stream stream,
                                     const memo_message_call* calls, int32_t n, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (n || comm->label.is_first) status = comm->messages(comm, stream, calls, n, error);
    for (int32_t i = 0; i < n && !status; i++)
        if (calls[i].is_send && calls[i].peer != comm->rank)
            comm->sent_bytes += calls[i].count * memo_type_bytes(calls[i].type);
    return status;
}

memo_status memo_group_begin(memo_comm* comm, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "comm", comm);
    memo_status status = memo_comm_status(comm, error);
    if (!status) comm->group_depth++;
    return status;
}

MEMOI memo_status memoi_comm_check_stream(const memo_comm* comm, const char* what,
                                          memo_stream stream, memo_error* error) {
    if (!comm->n_waiting || comm->group_stream == stream) return MEMO_STATUS_OK;
    return MEMOI_REFUSE("%s.stream on '%s': not the stream of the group's sends and receives; use "
                        "one stream for a group",
                        what, comm->name);
}

memo_status memo_group_end(memo_comm* comm, memo_stream stream, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "comm", comm);
    memo_status status = memo_comm_status(comm, error);
    if (!status && comm->group_depth > 1) {
        comm->group_depth--;
        return MEMO_STATUS_OK;
    }
    if (!status && !comm->group_depth)
        status = MEMOI_FAIL(INVALID_STATE,
                            "group_end on '%s': no group is open, or a refused call canceled it; "
                            "call group_begin first",
                            comm->name);
    if (!status) status = memoi_comm_check_stream(comm, "group_end", stream, error);
    if (!status) status = memoi_comm_enqueue(comm, stream, comm->waiting, comm->n_waiting, error);
    return memoi_comm_end(comm, status);
}

MEMOI memo_status memoi_comm_check_message(memo_comm* comm, memo_stream stream,
                                           const memo_message_call* call, memo_error* error) {
    const char* what = call->is_send ? "send" : "receive";
    memo_status status = comm->group_depth ? MEMO_STATUS_OK : memo_comm_status(comm, error);
    if (!status)
        status =
            memoi_comm_check_buffer(comm, what, call->address, call->count, 1, call->type, error);
    if (!status) status = memob_check_integer(what, "rank", call->peer, 0, comm->size - 1, error);
    if (status) return status;
    if (!comm->group_depth && call->peer == comm->rank)
        return MEMOI_REFUSE("%s on '%s': rank %d would wait for itself forever; put send and "
                            "receive into one group",
                            what, comm->name, (int)call->peer);
    if (comm->n_waiting && comm->n_waiting == comm->max_waiting)
        return MEMOI_REFUSE("group on '%s': more than %d sends and receives; use several groups",
                            comm->name, (int)comm->max_waiting);
    return memoi_comm_check_stream(comm, what, stream, error);
}

MEMOI memo_status memoi_comm_message(memo_comm* comm, memo_stream stream, int32_t is_send,
                                     const void* address, int64_t count, memo_type type,
                                     int32_t peer, memo_error* error) {
    const memo_message_call call = {is_send, peer, type, count, (void*)(uintptr_t)address};
    memo_status status = memoi_comm_check_message(comm, stream, &call, error);
    if (!status && !comm->group_depth) status = memoi_comm_enqueue(comm, stream, &call, 1, error);
    if (status || !comm->group_depth) return memoi_comm_end(comm, status);
    MEMO_ASSERT(comm->group_depth > 0 && comm->n_waiting < comm->max_waiting); /* 1 */
    comm->waiting[comm->n_waiting++] = call;
    comm->group_stream = stream;
    return MEMO_STATUS_OK;
}

memo_status memo_send(memo_comm* comm, memo_stream stream, const void* from, int64_t count,
                      memo_type type, int32_t to_rank, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "comm", comm);
    return memoi_comm_message(comm, stream, 1, from, count, type, to_rank, error);
}
memo_status memo_receive(memo_comm* comm, memo_stream stream, void* to, int64_t count,
                         memo_type type, int32_t from_rank, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "comm", comm);
    return memoi_comm_message(comm, stream, 0, to, count, type, from_rank, error);
}

MEMOI memo_status memoi_comm_check_collective(memo_comm* comm, const memo_collective_call* call,
                                              memo_error* error) {
    const char* what = memoi_comm_collective_name(call->kind);
    memo_status status;
    if (comm->group_depth)
        return MEMOI_FAIL(
            INVALID_STATE,
            "%s on '%s': called inside a group; only sends and receives can be grouped", what,
            comm->name);
    if (memob_check_integer("collective", "kind", (int)call->kind, 0, MEMO_N_COLLECTIVES - 1,
                            error) ||
        memob_check_integer(what, "reduction", (int)call->reduction, 0, MEMO_N_REDUCTIONS - 1,
                            error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    status =
        memoi_comm_check_buffer(comm, what, call->from, call->count, comm->size, call->type, error);
    if (!status)
        status = memoi_comm_check_buffer(comm, what, call->to, call->count, 1, call->type, error);
    return status ? status
                  : memob_check_integer(what, "root", call->root, 0, comm->size - 1, error);
}

memo_status memo_comm_collective(memo_comm* comm, memo_stream stream,
                                 const memo_collective_call* call, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "comm", comm);
    MEMOB_REFUSE_NULL(error, "call", call);
    memo_status status = memoi_comm_check_collective(comm, call, error);
    if (!status) {
        status = comm->collective(comm, stream, call, error);
        MEMO_ASSERT(memoi_comm_bytes(comm, call) >= 0); /* 2 */
        if (!status) comm->sent_bytes += memoi_comm_bytes(comm, call);
    }
    return memoi_comm_end(comm, status);
}

/* --- labels --- */

/* Labels the next group or collective; agreed: digests that go with it.  is_first: of a pass. */
MEMOI void memoi_comm_label(memo_comm* comm, const memo_label* agreed, int is_first,
                            const char* text, int64_t number) {
    comm->label = *agreed;
    comm->label.is_first = is_first;
    comm->label.text = text;
    comm->label.number = number;
}

/* Ranks whose descs differ may call different operations, which never meet.  So all ranks begin
 * with a barrier, which compares their digests.  comm NULL: a single rank. */
MEMOI memo_status memoi_comm_meet(memo_comm* comm, memo_stream stream, const memo_label* agreed,
                                  const char* text, memo_error* error) {
    if (!comm || comm->size == 1) return MEMO_STATUS_OK;
    memoi_comm_label(comm, agreed, 1, text, 0);
    return memo_barrier(comm, stream, error);
}

/* Adds bytes to a digest (FNV-1a). */
MEMOI MEMOB_NOINLINE void memoi_label_add(memo_label* label, int field, const void* bytes,
                                          int64_t n_bytes) {
    const unsigned char* at = (const unsigned char*)bytes;
    uint32_t digest = label->digests[field];
    for (int64_t i = 0; i < n_bytes; i++) digest = (digest ^ at[i]) * 16777619u;
    label->digests[field] = digest;
}
MEMOI MEMOB_NOINLINE void memoi_label_add_number(memo_label* label, int field, int64_t number) {
    memoi_label_add(label, field, &number, sizeof number);
}
MEMOI MEMOB_NOINLINE void memoi_label_add_array(memo_label* label, int field,
                                                const int64_t* numbers, int64_t n) {
    memoi_label_add_number(label, field, numbers ? n : -1);
    if (numbers) memoi_label_add(label, field, numbers, n * 8);
}

/* NULL matches every label.  Equal texts of two ranks may have different addresses. */
MEMOI int memoi_comm_labels_match(const memo_label* a, const memo_label* b) {
    if (!a->text || !b->text) return 1;
    if (a->fields && b->fields && memcmp(a->digests, b->digests, sizeof a->digests)) return 0;
    return a->number == b->number && (a->text == b->text || !strcmp(a->text, b->text));
}
MEMOI int memoi_comm_calls_match(const memo_collective_call* a, const memo_label* a_label,
                                 const memo_collective_call* b, const memo_label* b_label) {
    return a->kind == b->kind && a->type == b->type && a->count == b->count &&
           a->reduction == b->reduction && a->root == b->root &&
           memoi_comm_labels_match(a_label, b_label);
}

const char* memo_comm_rank_text(char text[MEMO_RANK_TEXT], int32_t rank, int32_t world_rank,
                                const char* host) {
    const int has_host = host && host[0];
    const int n = snprintf(text, MEMO_RANK_TEXT, "%d", (int)rank);
    if (world_rank >= 0)
        snprintf(text + n, (size_t)(MEMO_RANK_TEXT - n), " (world rank %d%s%.100s)",
                 (int)world_rank, has_host ? " on " : "", has_host ? host : "");
    else if (has_host)
        snprintf(text + n, (size_t)(MEMO_RANK_TEXT - n), " (on %.100s)", host);
    return text;
}

/* Writes "all_reduce(1024 f32 sum) for blocks forward 3", or "8 f32" of a message, and returns
 * text. */
MEMOI const char* memoi_comm_op_text(char text[160], const memo_comm_op* op, int is_message) {
    const memo_collective_call* call = &op->call;
    char root[24] = "", detail[80] = "", label[64] = "";
    const char* reduction = "";
    if (call->kind == MEMO_COLLECTIVE_BROADCAST)
        snprintf(root, sizeof root, " from rank %d", (int)call->root);
    if (!is_message &&
        (call->kind == MEMO_COLLECTIVE_ALL_REDUCE || call->kind == MEMO_COLLECTIVE_REDUCE_SCATTER))
        reduction = call->reduction == MEMO_REDUCTION_SUM ? " sum" : " max";
    if (call->kind != MEMO_COLLECTIVE_BARRIER)
        snprintf(detail, sizeof detail, is_message ? "%lld %s" : "(%lld %s%s%s)",
                 (long long)call->count, memo_type_name(call->type), root, reduction);
    if (op->label.text)
        snprintf(label, sizeof label, " for %.32s %lld", op->label.text,
                 (long long)op->label.number);
    snprintf(text, 160, "%s%s%s", is_message ? "" : memoi_comm_collective_name(call->kind), detail,
             label);
    return text;
}

const char* memo_comm_mismatch(char text[MEMO_MISMATCH_TEXT], const char* name, int64_t number,
                               int32_t is_message, const memo_comm_op* a, const memo_comm_op* b) {
    const memo_label *x = &a->label, *y = &b->label;
    char a_text[160], b_text[160];
    int field = MEMO_LABEL_FIELDS;
    if (memoi_comm_calls_match(&a->call, x, &b->call, y)) return NULL;

    /* Digests say what differs, unless the ranks are in different steps. */
    if (x->fields && y->fields && x->number == y->number)
        for (field = 0; field < MEMO_LABEL_FIELDS && x->digests[field] == y->digests[field];)
            field++;
    if (field < MEMO_LABEL_FIELDS) {
        snprintf(text, MEMO_MISMATCH_TEXT,
                 "%s: rank %s and rank %s of '%s' disagree; all ranks must pass the same",
                 x->fields[field], a->rank, b->rank, name);
        return text;
    }
    memoi_comm_op_text(a_text, a, is_message);
    memoi_comm_op_text(b_text, b, is_message);
    if (is_message)
        snprintf(text, MEMO_MISMATCH_TEXT,
                 "rank %s sends %.120s to rank %s, which receives %.120s (message %lld of '%s')",
                 a->rank, a_text, b->rank, b_text, (long long)number, name);
    else
        snprintf(text, MEMO_MISMATCH_TEXT,
                 "rank %s calls %.120s as collective %lld of '%s', rank %s calls %.120s", a->rank,
                 a_text, (long long)number, name, b->rank, b_text);
    return text;
}

/* ---- >>row kernels ------------------------------------------------------------------------------
 * Knows: the arithmetic of rows, the device table.  Knows nothing of CUDA, attention or
 * its callers.
 *
 * 1. A kernel reads few enough arrays for a recorder's list, and writes few enough. */

/* Is it a type of rows?  desc: its type in errors. */
MEMOI memo_status memoi_check_row_type(const char* desc, const char* field, memo_type type,
                                       memo_error* error) {
    if (memo_row_type_bytes(type)) return MEMO_STATUS_OK;
    return MEMOI_REFUSE("%s.%s: not supported (%s); f32, bf16 and f16 are", desc, field,
                        memo_type_name(type));
}

/* --- the host's loops; descs are resolved --- */

#define MEMOI_ROW_CHUNK 256 /* numbers in fp32 at a time: a multiple of the lanes' groups */

/* Numbers [first, first + n) of an array, as fp32. */
MEMOI void memoi_row_widen(float* to, const void* from, memo_type type, int64_t first, int64_t n) {
    const uint16_t* bits = (const uint16_t*)from + first;
    if (type == MEMO_TYPE_F32) {
        memcpy(to, (const float*)from + first, (size_t)n * sizeof *to);
    } else if (type == MEMO_TYPE_BF16) {
        for (int64_t i = 0; i < n; i++) to[i] = memo_f32_from_bf16(bits[i]);
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = memo_f32_from_f16(bits[i]);
    }
}
MEMOI void memoi_row_narrow(void* to, memo_type type, int64_t first, const float* from, int64_t n) {
    uint16_t* bits = (uint16_t*)to + first;
    if (type == MEMO_TYPE_F32) {
        memcpy((float*)to + first, from, (size_t)n * sizeof *from);
    } else if (type == MEMO_TYPE_BF16) {
        for (int64_t i = 0; i < n; i++) bits[i] = memo_bf16_from_f32(from[i]);
    } else {
        for (int64_t i = 0; i < n; i++) bits[i] = memo_f16_from_f32(from[i]);
    }
}
/* The next chunk of a row: at, and how many numbers. */
#define MEMOI_EACH_CHUNK(at, count, n_columns)                                                     \
    for (int64_t at = 0, count; (count = memob_min((n_columns)-at, MEMOI_ROW_CHUNK)) > 0;          \
         at += count)

MEMOI void memoi_row_loop_merge(const void* desc) {
    const memo_merge_desc* merge = (const memo_merge_desc*)desc;
    const int64_t n = merge->n_columns;
    float x[MEMOI_ROW_CHUNK], y[MEMOI_ROW_CHUNK];
    for (int64_t i = 0; i < merge->n_batches * merge->n_rows; i++) {
        const int64_t row = i / merge->n_rows * merge->batch_stride_rows + i % merge->n_rows;
        const float a = merge->lse[row], b = merge->part_lse[row];
        const memo_merge_weights weights = memo_merge_weights_of(a, b);
        MEMOI_EACH_CHUNK(at, count, weights.part == 0 ? 0 : n) {
            float* out = merge->out + row * n + at;
            memoi_row_widen(y, merge->part_out, merge->part_type, row * n + at, count);
            if (weights.out != 0) { /* else out may be anything */
                memoi_row_widen(x, out, MEMO_TYPE_F32, 0, count);
                for (int64_t k = 0; k < count; k++)
                    y[k] = fmaf(weights.part, y[k], weights.out * x[k]);
            }
            memoi_row_narrow(out, MEMO_TYPE_F32, 0, y, count);
        }
        merge->lse[row] = memo_merge_lse(a, b);
    }
}

/* Adds, if the desc has b. */
MEMOI void memoi_row_loop_add(const void* desc) {
    const memo_add_desc* add = (const memo_add_desc*)desc;
    float x[MEMOI_ROW_CHUNK], y[MEMOI_ROW_CHUNK];
    for (int64_t row = 0; row < add->n_rows; row++) MEMOI_EACH_CHUNK(at, count, add->n_columns) {
            memoi_row_widen(x, add->a, add->a_type, row * add->a_stride + at, count);
            if (add->b) memoi_row_widen(y, add->b, add->b_type, row * add->b_stride + at, count);
            for (int64_t k = 0; k < count && add->b; k++) x[k] += y[k];
            memoi_row_narrow(add->to, add->to_type, row * add->to_stride + at, x, count);
        }
}
MEMOI void memoi_row_loop_cast(const void* cast) { memoi_row_loop_add(cast); } /* b is NULL */

MEMOI void memoi_row_loop_add_packed(const void* desc) {
    const memo_pack_desc* pack = (const memo_pack_desc*)desc;
    for (int32_t i = 0; i < 2 * pack->n_ranges; i++) {
        const int32_t t = i % 2, k = i / 2;
        const int64_t first = k ? pack->ends[k - 1] : 0, n = pack->n_columns[t];
        const int64_t rows_bytes = n * memo_row_type_bytes(pack->rows_type);
        const int64_t packed_bytes = n * memo_row_type_bytes(pack->packed_type);
        memo_add_desc add = MEMO_ZERO(memo_add_desc);
        add.to = (char*)pack->rows[t] + pack->begins[k] * rows_bytes;
        add.a = add.to;
        add.b = (const char*)pack->packed[t] + first * packed_bytes;
        add.to_type = add.a_type = pack->rows_type;
        add.b_type = pack->packed_type;
        add.n_rows = 1;
        add.n_columns = (pack->ends[k] - first) * n;
        if (add.n_columns) memoi_row_loop_add(&add);
    }
}

/* In the order of a GPU: groups of 8 go to 8 lanes in turn. */
MEMOI void memoi_row_loop_sums(const void* desc) {
    const memo_add_desc* sums = (const memo_add_desc*)desc;
    float x[MEMOI_ROW_CHUNK], y[MEMOI_ROW_CHUNK];
    for (int64_t row = 0; row < sums->n_rows; row++) {
        float lanes[8] = {0};
        MEMOI_EACH_CHUNK(at, count, sums->n_columns) {
            memoi_row_widen(x, sums->a, sums->a_type, row * sums->a_stride + at, count);
            memoi_row_widen(y, sums->b, sums->b_type, row * sums->b_stride + at, count);
            for (int64_t k = count; k % 64; k++) x[k] = y[k] = 0;
            for (int64_t k = 0; k < (count + 63) / 64 * 8; k++)
                for (int lane = 0; lane < 8; lane++) {
                    const int64_t i = k / 8 * 64 + 8 * lane + k % 8;
                    lanes[lane] = fmaf(x[i], y[i], lanes[lane]);
                }
        }
        for (int apart = 4; apart; apart /= 2)
            for (int lane = 0; lane < apart; lane++) lanes[lane] += lanes[lane + apart];
        ((float*)sums->to)[row] = lanes[0];
    }
}

/* The label's logit is apart from the sum. */
MEMOI void memoi_row_loop_softmax_parts(const void* desc) {
    const memo_cross_entropy_desc* entropy = (const memo_cross_entropy_desc*)desc;
    float x[MEMOI_ROW_CHUNK];
    for (int64_t row = 0; row < entropy->n_rows; row++) {
        float* part = entropy->parts + (entropy->part * entropy->n_rows + row) * MEMO_LOSS_NUMBERS;
        const int64_t label = memo_label_column(entropy, row);
        memo_softmax_sum sum = memo_softmax_none();
        part[2] = -INFINITY;
        MEMOI_EACH_CHUNK(at, count, entropy->n_columns) {
            memoi_row_widen(x, entropy->logits, entropy->type, row * entropy->stride + at, count);
            for (int64_t k = 0; k < count && entropy->softcap > 0; k++)
                x[k] = memo_softcap(entropy, x[k]);
            if (label >= at && label < at + count) {
                part[2] = x[label - at];
                x[label - at] = -INFINITY;
            }
            sum = memo_softmax_join(sum, memo_softmax_add(memo_softmax_none(), x, (int)count));
        }
        part[0] = sum.max;
        part[1] = sum.sum;
    }
}

MEMOI void memoi_row_loop_cross_entropy(const void* desc) {
    const memo_cross_entropy_desc* entropy = (const memo_cross_entropy_desc*)desc;
    float x[MEMOI_ROW_CHUNK];
    for (int64_t row = 0; row < entropy->n_rows; row++) {
        const int32_t label = entropy->labels[row];
        const int64_t column = memo_label_column(entropy, row), first = row * entropy->stride;
        const int has_label = label >= 0 && label < entropy->vocabulary;
        const memo_entropy_row r = memo_entropy_row_of(entropy, row);
        entropy->losses[row] = has_label ? r.loss : 0;
        if (label >= entropy->vocabulary) entropy->losses[row] = NAN;
        MEMOI_EACH_CHUNK(at, count, entropy->d_logits ? entropy->n_columns : 0) {
            memoi_row_widen(x, entropy->logits, entropy->type, first + at, count);
            for (int64_t k = 0; k < count; k++)
                x[k] = has_label ? memo_entropy_gradient(entropy, &r, at + k == column, x[k]) : 0;
            memoi_row_narrow(entropy->d_logits, entropy->type, first + at, x, count);
        }
    }
}

/* Lanes are joined in the order of the GPU's shuffles. */
#define MEMOI_ROW_JOIN(lane_of, end, desc, i)                                                      \
    do {                                                                                           \
        double lanes[MEMO_LOSS_LANES];                                                             \
        for (int32_t lane = 0; lane < MEMO_LOSS_LANES; lane++)                                     \
            lanes[lane] = lane_of(desc, i, lane);                                                  \
        for (int32_t apart = MEMO_LOSS_LANES / 2; apart; apart /= 2)                               \
            for (int32_t lane = 0; lane < apart; lane++) lanes[lane] += lanes[lane + apart];       \
        end(desc, i, lanes[0]);                                                                    \
    } while (0)

MEMOI void memoi_row_loop_loss_sums(const void* desc) {
    const memo_cross_entropy_desc* entropy = (const memo_cross_entropy_desc*)desc;
    for (int64_t k = 0; k < 3 && entropy->n_rows && entropy->sums; k++)
        MEMOI_ROW_JOIN(memo_loss_lane, memo_loss_end, entropy, k);
}

MEMOI void memoi_row_loop_sinks(const void* desc) {
    const memo_sinks_desc* sinks = (const memo_sinks_desc*)desc;
    for (int64_t place = 0; place < sinks->n_rows * sinks->n_heads; place++) {
        const float lse = sinks->lse[place], sink = sinks->sinks[place % sinks->n_heads];
        const float weight = memo_merge_weights_of(lse, sink).out;
        float* out = sinks->out + place * sinks->n_columns;
        for (int64_t column = 0; column < sinks->n_columns; column++) out[column] *= weight;
        sinks->lse[place] = memo_merge_lse(lse, sink);
    }
}
MEMOI void memoi_row_loop_sink_sums(const void* desc) {
    const memo_sinks_desc* sinks = (const memo_sinks_desc*)desc;
    for (int64_t head = 0; head < sinks->n_heads; head++)
        MEMOI_ROW_JOIN(memo_sink_sum_lane, memo_sink_sum_end, sinks, head);
}

/* Sums and maxima in the order of ranks: their bits do not depend on timing. */
void memo_comm_reduce(void* to, const void* const* from, int32_t n_from, int64_t begin, int64_t end,
                      memo_type type, memo_reduction reduction) {
    int64_t n;
    for (int64_t at = 0; begin + at < end; at += n) {
        n = memob_min(end - begin - at, MEMOI_REDUCE_CHUNK);
        memo_reduce_elements(to, at, from, n_from, begin + at, n, type, reduction);
    }
}
MEMOI void memoi_row_loop_reduce(const void* desc) { /* chunks are faster than items */
    const memo_reduce_desc* reduce = (const memo_reduce_desc*)desc;
    memo_comm_reduce(reduce->to, reduce->from, reduce->n_from, 0, reduce->count, reduce->type,
                     reduce->reduction);
}

/* --- descs --- */

enum { MEMOI_ROW_READS = 1, MEMOI_ROW_WRITES = 2, MEMOI_ROW_UPDATES = 3 };
enum { MEMOI_ROW_WRITTEN_MAX = 4 }; /* arrays that a kernel writes */

/* The arrays of a desc, after the first error none. */
typedef struct memoi_row_arrays {
    memo_row_kind kind;
    const char* desc; /* its type, for errors */
    memo_op_desc op;  /* for a recorder */
    memo_range reads[MEMO_REDUCE_MAX], writes[MEMOI_ROW_WRITTEN_MAX];
    memo_status status;
    memo_error* error;
} memoi_row_arrays;

/* An array that the kernel reads or writes: checks size and address, and replaces stride 0 by its
 * default.  stride NULL: contiguous rows. */
MEMOI MEMOB_NOINLINE void memoi_row_add(memoi_row_arrays* arrays, int access, const char* name,
                                        const void* address, int64_t n, int64_t n_columns,
                                        int64_t element_bytes, int64_t* stride_of) {
    const char* desc = arrays->desc;
    const int64_t stride = stride_of && *stride_of ? *stride_of : n_columns;
    const int64_t widest = memob_max(n_columns, stride), most = MEMOB_BYTES_MAX;
    const int is_used = n && n_columns;
    memo_error* error = arrays->error;
    memo_range range;
    if (arrays->status) return;
    if (!element_bytes)
        arrays->status =
            MEMOI_REFUSE("%s.%s: its type is not supported; f32, bf16 and f16 are", desc, name);
    else if (n < 0 || n_columns < 0 || stride < 0)
        arrays->status = MEMOI_REFUSE(
            "%s.%s: negative size (%lld rows of %lld, stride %lld); 0 or more are valid", desc,
            name, (long long)n, (long long)n_columns, (long long)stride);
    else if (stride < n_columns && n > 1)
        arrays->status = MEMOI_REFUSE(
            "%s.%s: rows overlap (stride %lld); use the %lld elements of a row, or more", desc,
            name, (long long)stride, (long long)n_columns);
    /* Rows rounded up to whole groups of 16 bytes must not overflow either.  Divisions are slow. */
    else if ((n >> 28 || widest >> 28) && (n_columns > most / element_bytes - 64 ||
                                           (n && widest > most / element_bytes / n - 64)))
        arrays->status = MEMOI_REFUSE(
            "%s.%s: too large (%lld rows of %lld, stride %lld); 2^62 bytes are the limit", desc,
            name, (long long)n, (long long)n_columns, (long long)stride);
    else if (is_used && !address)
        arrays->status = MEMOI_REFUSE("%s.%s: NULL; an array is required", desc, name);
    else if (is_used && (uintptr_t)address % (uintptr_t)element_bytes)
        arrays->status = MEMOI_REFUSE("%s.%s: not aligned (%p); align it to %lld bytes", desc, name,
                                      address, (long long)element_bytes);
    if (arrays->status) return;

    if (stride_of) *stride_of = stride;
    range = memob_range_at(address, n ? ((n - 1) * stride + n_columns) * element_bytes : 0);
    MEMO_ASSERT(arrays->op.n_reads < MEMO_REDUCE_MAX);        /* 1 */
    MEMO_ASSERT(arrays->op.n_writes < MEMOI_ROW_WRITTEN_MAX); /* 1 */
    if (access & MEMOI_ROW_READS) arrays->reads[arrays->op.n_reads++] = range;
    if (access & MEMOI_ROW_WRITES) arrays->writes[arrays->op.n_writes++] = range;
}
/* A field of the desc x; one with rows, type and stride of its own. */
#define MEMOI_ROW_ARRAY(access, field, n, m, element_bytes, stride)                                \
    memoi_row_add(arrays, MEMOI_ROW_##access, #field, x->field, n, m, element_bytes, stride)
#define MEMOI_ROW_MATRIX(access, field)                                                            \
    MEMOI_ROW_ARRAY(access, field, x->n_rows, x->n_columns, memo_row_type_bytes(x->field##_type),  \
                    &x->field##_stride)

/* Is a number of the desc x, on which sizes depend, in [least, most]? */
MEMOI int memoi_row_is_in(memoi_row_arrays* arrays, const char* field, int64_t value, int64_t least,
                          int64_t most) {
    if (!arrays->status)
        arrays->status =
            memob_check_integer(arrays->desc, field, value, least, most, arrays->error);
    return !arrays->status;
}
#define MEMOI_ROW_IS_IN(field, least, most)                                                        \
    memoi_row_is_in(arrays, #field, (int64_t)x->field, least, most)

/* The arrays of a desc, a function for each type.  They replace 0 by its default. */

MEMOI void memoi_row_arrays_memo_merge_desc(memoi_row_arrays* arrays, void* desc) {
    memo_merge_desc* x = (memo_merge_desc*)desc;
    const int64_t most = MEMOB_BYTES_MAX;
    int64_t n;
    if (x->n_batches == 0) x->n_batches = 1;
    if (x->batch_stride_rows == 0) x->batch_stride_rows = x->n_rows;
    if (!MEMOI_ROW_IS_IN(n_batches, 0, most) || !MEMOI_ROW_IS_IN(n_rows, 0, most) ||
        !MEMOI_ROW_IS_IN(batch_stride_rows, x->n_batches > 1 ? x->n_rows : INT64_MIN,
                         most / x->n_batches))
        return;
    n = x->n_rows ? (x->n_batches - 1) * x->batch_stride_rows + x->n_rows : 0;
    MEMOI_ROW_ARRAY(UPDATES, out, n, x->n_columns, 4, NULL);
    MEMOI_ROW_ARRAY(READS, part_out, n, x->n_columns, memo_row_type_bytes(x->part_type), NULL);
    MEMOI_ROW_ARRAY(UPDATES, lse, n, 1, 4, NULL);
    MEMOI_ROW_ARRAY(READS, part_lse, n, 1, 4, NULL);
}

MEMOI void memoi_row_arrays_memo_add_desc(memoi_row_arrays* arrays, void* desc) {
    memo_add_desc* x = (memo_add_desc*)desc;
    const int64_t bytes = memo_row_type_bytes(x->to_type);
    const int has_b = arrays->kind != MEMO_ROW_CAST;
    if (arrays->kind == MEMO_ROW_SUMS && MEMOI_ROW_IS_IN(to_type, MEMO_TYPE_F32, MEMO_TYPE_F32))
        MEMOI_ROW_ARRAY(WRITES, to, x->n_rows, 1, bytes, NULL);
    if (arrays->kind != MEMO_ROW_SUMS && x->n_rows == 0) x->n_rows = 1;
    if (arrays->kind != MEMO_ROW_SUMS) MEMOI_ROW_MATRIX(WRITES, to);
    MEMOI_ROW_MATRIX(READS, a);
    if (has_b)
        MEMOI_ROW_MATRIX(READS, b);
    else
        x->b = NULL;
    if (arrays->status || arrays->kind == MEMO_ROW_SUMS || x->to_stride != x->n_columns ||
        x->a_stride != x->n_columns || (has_b && x->b_stride != x->n_columns))
        return;

    /* One long row. */
    x->n_columns *= x->n_rows;
    x->n_rows = 1;
    x->to_stride = x->a_stride = x->b_stride = x->n_columns;
}

/* The kind decides which arrays of the desc are used; d_logits and sums are optional. */
MEMOI void memoi_row_arrays_memo_cross_entropy_desc(memoi_row_arrays* arrays, void* desc) {
    memo_cross_entropy_desc* x = (memo_cross_entropy_desc*)desc;
    const int64_t bytes = memo_row_type_bytes(x->type), n_numbers = MEMO_LOSS_NUMBERS;
    const int64_t n = x->n_rows, most = MEMOB_BYTES_MAX;
    if (x->n_parts == 0) x->n_parts = 1;
    if (!MEMOI_ROW_IS_IN(n_parts, 1, INT32_MAX) || !MEMOI_ROW_IS_IN(part, 0, x->n_parts - 1) ||
        !MEMOI_ROW_IS_IN(n_columns, 0, most / 2) || !MEMOI_ROW_IS_IN(first_column, 0, most / 2) ||
        !MEMOI_ROW_IS_IN(vocabulary, x->n_parts > 1, most) ||
        !MEMOI_ROW_IS_IN(n_rows, 0, most / (4 * n_numbers) / x->n_parts))
        return;
    arrays->status =
        memob_check_real(arrays->desc, "softcap", (double)x->softcap, 0, 3e38, arrays->error);
    if (!x->vocabulary) x->vocabulary = x->first_column + x->n_columns;

    /* What each of the three kernels reads and writes. */
    if (arrays->kind != MEMO_ROW_LOSS_SUMS)
        MEMOI_ROW_ARRAY(READS, logits, n, x->n_columns, bytes, &x->stride);
    MEMOI_ROW_ARRAY(READS, labels, n, 1, 4, NULL);
    if (arrays->kind == MEMO_ROW_SOFTMAX_PARTS)
        memoi_row_add(arrays, MEMOI_ROW_WRITES, "parts",
                      x->parts ? x->parts + x->part * n * n_numbers : NULL, n, n_numbers, 4, NULL);
    if (arrays->kind == MEMO_ROW_CROSS_ENTROPY) {
        MEMOI_ROW_ARRAY(READS, parts, x->n_parts, n * n_numbers, 4, NULL);
        MEMOI_ROW_ARRAY(WRITES, losses, n, 1, 4, NULL);
        if (x->d_logits) MEMOI_ROW_ARRAY(WRITES, d_logits, n, x->n_columns, bytes, &x->stride);
    }
    if (arrays->kind == MEMO_ROW_LOSS_SUMS) {
        MEMOI_ROW_ARRAY(READS, losses, n, 1, 4, NULL);
        if (x->sums) MEMOI_ROW_ARRAY(UPDATES, sums, 1, 3, 8, NULL);
    }
}

MEMOI void memoi_row_arrays_memo_sinks_desc(memoi_row_arrays* arrays, void* desc) {
    memo_sinks_desc* x = (memo_sinks_desc*)desc;
    const int64_t most = MEMOB_BYTES_MAX;
    int64_t n;
    if (!MEMOI_ROW_IS_IN(n_heads, 0, most) ||
        !MEMOI_ROW_IS_IN(n_rows, 0, x->n_heads ? most / x->n_heads : most))
        return;
    n = x->n_rows * x->n_heads;
    MEMOI_ROW_ARRAY(READS, sinks, 1, x->n_heads, 4, NULL);
    if (arrays->kind == MEMO_ROW_SINKS) {
        MEMOI_ROW_ARRAY(UPDATES, lse, n, 1, 4, NULL);
        MEMOI_ROW_ARRAY(UPDATES, out, n, x->n_columns, 4, NULL);
    } else {
        MEMOI_ROW_ARRAY(READS, lse, n, 1, 4, NULL);
        MEMOI_ROW_ARRAY(READS, row_dots, n, 1, 4, NULL);
        MEMOI_ROW_ARRAY(UPDATES, d_sinks, 1, x->n_heads, 4, NULL);
    }
}

MEMOI void memoi_row_arrays_memo_reduce_desc(memoi_row_arrays* arrays, void* desc) {
    memo_reduce_desc* x = (memo_reduce_desc*)desc;
    const int64_t bytes = memo_type_bytes(x->type);
    if (!MEMOI_ROW_IS_IN(n_from, 1, MEMO_REDUCE_MAX) ||
        !MEMOI_ROW_IS_IN(type, 0, MEMO_N_TYPES - 1) ||
        !MEMOI_ROW_IS_IN(reduction, 0, MEMO_N_REDUCTIONS - 1))
        return;
    MEMOI_ROW_ARRAY(WRITES, to, 1, x->count, bytes, NULL);
    for (int32_t r = 0; r < x->n_from; r++)
        memoi_row_add(arrays, MEMOI_ROW_READS, "from", x->from[r], 1, x->count, bytes, NULL);
}

MEMOI void memoi_row_arrays_memo_pack_desc(memoi_row_arrays* arrays, void* desc) {
    memo_pack_desc* x = (memo_pack_desc*)desc;
    const int64_t most = MEMOB_BYTES_MAX / 2;
    int64_t n_packed = 0, n_rows = 0;
    int32_t is_valid = 1;
    if (!MEMOI_ROW_IS_IN(n_ranges, 0, MEMO_PACK_MAX)) return;
    for (int32_t k = 0; k < x->n_ranges; k++) { /* few operations, as host time counts */
        const int64_t begin = x->begins[k], end = x->ends[k];
        is_valid &= (begin >= 0) & (begin <= most) & (end >= n_packed) & (end <= most);
        n_rows = memob_max(n_rows, is_valid ? begin + end - n_packed : 0);
        n_packed = end;
    }
    if (!is_valid)
        arrays->status =
            MEMOB_INVALID(arrays->error, "memo_pack_desc.begins, ends: invalid; begins from 0, and "
                                         "ends from 0 that do not descend, are valid");
    for (int32_t t = 0; t < 2; t++) {
        memoi_row_add(arrays, MEMOI_ROW_UPDATES, "rows", x->rows[t], n_rows, x->n_columns[t],
                      memo_row_type_bytes(x->rows_type), NULL);
        memoi_row_add(arrays, MEMOI_ROW_READS, "packed", x->packed[t], n_packed, x->n_columns[t],
                      memo_row_type_bytes(x->packed_type), NULL);
    }
}

typedef struct memoi_row_kernel {
    const char *name, *desc;
    size_t desc_bytes;
    void (*loop)(const void* desc);
    void (*arrays_of)(memoi_row_arrays* arrays, void* desc);
} memoi_row_kernel;

#define MEMOI_ROW_ENTRY(kind, name, shown, desc_type)                                              \
    {shown, #desc_type, sizeof(desc_type), memoi_row_loop_##name, memoi_row_arrays_##desc_type},
static const memoi_row_kernel memoi_row_kernels[] = {MEMO_ROW_KERNELS(MEMOI_ROW_ENTRY)};
MEMOB_TABLE_OF(MEMO_N_ROW_KINDS, memoi_row_kernels);

/* Copies a desc, with defaults, and checks it. */
MEMOI memo_status memoi_row_take(memo_row_kind kind, const void* desc, memo_row_desc* taken,
                                 memoi_row_arrays* arrays, memo_error* error) {
    if ((size_t)kind >= MEMO_N_ROW_KINDS)
        return MEMOI_REFUSE("row kernel: not a memo_row_kind (%d); 0 to %d are valid", (int)kind,
                            MEMO_N_ROW_KINDS - 1);
    if (!desc)
        return MEMOI_REFUSE("row kernel '%s': desc is NULL; pass the desc of its kind",
                            memoi_row_kernels[kind].name);
    memcpy(taken, desc, memoi_row_kernels[kind].desc_bytes);
    arrays->kind = kind;
    arrays->desc = memoi_row_kernels[kind].desc;
    arrays->op = MEMO_ZERO(memo_op_desc);
    arrays->op.name = memoi_row_kernels[kind].name;
    arrays->op.reads = arrays->reads;
    arrays->op.writes = arrays->writes;
    arrays->status = MEMO_STATUS_OK;
    arrays->error = error;
    memoi_row_kernels[kind].arrays_of(arrays, taken);
    return arrays->status;
}

/* --- running them --- */

/* A kernel on its way to a stream. */
typedef struct memoi_row_args {
    memo_row_kind kind;
    memo_row_desc desc;
} memoi_row_args;
#ifndef MEMO_NO_HOST_DEVICE
typedef char memoi_row_args_fit[sizeof(memoi_row_args) <= MEMO_HOST_ARGS_BYTES ? 1 : -1];
#endif

MEMOI memo_status memoi_row_run_args(void* args, memo_error* error) {
    const memoi_row_args* run = (const memoi_row_args*)args;
    if (run->kind == MEMO_ROW_SINKS || run->kind == MEMO_ROW_SINK_SUMS) {
        const memo_sinks_desc* sinks = &run->desc.sinks;
        for (int64_t head = 0; head < sinks->n_heads; head++)
            if (!(sinks->sinks[head] < INFINITY))
                return MEMOI_REFUSE("memo_sinks_desc.sinks[%lld]: not a number, or too large (%g); "
                                    "finite numbers and -inf (no sink) are valid",
                                    (long long)head, (double)sinks->sinks[head]);
    }
    memoi_row_kernels[run->kind].loop(&run->desc);
    return MEMO_STATUS_OK;
}

memo_status memo_row_run(memo_row_kind kind, const void* desc, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "desc", desc);
    memoi_row_args args;
    memoi_row_arrays arrays;
    memo_status status = memoi_row_take(kind, desc, &args.desc, &arrays, error);
    args.kind = kind;
    return status ? status : memoi_row_run_args(&args, error);
}

MEMOI memo_status memoi_check_row_kernels(const memo_device* device, memo_error* error) {
    if (MEMO_DEVICE_HAS(device, row_kernel)) return MEMO_STATUS_OK;
    return MEMOI_FAIL(UNSUPPORTED,
                      "device '%s': it has no row kernels; use a device that has them, and include "
                      "memo_sp.h before memo_cuda.cuh",
                      device->name);
}

memo_status memo_row_kernel(const memo_device* device, memo_stream stream, memo_row_kind kind,
                            const void* desc, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "device", device);
    MEMOB_REFUSE_NULL(error, "desc", desc);
    memoi_row_args args;
    memo_row_call call = {kind, &args.desc, memoi_row_run_args, &args, 0};
    memoi_row_arrays arrays;
    memo_status status;
    if (memoi_check_row_kernels(device, error)) return MEMO_STATUS_UNSUPPORTED;
    status = memoi_row_take(kind, desc, &args.desc, &arrays, error);
    if (status) return status;
    args.kind = kind;
    call.args_bytes =
        (int64_t)(offsetof(memoi_row_args, desc) + memoi_row_kernels[kind].desc_bytes);
    if (MEMO_DEVICE_HAS(device, annotate))
        status = memo_annotate(device, stream, &arrays.op, error);
    return status ? status : device->row_kernel(device->context, stream, &call, error);
}

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

/* ---- >>mesh -------------------------------------------------------------------------------------
 * Knows: split of memo_comm.  Knows nothing of back ends, streams or data.
 *
 * 1. The coordinates of a rank number it: ranks differ in one of them. */

/* The axes in the order in which messages list them, and the groups of more than one axis. */
enum {
    MEMOI_MESH_DATA = 0,
    MEMOI_MESH_PIPELINE,
    MEMOI_MESH_TENSOR,
    MEMOI_MESH_RING,
    MEMOI_MESH_ULYSSES,
    MEMOI_MESH_AXES,
    MEMOI_MESH_SEQUENCE = MEMOI_MESH_AXES,
    MEMOI_MESH_GRADIENT,
    MEMOI_MESH_GROUPS
};
static const char* const memoi_mesh_names[] = {"data",    "pipeline", "tensor",  "ring",
                                               "ulysses", "sequence", "gradient"};
MEMOB_TABLE_OF(MEMOI_MESH_GROUPS, memoi_mesh_names);

MEMOI int32_t* memoi_mesh_degree(memo_mesh_desc* d, int axis) {
    int32_t* const degrees[] = {&d->data, &d->pipeline, &d->tensor, &d->ring, &d->ulysses};
    MEMOB_TABLE_OF(MEMOI_MESH_AXES, degrees);
    return degrees[axis];
}
MEMOI int32_t* memoi_mesh_rank(memo_mesh* m, int group) {
    int32_t* const ranks[] = {&m->data_rank,    &m->pipeline_rank, &m->tensor_rank,  &m->ring_rank,
                              &m->ulysses_rank, &m->sequence_rank, &m->gradient_rank};
    MEMOB_TABLE_OF(MEMOI_MESH_GROUPS, ranks);
    return ranks[group];
}
MEMOI memo_comm** memoi_mesh_comm(memo_mesh* m, int group) {
    memo_comm** const comms[] = {&m->data,    &m->pipeline, &m->tensor,  &m->ring,
                                 &m->ulysses, &m->sequence, &m->gradient};
    MEMOB_TABLE_OF(MEMOI_MESH_GROUPS, comms);
    return comms[group];
}

/* Fills in the defaults. */
MEMOI memo_status memoi_mesh_check(memo_mesh_desc* degrees, int32_t size, memo_error* error) {
    const int32_t n_nodes = degrees->nodes > 0 ? degrees->nodes : 1;
    char text[160], hint[200];
    int text_length = 0, hint_length = 0;
    int64_t product = 1;
    for (int i = 0; i < MEMOI_MESH_AXES; i++) {
        int32_t* degree = memoi_mesh_degree(degrees, i);
        if (memob_check_integer("memo_mesh_desc", memoi_mesh_names[i], *degree, 0, INT32_MAX,
                                error))
            return MEMO_STATUS_INVALID_ARGUMENT;
        if (!*degree) *degree = 1;
        if (i == MEMOI_MESH_RING && (degrees->nodes < 0 || *degree % n_nodes))
            return MEMOI_REFUSE("memo_mesh_desc.nodes: %d, which does not divide ring (%d)",
                                (int)degrees->nodes, (int)*degree);
        /* A product above size is wrong anyway; stop there, so that it cannot overflow. */
        product = product > size ? product : product * *degree;
    }
    if (product == size) return MEMO_STATUS_OK;

    /* The single degrees that could change so that the product is size: "data 4, or ring 6". */
    for (int i = 0; i < MEMOI_MESH_AXES; i++) {
        const char* name = memoi_mesh_names[i];
        int64_t others = 1;
        for (int k = 0; k < MEMOI_MESH_AXES; k++)
            if (k != i && others <= size) others *= *memoi_mesh_degree(degrees, k);
        text_length += snprintf(text + text_length, sizeof text - (size_t)text_length, "%s%s %d",
                                i ? " x " : "", name, (int)*memoi_mesh_degree(degrees, i));
        if (size % others == 0)
            hint_length +=
                snprintf(hint + hint_length, sizeof hint - (size_t)hint_length, "%s%s %lld",
                         hint_length ? ", or " : "what fits: ", name, (long long)(size / others));
    }
    return MEMOI_REFUSE("memo_mesh_desc: %s is not the world's size (%d); %s", text, (int)size,
                        hint_length ? hint : "no change of one degree fits");
}

/* Sets the coordinates of a rank. */
MEMOI memo_status memoi_mesh_place(const memo_mesh_desc* desc, int32_t size, int32_t rank,
                                   memo_mesh* mesh, memo_error* error) {
    static const int from_the_fastest[] = {MEMOI_MESH_TENSOR, MEMOI_MESH_ULYSSES, MEMOI_MESH_RING,
                                           MEMOI_MESH_DATA, MEMOI_MESH_PIPELINE};
    MEMOB_TABLE_OF(MEMOI_MESH_AXES, from_the_fastest);
    memo_mesh_desc degrees = *desc;
    int32_t rest = rank;
    const memo_status status = memoi_mesh_check(&degrees, size, error);
    if (status) return status;
    mesh->degrees = degrees;
    mesh->rank = rank;
    mesh->size = size;
    for (int32_t i = 0; i < MEMOI_MESH_AXES; i++) {
        const int32_t degree = *memoi_mesh_degree(&degrees, from_the_fastest[i]);
        *memoi_mesh_rank(mesh, from_the_fastest[i]) = rest % degree;
        rest /= degree;
    }
    MEMO_ASSERT(rest == 0); /* 1 */
    mesh->sequence_rank = mesh->ring_rank * degrees.ulysses + mesh->ulysses_rank;
    mesh->gradient_rank = mesh->data_rank * degrees.ring * degrees.ulysses + mesh->sequence_rank;
    return MEMO_STATUS_OK;
}

/* A number that is equal for the ranks of a group, which differ only along its axes. */
MEMOI int32_t memoi_mesh_color(memo_mesh* mesh, int group) {
    const int sequence = 1 << MEMOI_MESH_RING | 1 << MEMOI_MESH_ULYSSES;
    int axes = group < MEMOI_MESH_AXES ? 1 << group : sequence;
    int32_t color = 0;
    if (group == MEMOI_MESH_GRADIENT) axes |= 1 << MEMOI_MESH_DATA;
    for (int i = 0; i < MEMOI_MESH_AXES; i++)
        if (!(axes >> i & 1))
            color = color * *memoi_mesh_degree(&mesh->degrees, i) + *memoi_mesh_rank(mesh, i);
    return color;
}

memo_status memo_mesh_create(memo_comm* world, const memo_mesh_desc* desc, memo_mesh** result,
                             memo_error* error) {
    MEMOB_REFUSE_NULL(error, "mesh", result);
    *result = NULL;
    MEMOB_REFUSE_NULL(error, "world", world);
    MEMOB_REFUSE_NULL(error, "desc", desc);
    memo_mesh* mesh = (memo_mesh*)memob_calloc(1, sizeof *mesh);
    memo_status status = mesh ? memoi_mesh_place(desc, world->size, world->rank, mesh, error)
                              : memob_no_memory(error, "a mesh");
    for (int i = 0; i < MEMOI_MESH_GROUPS && !status; i++)
        status = memo_comm_split(world, memoi_mesh_color(mesh, i), *memoi_mesh_rank(mesh, i),
                                 memoi_mesh_names[i], memoi_mesh_comm(mesh, i), error);
    if (!status && mesh->degrees.nodes > 1) {
        const int32_t n = mesh->degrees.ring / mesh->degrees.nodes; /* ring ranks of a node */
        status = memo_comm_split(mesh->ring, mesh->ring_rank % n, mesh->ring_rank / n, "nodes",
                                 &mesh->nodes, error);
    }
    if (!status)
        mesh->world = world;
    else
        memo_mesh_destroy(mesh);
    *result = status ? NULL : mesh;
    return status;
}

void memo_mesh_destroy(memo_mesh* mesh) {
    if (!mesh) return;
    memo_comm_destroy(mesh->nodes);
    for (int i = 0; i < MEMOI_MESH_GROUPS; i++) memo_comm_destroy(*memoi_mesh_comm(mesh, i));
    MEMO_FREE(mesh);
}

/* ---- >>segments ---------------------------------------------------------------------------------
 * Knows: lists of segments, and runs of positions.  Knows nothing of masks, ranks or devices.
 *
 * 1. Segments are built from queries in ascending order, each of which sees a key.
 * 2. Neither end of the keys of a level descends from a query to the next. */

/* How the ends of the keys move from a query to the next: 0 or 1. */
MEMOI int memoi_segment_moves_begin(const memo_segment* s) {
    return s->type == MEMO_SEGMENT_INVERSE || s->type == MEMO_SEGMENT_BAND;
}
MEMOI int memoi_segment_moves_end(const memo_segment* s) {
    return s->type == MEMO_SEGMENT_CAUSAL || s->type == MEMO_SEGMENT_BAND;
}

void memo_segment_keys(const memo_segment* s, int64_t q, int64_t* begin, int64_t* end) {
    *begin = s->k_begin + (memoi_segment_moves_begin(s) ? q - s->q_begin : 0);
    *end = s->k_end - (memoi_segment_moves_end(s) ? s->q_end - 1 - q : 0);
}

/* --- from queries to segments --- */

/* A list of segments, level by level, the last of which may be open. */
typedef struct memoi_segment_list {
    memo_segment* list;         /* NULL: segments are only counted */
    int64_t n;                  /* closed ones */
    memo_segment open;          /* without k_end and type */
    int64_t n_rows;             /* queries of the open one; 0: none is open */
    int64_t begin, end;         /* the keys of the last query */
    int moves_begin, moves_end; /* from the open one's second query on */
} memoi_segment_list;

/* Before the first segment of a level; the segments of earlier ones are closed. */
MEMOI void memoi_segments_begin(memoi_segment_list* x, int32_t level) {
    x->open.level = level;
    x->open.q_end = x->begin = x->end = 0;
}

MEMOI void memoi_segments_close(memoi_segment_list* x) {
    if (!x->n_rows) return;
    x->open.k_end = x->end;
    x->open.type = MEMO_SEGMENT_FULL;
    if (x->n_rows > 1) x->open.type = (memo_segment_type)(x->moves_end + 2 * x->moves_begin);
    if (x->list) x->list[x->n] = x->open;
    x->n++;
    x->n_rows = 0;
}

MEMOI void memoi_segments_open(memoi_segment_list* x, int64_t q, int64_t begin, int64_t end) {
    x->open.q_begin = q;
    x->open.q_end = q + 1;
    x->open.k_begin = x->begin = begin;
    x->end = end;
    x->n_rows = 1;
}

/* Adds query q, which sees the keys [begin, end). */
MEMOI void memoi_segments_add(memoi_segment_list* x, int64_t q, int64_t begin, int64_t end) {
    const int64_t by_begin = begin - x->begin, by_end = end - x->end;
    int is_next = x->n_rows && q == x->open.q_end && by_begin <= 1 && by_end <= 1;
    int is_alike = by_begin == x->moves_begin && by_end == x->moves_end;
    MEMO_ASSERT(begin < end && q >= x->open.q_end); /* 1 */
    MEMO_ASSERT(by_begin >= 0 && by_end >= 0);      /* 2 */
    if (by_begin && by_end && x->end - x->begin == 1)
        is_next = 0; /* documents of one token are not a band */

    /* The last row of a band belongs to what follows: it is the first row of a document there. */
    if (is_next && !is_alike && x->n_rows > 1 && x->moves_begin && x->moves_end) {
        const int64_t last_begin = x->begin--, last_end = x->end--;
        x->open.q_end--;
        x->n_rows--;
        memoi_segments_close(x);
        memoi_segments_open(x, q - 1, last_begin, last_end);
    }

    if (is_next && (x->n_rows == 1 || is_alike)) {
        x->moves_begin = (int)by_begin;
        x->moves_end = (int)by_end;
        x->open.q_end++;
        x->n_rows++;
        x->begin = begin;
        x->end = end;
        return;
    }
    memoi_segments_close(x);
    memoi_segments_open(x, q, begin, end);
}

/* Adds n queries of one kind: from the second on, the ends move by these numbers. */
MEMOI void memoi_segments_add_rows(memoi_segment_list* x, int64_t q, int64_t n, int64_t begin,
                                   int64_t end, int moves_begin, int moves_end) {
    for (int64_t i = 0; i < n; i++, begin += moves_begin, end += moves_end) {
        const int64_t more = n - 1 - i;
        memoi_segments_add(x, q + i, begin, end);
        if (x->n_rows < 2 || x->moves_begin != moves_begin || x->moves_end != moves_end) continue;
        x->open.q_end += more; /* all others join */
        x->n_rows += more;
        x->begin += moves_begin * more;
        x->end += moves_end * more;
        MEMO_ASSERT(x->begin < x->end); /* 1 */
        return;
    }
}

/* The first segment of a level that ends behind query q. */
MEMOI int64_t memoi_segments_first(const memo_segment* list, int64_t n, int64_t q) {
    int64_t first = 0;
    while (first < n) {
        const int64_t middle = (first + n) / 2;
        if (list[middle].q_end <= q)
            first = middle + 1;
        else
            n = middle;
    }
    return first;
}

/* --- from positions to rows --- */

/* An end of the keys that walks over runs of keys: positions ascend, so it passes each run once. */
typedef struct memoi_segments_end {
    const memo_run *run, *last;
    int64_t row; /* of the run */
} memoi_segments_end;

/* The first row at a position or behind it. */
MEMOI int64_t memoi_segments_row(memoi_segments_end* e, int64_t position) {
    while (e->run < e->last && e->run->start + e->run->count <= position) e->row += e->run++->count;
    return e->row + (e->run < e->last ? memob_max(position - e->run->start, 0) : 0);
}

/* After memoi_segments_row: for how many queries the row moves alike, and how. */
MEMOI int64_t memoi_segments_reach(const memoi_segments_end* e, int64_t position, int moves,
                                   int* moves_row) {
    *moves_row = 0;
    if (!moves || e->run == e->last) return INT64_MAX;
    if (position < e->run->start) return e->run->start - position;
    *moves_row = 1;
    return e->run->start + e->run->count - position;
}

/* The queries at positions [at, to), from row q on, of a segment s of positions. */
MEMOI void memoi_segments_add_part(memoi_segment_list* x, const memo_segment* s, int64_t at,
                                   int64_t to, int64_t q, memoi_segments_end ends[2]) {
    while (at < to) {
        int64_t begin, end, first, last, n;
        int moves_first, moves_last;
        memo_segment_keys(s, at, &begin, &end);
        first = memoi_segments_row(&ends[0], begin);
        last = memoi_segments_row(&ends[1], end);
        n = memob_min(
            memoi_segments_reach(&ends[0], begin, memoi_segment_moves_begin(s), &moves_first),
            memoi_segments_reach(&ends[1], end, memoi_segment_moves_end(s), &moves_last));
        n = memob_min(n, to - at);
        if (first < last)
            memoi_segments_add_rows(x, q, n, first, last, moves_first, moves_last);
        else if (moves_last)
            n = 1; /* the next query sees a key */
        at += n;
        q += n;
    }
}

/* The segments of a block: rows of query runs against rows of key runs, under one level of a mask.
 * Returns their number; list NULL: only that.  O(runs + segments of the mask). */
MEMOI int64_t memoi_segments_derive(const memo_segment* seen, int64_t n_seen, const memo_run* q,
                                    int32_t n_q, const memo_run* k, int32_t n_k,
                                    memo_segment* list) {
    const memoi_segments_end begin = {k, k + n_k, 0};
    memoi_segments_end ends[2] = {begin, begin};
    memoi_segment_list x = MEMO_ZERO(memoi_segment_list);
    int64_t row = 0, first = n_q ? memoi_segments_first(seen, n_seen, q->start) : 0;
    x.list = list;
    x.open.level = n_seen ? seen->level : 0;
    for (int32_t r = 0; r < n_q; row += q[r++].count) {
        const int64_t q_end = q[r].start + q[r].count;
        while (first < n_seen && seen[first].q_end <= q[r].start) first++;
        for (int64_t i = first; i < n_seen && seen[i].q_begin < q_end; i++) {
            const int64_t at = memob_max(q[r].start, seen[i].q_begin);
            memoi_segments_add_part(&x, &seen[i], at, memob_min(q_end, seen[i].q_end),
                                    row + at - q[r].start, ends);
        }
    }
    memoi_segments_close(&x);
    return x.n;
}

/* ---- >>shardings --------------------------------------------------------------------------------
 * Knows: positions, ranks, rows, and how many keys queries see.  Knows nothing of attention,
 * streams or devices.
 *
 * 1. Parts of documents never take more rows than a rank has.
 * 2. Pieces of documents and of padding fill the rows of all ranks.
 * 3. No run is empty. */

MEMOI const char* memoi_sharding_name(memo_sharding_kind kind) {
    static const char* const names[] = {"zigzag", "plain", "documents"};
    MEMOB_TABLE_OF(MEMO_N_SHARDING_KINDS, names);
    return MEMOI_NAME(names, kind, "no sharding");
}

/* The runs of a rank must fit 31 bits, and those of all ranks 63. */
#define MEMOI_DOCUMENTS_MAX (INT32_MAX / 4)

/* name: "memo_mask_desc.document_begins"; n_tokens -1: they end anywhere. */
MEMOI memo_status memoi_sharding_check_documents(const char* name, const int64_t* begins,
                                                 int64_t n_documents, int64_t n_tokens,
                                                 memo_error* error) {
    int is_valid = begins && n_documents >= 1 && n_documents <= MEMOI_DOCUMENTS_MAX && !begins[0] &&
                   (n_tokens < 0 || begins[n_documents] == n_tokens);
    for (int64_t i = 0; is_valid && i < n_documents; i++) is_valid = begins[i] <= begins[i + 1];
    if (is_valid) return MEMO_STATUS_OK;
    return MEMOI_REFUSE("%s, n_documents: invalid (%lld documents); 1 to %d that ascend from 0 to "
                        "the sharding's n_tokens (%lld) are valid",
                        name, (long long)n_documents, MEMOI_DOCUMENTS_MAX, (long long)n_tokens);
}

/* The parent of i is i - 1 or one of its ancestors.  NULL is valid. */
MEMOI memo_status memoi_sharding_check_parents(const char* name, const int64_t* parents,
                                               int64_t n_documents, memo_error* error) {
    for (int64_t i = 0; i < n_documents && parents; i++) {
        int64_t at = i - 1, depth = 0;
        while (at > parents[i] && at >= 0) at = parents[at];
        if (at != parents[i])
            return MEMOI_REFUSE("%s[%lld]: %lld; -1, the document before, or one of that one's "
                                "ancestors is valid (preorder)",
                                name, (long long)i, (long long)parents[i]);
        for (; at >= 0; depth++) at = parents[at];
        if (depth > MEMO_TREE_DEPTH_MAX)
            return MEMOI_REFUSE("%s[%lld]: %lld ancestors; at most %d are valid", name,
                                (long long)i, (long long)depth, MEMO_TREE_DEPTH_MAX);
    }
    return MEMO_STATUS_OK;
}

/* Tokens of the ancestors of a document. */
MEMOI int64_t memoi_sharding_prefix(const memo_sharding* sharding, int64_t document) {
    const int64_t *begins = sharding->document_begins, *parents = sharding->document_parents;
    int64_t n = 0;
    while (parents && parents[document] >= 0) {
        document = parents[document];
        n += begins[document + 1] - begins[document];
    }
    return n;
}

MEMOI memo_status memoi_sharding_check_capacity(const memo_sharding* sharding, memo_error* error) {
    const int has_documents = sharding->kind == MEMO_SHARDING_DOCUMENTS;
    if (sharding->capacity && sharding->capacity < sharding->n_tokens)
        return MEMOI_REFUSE("memo_sharding_desc.capacity: below n_tokens (%lld, %lld); as many, "
                            "more, or 0 is valid",
                            (long long)sharding->capacity, (long long)sharding->n_tokens);
    return MEMOI_INTEGER("memo_sharding_desc", sharding, capacity, 0,
                         has_documents ? MEMOB_BYTES_MAX / 2 : 0);
}

/* Segments of queries of the sequence, each level ascending. */
MEMOI memo_status memoi_sharding_check_segments(const memo_sharding_desc* desc, memo_error* error) {
    const memo_segment* list = desc->segments;
    const int has_documents = desc->kind == MEMO_SHARDING_DOCUMENTS;
    int is_valid = desc->n_segments >= 0 && (!desc->n_segments || (list && has_documents));
    for (int64_t i = 0; is_valid && i < desc->n_segments; i++) {
        const memo_segment* x = &list[i];
        const int follows = i && x[-1].level == x->level;
        is_valid = x->q_begin >= (follows ? x[-1].q_end : 0) && x->q_end > x->q_begin &&
                   x->q_end <= desc->n_tokens && x->level >= (i ? x[-1].level : 0) &&
                   x->level < MEMO_LEVELS_MAX && (uint32_t)x->type < MEMO_N_SEGMENT_TYPES;
        is_valid = is_valid && x->k_begin >= 0 && x->k_end > x->k_begin &&
                   x->k_end <= MEMOB_BYTES_MAX / 2 &&
                   (x->type == MEMO_SEGMENT_FULL || x->k_end - x->k_begin >= x->q_end - x->q_begin);
    }
    if (is_valid) return MEMO_STATUS_OK;
    return MEMOI_REFUSE(
        "memo_sharding_desc.segments, n_segments: invalid (%lld segments); those of "
        "a memo_mask of n_tokens queries (%lld) are valid, in the sharding "
        "documents",
        (long long)desc->n_segments, (long long)desc->n_tokens);
}

/* All but the pieces of documents, from the fields that a desc has. */
MEMOI memo_status memoi_sharding_measure(memo_sharding* sharding, memo_error* error) {
    static const char name[] = "memo_sharding_desc";
    const int has_documents = sharding->kind == MEMO_SHARDING_DOCUMENTS;
    int64_t unit;
    if (MEMOI_INTEGER(name, sharding, kind, 0, MEMO_N_SHARDING_KINDS - 1) ||
        MEMOI_INTEGER(name, sharding, ring, 0, has_documents ? 1 << 16 : INT32_MAX) ||
        MEMOI_INTEGER(name, sharding, ulysses, 0, INT32_MAX) ||
        MEMOI_INTEGER(name, sharding, n_tokens, 1, MEMOB_BYTES_MAX / 2) ||
        memoi_sharding_check_capacity(sharding, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (!sharding->ring) sharding->ring = 1;
    if (!sharding->ulysses) sharding->ulysses = 1;

    /* Documents belong to one kind, which needs them. */
    if (!has_documents && (sharding->document_begins || sharding->document_parents))
        return MEMOI_REFUSE(
            "memo_sharding_desc.document_begins, document_parents: not used by the "
            "sharding %s; use MEMO_SHARDING_DOCUMENTS, or pass the documents in the "
            "mask",
            memoi_sharding_name(sharding->kind));
    if (!has_documents) sharding->n_documents = 0;
    if (has_documents &&
        (memoi_sharding_check_documents("memo_sharding_desc.document_begins",
                                        sharding->document_begins, sharding->n_documents,
                                        sharding->n_tokens, error) ||
         memoi_sharding_check_parents("memo_sharding_desc.document_parents",
                                      sharding->document_parents, sharding->n_documents, error)))
        return MEMO_STATUS_INVALID_ARGUMENT;

    /* Equal shares.  Zigzag cuts the rows of a ring rank in two, so their number must be even. */
    unit = (int64_t)sharding->ring * sharding->ulysses;
    if (sharding->kind == MEMO_SHARDING_ZIGZAG && sharding->ulysses % 2) unit *= 2;
    if (sharding->slice_tokens < 0 || sharding->slice_tokens % unit ||
        (sharding->slice_tokens && has_documents))
        return MEMOI_REFUSE("memo_sharding_desc.slice_tokens: %lld in the sharding %s; multiples "
                            "of %lld work, in the shardings zigzag and plain",
                            (long long)sharding->slice_tokens, memoi_sharding_name(sharding->kind),
                            (long long)unit);
    if (unit > INT32_MAX)
        return MEMOI_REFUSE(
            "memo_sharding_desc: ring %d x ulysses %d are too many ranks; at most %d are valid",
            (int)sharding->ring, (int)sharding->ulysses, INT32_MAX / 2);
    sharding->padded_tokens =
        (memob_max(sharding->n_tokens, sharding->capacity) + unit - 1) / unit * unit;
    sharding->local_tokens = sharding->padded_tokens / sharding->ring / sharding->ulysses;
    sharding->ring_tokens = sharding->local_tokens * sharding->ulysses;
    return MEMO_STATUS_OK;
}

/* --- slices --- */

/* Rows of a rank in each slice but the last. */
MEMOI int64_t memoi_sharding_slice_rows(const memo_sharding* sharding) {
    return sharding->slice_tokens ? sharding->slice_tokens / sharding->ring / sharding->ulysses
                                  : sharding->local_tokens;
}

MEMOI void memoi_sharding_cut(memo_sharding* sharding, int64_t n_tokens, int64_t local_tokens) {
    sharding->n_tokens = n_tokens;
    sharding->local_tokens = local_tokens;
    sharding->ring_tokens = local_tokens * sharding->ulysses;
    sharding->padded_tokens = sharding->ring_tokens * sharding->ring;
}

void memo_sharding_slice(const memo_sharding* sharding, int64_t k, memo_sharding* slice,
                         memo_sharding* so_far) {
    if (!sharding || !slice || !so_far) return;
    const int64_t each = sharding->slice_tokens ? sharding->slice_tokens : sharding->n_tokens;
    const int64_t rows = memoi_sharding_slice_rows(sharding), first = k * each;
    const int is_last = k == (sharding->n_tokens - 1) / each;
    const int64_t n = is_last ? sharding->n_tokens - first : each;
    const int64_t n_rows = is_last ? sharding->local_tokens - k * rows : rows;
    *slice = *so_far = *sharding;
    slice->slice_tokens = 0;
    memoi_sharding_cut(slice, n, n_rows);
    memoi_sharding_cut(so_far, first + n, k * rows + n_rows);
}

/* --- the sharding of documents --- */

/* The last of n ascending numbers, `stride` apart in memory, that is at most `at`; the first one if
 * none is. */
MEMOI int64_t memoi_sharding_search(const int64_t* numbers, int64_t stride, int64_t n, int64_t at) {
    int64_t low = 0, high = n; /* the number is one of [low, high) */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (numbers[middle * stride] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The begin of the document that contains position; its end follows.  Empty documents contain
 * nothing. */
MEMOI const int64_t* memoi_sharding_document_of(const int64_t* begins, int64_t n_documents,
                                                int64_t position) {
    return begins + memoi_sharding_search(begins, 1, n_documents, position);
}

/* Positions of a document, behind n_before others that are elsewhere, its ancestors included. */
typedef struct memoi_spread_part {
    int64_t begin, end, n_before;
} memoi_spread_part;

typedef struct memoi_spread_piece {
    int64_t begin, count, rank;
} memoi_spread_piece;

typedef struct memoi_spread {
    memo_sharding* sharding;
    memob_arrays arrays;
    int64_t* n_free; /* (ring): rows; differ by at most 1 within a group of ranks */
    memoi_spread_part* halves[2];
    memoi_spread_piece* pieces; /* freed apart */
    int64_t n_pieces, capacity;
    double most_apart; /* scores of a rank of both halves of a group */
    /* What queries see, or no levels, which begin at first[i] and end at first[n_levels];
     * before[i]: scores of all segments before i. */
    const memo_segment* segments;
    int64_t first[MEMO_LEVELS_MAX + 1];
    int32_t n_levels;
    double* before;
} memoi_spread;

/* The scores of a segment's first n queries: their keys grow, stay or shrink by one each. */
MEMOI double memoi_spread_segment(const memo_segment* segment, int64_t n) {
    int64_t first, first_end, last, last_end;
    memo_segment_keys(segment, segment->q_begin, &first, &first_end);
    memo_segment_keys(segment, segment->q_begin + n - 1, &last, &last_end);
    return n > 0 ? (double)n * (double)(first_end - first + last_end - last) / 2 : 0;
}

/* The scores of all queries before a position.  Segments of a level ascend. */
MEMOI double memoi_spread_up_to(const memoi_spread* s, int64_t position) {
    double scores = 0;
    for (int32_t level = 0; level < s->n_levels; level++) {
        const int64_t first = s->first[level];
        const int64_t i =
            first + memoi_sharding_search(&s->segments[first].q_begin, sizeof *s->segments / 8,
                                          s->first[level + 1] - first, position);
        const memo_segment* at = &s->segments[i];
        scores += s->before[i] - s->before[first] +
                  memoi_spread_segment(at, memob_min(position, at->q_end) - at->q_begin);
    }
    return scores;
}

/* The scores of n positions of a part from its position `at` on; causal ones without segments. */
MEMOI double memoi_spread_scores_of(const memoi_spread* s, const memoi_spread_part* part,
                                    int64_t at, int64_t n) {
    if (s->n_levels) return memoi_spread_up_to(s, at + n) - memoi_spread_up_to(s, at);
    return (double)n * ((double)(part->n_before + at - part->begin) + ((double)n + 1) / 2);
}
MEMOI double memoi_spread_scores(const memoi_spread* s, const memoi_spread_part* part) {
    return memoi_spread_scores_of(s, part, part->begin, part->end - part->begin);
}

MEMOI void memoi_spread_add(memoi_spread* s, int64_t begin, int64_t count, int64_t rank) {
    const memoi_spread_piece piece = {begin, count, rank};
    if (count && !memob_reserve(&s->pieces, &s->capacity, s->n_pieces + 1, sizeof piece))
        s->arrays.failed = 1;
    if (count && !s->arrays.failed) s->pieces[s->n_pieces++] = piece;
}

/* The scores of `count` positions of a part, n from its begin and the others from its end, without
 * those that so many positions have in the mean. */
MEMOI double memoi_spread_excess(const memoi_spread* s, const memoi_spread_part* part,
                                 int64_t count, int64_t n) {
    return memoi_spread_scores_of(s, part, part->begin, n) +
           memoi_spread_scores_of(s, part, part->end - (count - n), count - n) -
           memoi_spread_scores(s, part) * (double)count / (double)(part->end - part->begin);
}

/* How many of `count` positions a rank gets from the begin of a part: half of them, unless others
 * have more nearly the mean. */
MEMOI int64_t memoi_spread_first(const memoi_spread* s, const memoi_spread_part* part,
                                 int64_t count, int64_t half) {
    const double excess = count ? memoi_spread_excess(s, part, count, half) : 0;
    const int64_t ends[2] = {0, count};
    int64_t best = half;
    double least = fabs(excess);
    if (least <= s->most_apart / 32) return half;
    for (int i = 0; i < 2; i++) {
        const double at_end = memoi_spread_excess(s, part, count, ends[i]);
        int64_t same = half, other = ends[i]; /* as the sign of the excess */
        if ((at_end < 0) == (excess < 0)) {
            if (fabs(at_end) < least) best = ends[i];
            least = fmin(least, fabs(at_end));
            continue;
        }
        while (other - same > 1 || same - other > 1) {
            const int64_t middle = (same + other) / 2;
            const double here = memoi_spread_excess(s, part, count, middle);
            *((here < 0) == (excess < 0) ? &same : &other) = middle;
        }
        return same;
    }
    return best;
}

/* Cuts a part zigzag over n ranks.  Ranks with more free rows get a token more. */
MEMOI void memoi_spread_cut(memoi_spread* s, const memoi_spread_part* part, int32_t first,
                            int32_t n) {
    memoi_spread_part rest = *part;
    int64_t most = 0, n_most = 0;
    const int64_t each = (rest.end - rest.begin) / n, n_more = (rest.end - rest.begin) % n;
    int64_t more_most, more_others;
    for (int32_t r = first; r < first + n; r++) most = memob_max(most, s->n_free[r]);
    for (int32_t r = first; r < first + n; r++) n_most += s->n_free[r] == most;
    more_most = memob_min(n_more, n_most);
    more_others = n_more - more_most;

    for (int32_t r = first; r < first + n; r++) {
        int64_t* more = s->n_free[r] == most ? &more_most : &more_others;
        const int64_t count = each + (*more > 0);
        const int64_t half = (count + s->n_free[r] % 2) / 2;
        const int64_t n_first =
            r == first + n - 1 ? count : memoi_spread_first(s, &rest, count, half);
        *more -= *more > 0;
        memoi_spread_add(s, rest.begin, n_first, r);
        memoi_spread_add(s, rest.end - (count - n_first), count - n_first, r);
        rest.begin += n_first;
        rest.n_before += n_first;
        rest.end -= count - n_first;
        s->n_free[r] -= count;
        MEMO_ASSERT(s->n_free[r] >= 0); /* 1 */
    }
}

/* Gives parts to the halves of n ranks, the one with most scores first, each to the half with
 * fewer; the part that fills a half to both.
 * Returns how far the halves are apart. */
MEMOI double memoi_spread_halve(memoi_spread* s, const memoi_spread_part* parts, int64_t n_parts,
                                int32_t first, int32_t n, int64_t n_halves[2]) {
    const int32_t n_ranks[2] = {n / 2, n - n / 2};
    int64_t n_free[2] = {0, 0}, i;
    double scores[2] = {0, 0};
    n_halves[0] = n_halves[1] = 0;
    for (int32_t r = 0; r < n; r++) n_free[r >= n_ranks[0]] += s->n_free[first + r];
    for (i = 0; i < n_parts; i++) {
        int side = scores[0] * n_ranks[1] > scores[1] * n_ranks[0];
        memoi_spread_part part = parts[i];
        while (part.begin < part.end) {
            memoi_spread_part* here = &s->halves[side][n_halves[side]];
            *here = part;
            here->end = memob_min(part.end, part.begin + n_free[side]);
            part.n_before += here->end - here->begin;
            part.begin = here->end;
            n_free[side] -= here->end - here->begin;
            n_halves[side] += here->begin < here->end;
            scores[side] += memoi_spread_scores(s, here);
            side = !side;
        }
    }
    return fabs(scores[0] / n_ranks[0] - scores[1] / n_ranks[1]);
}

/* Gives parts, that with most scores first, to n ranks, which have as many free rows.  There is
 * room for n - 1 parts more, because each halving cuts one at most. */
MEMOI void memoi_spread_over(memoi_spread* s, memoi_spread_part* parts, int64_t n_parts,
                             int32_t first, int32_t n) {
    memoi_spread_part* second;
    int64_t n_halves[2];
    for (; n_parts &&
           (n == 1 || memoi_spread_halve(s, parts, n_parts, first, n, n_halves) > s->most_apart);
         n_parts--)
        memoi_spread_cut(s, parts++, first, n);
    if (!n_parts) return;

    second = parts + n_halves[0] + n / 2 - 1;
    memcpy(parts, s->halves[0], (size_t)n_halves[0] * sizeof *parts);
    memcpy(second, s->halves[1], (size_t)n_halves[1] * sizeof *parts);
    memoi_spread_over(s, parts, n_halves[0], first, n / 2);
    memoi_spread_over(s, second, n_halves[1], first + n / 2, n - n / 2);
}

/* For qsort: by ranks, and in a rank by positions. */
MEMOI int memoi_spread_compare(const void* left, const void* right) {
    const memoi_spread_piece *a = (const memoi_spread_piece*)left,
                             *b = (const memoi_spread_piece*)right;
    return a->rank != b->rank ? memob_compare(a->rank, b->rank) : memob_compare(a->begin, b->begin);
}

/* The scores of all segments before each. */
MEMOI void memoi_spread_take_segments(memoi_spread* s, const memo_sharding_desc* desc) {
    s->before = MEMOB_ARRAY(&s->arrays, double, desc->n_segments + 1);
    if (s->arrays.failed) return;
    s->segments = desc->segments;
    for (int64_t i = 0; i < desc->n_segments; i++) {
        const memo_segment* at = &s->segments[i];
        s->before[i + 1] = s->before[i] + memoi_spread_segment(at, at->q_end - at->q_begin);
        if (!i || at[-1].level < at->level) s->first[s->n_levels++] = i;
    }
    s->first[s->n_levels] = desc->n_segments;
}

MEMOI memo_status memoi_sharding_spread(const memo_sharding_desc* desc, memo_sharding* sharding,
                                        memo_error* error) {
    const int64_t *begins = sharding->document_begins, n = sharding->n_documents;
    const int32_t rd = sharding->ring;
    int64_t n_parts = 0, at = sharding->n_tokens;
    memoi_spread_part *parts, *documents;
    memob_keyed* order;
    memoi_spread s = MEMO_ZERO(memoi_spread);
    s.sharding = sharding;
    parts = MEMOB_ARRAY(&s.arrays, memoi_spread_part, n + rd);
    documents = s.halves[0] = MEMOB_ARRAY(&s.arrays, memoi_spread_part, n + rd);
    s.halves[1] = MEMOB_ARRAY(&s.arrays, memoi_spread_part, n + rd);
    s.n_free = MEMOB_ARRAY(&s.arrays, int64_t, rd);
    order = MEMOB_ARRAY(&s.arrays, memob_keyed, n);
    memoi_spread_take_segments(&s, desc);

    /* Documents, the one with most scores first. */
    for (int64_t i = 0; i < n && !s.arrays.failed; i++) {
        documents[i].begin = begins[i];
        documents[i].end = begins[i + 1];
        documents[i].n_before = memoi_sharding_prefix(sharding, i);
        const double scores = memoi_spread_scores(&s, &documents[i]);
        order[i] = memob_keyed_of((int64_t)fmin(scores, 9e18), i);
        s.most_apart += scores / rd / 32;
    }
    if (!s.arrays.failed) memob_keyed_sort(order, n);
    for (int64_t i = n - 1; i >= 0 && !s.arrays.failed; i--)
        if (documents[order[i].index].begin < documents[order[i].index].end)
            parts[n_parts++] = documents[order[i].index];
    for (int32_t r = 0; r < rd && !s.arrays.failed; r++)
        s.n_free[r] = memo_share_of(sharding->n_tokens, rd, r).count;
    if (!s.arrays.failed) memoi_spread_over(&s, parts, n_parts, 0, rd);

    /* Padding follows the tokens of its rank. */
    for (int32_t r = 0; r < rd; r++) {
        const int64_t count =
            sharding->ring_tokens - memo_share_of(sharding->n_tokens, rd, r).count;
        memoi_spread_add(&s, at, count, r);
        at += count;
    }
    sharding->pieces = (memo_sharding_piece*)memob_calloc(s.n_pieces + 1, sizeof *sharding->pieces);
    if (s.arrays.failed) memo_sharding_free(sharding);
    if (sharding->pieces) {
        qsort(s.pieces, (size_t)s.n_pieces, sizeof *s.pieces, memoi_spread_compare);
        for (int64_t i = at = 0; i < s.n_pieces; at += s.pieces[i++].count) {
            sharding->pieces[i].row = at;
            sharding->pieces[i].position = s.pieces[i].begin;
        }
        MEMO_ASSERT(at == sharding->padded_tokens); /* 2 */
        sharding->pieces[s.n_pieces].row = sharding->pieces[s.n_pieces].position = at;
        sharding->n_pieces = s.n_pieces;
    }
    memob_arrays_free(&s.arrays);
    MEMO_FREE(s.pieces);
    return sharding->pieces ? MEMO_STATUS_OK : memob_no_memory(error, "a sharding of documents");
}

void memo_sharding_free(memo_sharding* sharding) {
    if (!sharding) return;
    MEMO_FREE(sharding->pieces);
    sharding->pieces = NULL;
}

memo_status memo_sharding_make(const memo_sharding_desc* desc, memo_sharding* sharding,
                               memo_error* error) {
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "sharding", sharding);
    memo_status status;
    memset(sharding, 0, sizeof *sharding);
    sharding->kind = desc->kind;
    sharding->ring = desc->ring;
    sharding->ulysses = desc->ulysses;
    sharding->n_tokens = desc->n_tokens;
    sharding->capacity = desc->capacity;
    sharding->document_begins = desc->document_begins;
    sharding->n_documents = desc->n_documents;
    sharding->document_parents = desc->document_parents;
    sharding->slice_tokens = desc->slice_tokens;
    status = memoi_sharding_measure(sharding, error);
    if (!status) status = memoi_sharding_check_segments(desc, error);
    return status || desc->kind != MEMO_SHARDING_DOCUMENTS
               ? status
               : memoi_sharding_spread(desc, sharding, error);
}

/* --- runs --- */

/* The run that begins at a row of a sequence rank; it may go on in the next one's rows. */
MEMOI memo_run memoi_sharding_run_at(const memo_sharding* sharding, int32_t sequence_rank,
                                     int64_t row) {
    const int64_t n = sharding->ring_tokens, rd = sharding->ring;
    const int64_t ring_rank = sequence_rank / sharding->ulysses;
    const int64_t place = sequence_rank % sharding->ulysses * sharding->local_tokens + row;
    memo_run run = {ring_rank * n + place, n - place};
    if (sharding->slice_tokens) {
        const int64_t rows = memoi_sharding_slice_rows(sharding);
        const int64_t k = memob_min(row / rows, (sharding->n_tokens - 1) / sharding->slice_tokens);
        memo_sharding slice, so_far;
        memo_sharding_slice(sharding, k, &slice, &so_far);
        run = memoi_sharding_run_at(&slice, sequence_rank, row - k * rows);
        run.start += k * sharding->slice_tokens;
        run.count = memob_min(run.count, so_far.local_tokens - row);
        return run;
    }

    switch (sharding->kind) {
    case MEMO_SHARDING_PLAIN: break;
    case MEMO_SHARDING_ZIGZAG:
        if (rd == 1) break; /* the two chunks touch */
        run.start = ring_rank * (n / 2) + place;
        run.count = n / 2 - place;
        if (place < n / 2) break;
        run.start = (2 * rd - 1 - ring_rank) * (n / 2) + place - n / 2;
        run.count = n - place;
        break;
    case MEMO_SHARDING_DOCUMENTS: {
        const int64_t at = sequence_rank * sharding->local_tokens + row;
        const memo_sharding_piece* piece =
            sharding->pieces +
            memoi_sharding_search(&sharding->pieces->row, 2, sharding->n_pieces, at);
        run.start = piece->position + at - piece->row;
        run.count = memob_min(piece[1].row - at, run.count);
        break;
    }
    case MEMO_N_SHARDING_KINDS: break;
    }
    return run;
}

/* The run that begins at *row of a sequence rank.  Advances *row past it.  Returns 0 at the end. */
MEMOI int memoi_sharding_next(const memo_sharding* sharding, int32_t sequence_rank, int64_t* row,
                              memo_run* run) {
    int64_t left = sharding->local_tokens - *row;
    if (left <= 0) return 0;
    *run = memoi_sharding_run_at(sharding, sequence_rank, *row);
    run->count = memob_min(run->count, left);
    MEMO_ASSERT(run->count > 0); /* 3 */
    *row += run->count;
    return 1;
}

int32_t memo_sharding_runs(const memo_sharding* sharding, int32_t sequence_rank, memo_run* runs) {
    if (!sharding) return 0;
    memo_run run;
    int64_t row = 0;
    int32_t n = 0;
    for (; memoi_sharding_next(sharding, sequence_rank, &row, &run); n++)
        if (runs) runs[n] = run;
    return n;
}

MEMOI int32_t memoi_sharding_ring_runs(const memo_sharding* sharding, int32_t ring_rank,
                                       memo_run* runs) {
    memo_sharding by_ring = *sharding; /* its sequence ranks are the ring ranks */
    by_ring.ulysses = 1;
    by_ring.local_tokens = sharding->ring_tokens;
    return memo_sharding_runs(&by_ring, ring_rank, runs);
}

int64_t memo_sharding_position(const memo_sharding* sharding, int32_t sequence_rank, int64_t row) {
    if (!sharding) return 0;
    return memoi_sharding_run_at(sharding, sequence_rank, row).start;
}

/* Makes document the one of a position, with its ancestors if it is of the sharding, unless the
 * position is in there. */
MEMOI void memoi_sharding_document(const memo_sharding* sharding, const int64_t* begins, int64_t n,
                                   int64_t position, memoi_spread_part* document) {
    const int is_own = !begins;
    int64_t i;
    if (position >= document->begin && position < document->end) return;
    document->begin = document->n_before = 0;
    document->end = sharding->n_tokens;
    if (is_own) {
        begins = sharding->document_begins;
        n = sharding->n_documents;
    }
    if (!begins || position >= sharding->n_tokens) return;
    i = memoi_sharding_search(begins, 1, n, position);
    document->begin = begins[i];
    document->end = begins[i + 1];
    if (is_own) document->n_before = memoi_sharding_prefix(sharding, i);
}

/* positions[local_tokens] of a rank's rows: from the begin of each document on, behind its
 * ancestors.  Padding counts on from n_tokens. */
MEMOI void memoi_sharding_positions(const memo_sharding* sharding, int32_t sequence_rank,
                                    int64_t* positions) {
    memoi_spread_part document = {0, 0, 0};
    int64_t row = 0;
    memo_run run;
    while (memoi_sharding_next(sharding, sequence_rank, &row, &run))
        for (int64_t at = run.start; at < run.start + run.count; at++) {
            memoi_sharding_document(sharding, NULL, 0, at, &document);
            *positions++ = at - document.begin + document.n_before;
        }
}

/* The number of positions of a run below `end`. */
MEMOI int64_t memoi_sharding_run_below(const memo_run* run, int64_t end) {
    return memob_min(memob_max(end - run->start, 0), run->count);
}

int64_t memo_sharding_labels(const memo_sharding* sharding, int32_t sequence_rank, int64_t n_batch,
                             const int32_t* tokens, int64_t ahead, const int64_t* document_begins,
                             int64_t n_documents, int32_t ignored, int32_t* labels) {
    if (!sharding || !tokens || !labels) return 0;
    memo_run run;
    int64_t n_labels = 0;
    for (int64_t b = 0; b < n_batch; b++, tokens += sharding->n_tokens) {
        memoi_spread_part document = {0, 0, 0};
        int64_t row = 0;
        while (memoi_sharding_next(sharding, sequence_rank, &row, &run))
            for (int64_t at = run.start; at < run.start + run.count; at++) {
                memoi_sharding_document(sharding, document_begins, n_documents, at, &document);
                /* Padding has no label, nor has a token whose label is in another document. */
                *labels = at < sharding->n_tokens && ahead >= document.begin - at &&
                                  ahead < document.end - at
                              ? tokens[at + ahead]
                              : ignored;
                n_labels += *labels++ != ignored;
            }
    }
    return n_labels;
}

/* ---- >>target -----------------------------------------------------------------------------------
 * Knows: a device, a recorder around it, the row kernels, groups of messages, and the law of waits.
 * Knows nothing of attention.
 *
 * Streams, events and memory of an engine.  The target keeps the first failure; after it nothing is
 * enqueued.
 *
 * 1. An event of an operation is one that the target has.
 * 2. An event that is waited for was recorded behind the operation that is meant.
 * 3. An operation touches cells that the target has. */

enum {
    MEMOI_TARGET_COMPUTE = 0,
    MEMOI_TARGET_COMM, /* of blocks */
    MEMOI_TARGET_RING = MEMOI_TARGET_COMM,
    MEMOI_TARGET_ULYSSES,
    MEMOI_TARGET_NODES,
    MEMOI_TARGET_N_STREAMS
};
typedef char memoi_target_streams_fit[(int)MEMOI_TARGET_N_STREAMS == (int)MEMOB_N_STREAMS ? 1 : -1];

/* What the streams of an engine were given, and the records of each stream's events. */
typedef struct memoi_target_order {
    memob_waits waits;
    memob_records records[MEMOI_TARGET_N_STREAMS];
} memoi_target_order;

typedef struct memoi_target {
    const memo_device* device;
    memo_stream streams[MEMOI_TARGET_N_STREAMS];
    memo_event* events;
    int32_t n_events;
    void *memory, *host_memory; /* owned; NULL: none, or the user's */
    memob_arrays arrays;
    const memo_label* agreed; /* its fields and digests go with each message */
    /* NULL: the engine has one stream, or makes its waits itself.  Otherwise waits follow from what
     * operations touch, and each stream has MEMOB_RECORDS events. */
    memoi_target_order* order;
    memob_cell* cells;
    int32_t n_cells;
    memo_status status;
    memo_error* error;
} memoi_target;

/* Memory that is taken piece by piece.  base NULL: pieces are only counted, and are NULL.  So run
 * the calls twice, to measure and to take. */
typedef struct memoi_carver {
    char* base;
    int64_t n_bytes; /* taken so far */
} memoi_carver;

MEMOI MEMOB_NOINLINE char* memoi_carve(memoi_carver* carver, int64_t n_bytes) {
    const int64_t at = carver->n_bytes;
    carver->n_bytes = memob_align_up(at + n_bytes, MEMOB_DEVICE_ALIGNMENT);
    return carver->base ? carver->base + at : NULL;
}

/* Waits for the streams, and frees all, except the first stream, which is the caller's. */
MEMOI void memoi_target_close(memoi_target* target) {
    const memo_device* device = target->device;
    for (int32_t i = 0; i < MEMOI_TARGET_N_STREAMS && device; i++)
        if (target->streams[i])
            MEMOB_IGNORE(memo_stream_synchronize(device, target->streams[i], NULL));
    for (int32_t i = 0; i < target->n_events && device; i++)
        if (target->events[i]) (void)memo_event_destroy(device, target->events[i], NULL);
    for (int32_t i = 1; i < MEMOI_TARGET_N_STREAMS && device; i++)
        if (target->streams[i]) (void)memo_stream_destroy(device, target->streams[i], NULL);
    if (target->memory) memo_device_free(device, target->memory, NULL);
    if (target->host_memory) memo_host_free(device, target->host_memory, NULL);
    memob_arrays_free(&target->arrays);
}

/* Create and destroy an object that has a target; what: in errors.  memoi_NAME_prepare fills the
 * object; after its failure the object is destroyed. */
#define MEMOI_TARGET_OBJECT(name, what)                                                            \
    void memo_##name##_destroy(memo_##name* object) {                                              \
        if (object) memoi_target_close(&object->target);                                           \
        MEMO_FREE(object);                                                                         \
    }                                                                                              \
    MEMOI_TARGET_CREATE(name, what)
#define MEMOI_TARGET_CREATE(name, what)                                                            \
    memo_status memo_##name##_create(const memo_##name##_desc* desc, memo_##name** result,         \
                                     memo_error* error) {                                          \
        MEMOB_REFUSE_NULL(error, #name, result);                                                   \
        *result = NULL;                                                                            \
        MEMOB_REFUSE_NULL(error, "desc", desc);                                                    \
        memo_##name* object = (memo_##name*)memob_calloc(1, sizeof *object);                       \
        const memo_status status =                                                                 \
            object ? memoi_##name##_prepare(object, desc, error) : memob_no_memory(error, what);   \
        if (status) memo_##name##_destroy(object);                                                 \
        *result = status ? NULL : object;                                                          \
        return status;                                                                             \
    }

/* Does a recorder listen? */
MEMOI int memoi_target_is_heard(const memoi_target* target) {
    return !target->status && MEMO_DEVICE_HAS(target->device, annotate);
}

/* Announces an operation that the table has no function for, which the caller enqueues next;
 * sent_bytes: to other ranks. */
MEMOI void memoi_target_announce(memoi_target* target, int stream, const char* name,
                                 const memo_range* reads, int64_t n_reads, const memo_range* writes,
                                 int64_t n_writes, int64_t sent_bytes) {
    const memo_op_desc op = {name, 0, 0, sent_bytes, reads, n_reads, writes, n_writes};
    if (memoi_target_is_heard(target))
        target->status = memo_annotate(target->device, target->streams[stream], &op, target->error);
}

MEMOI MEMOB_NOINLINE void memoi_target_record(memoi_target* target, int32_t event, int stream) {
    MEMO_ASSERT(event >= 0 && event < target->n_events && target->events[event]); /* 1 */
    if (!target->status)
        target->status = memo_event_record(target->device, target->events[event],
                                           target->streams[stream], target->error);
}

MEMOI MEMOB_NOINLINE void memoi_target_wait(memoi_target* target, int32_t event, int stream) {
    MEMO_ASSERT(event >= 0 && event < target->n_events && target->streams[stream]); /* 1 */
    if (!target->status)
        target->status = memo_event_wait(target->device, target->events[event],
                                         target->streams[stream], target->error);
}

/* --- operations that wait by what they touch --- */

/* The streams that are used exist. */
MEMOI memo_status memoi_target_order_make(memoi_target* target, int32_t n_cells,
                                          memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    target->order = MEMOB_ARRAY(&target->arrays, memoi_target_order, 1);
    target->cells = MEMOB_ARRAY(&target->arrays, memob_cell, n_cells);
    target->events =
        MEMOB_ARRAY(&target->arrays, memo_event, MEMOI_TARGET_N_STREAMS * MEMOB_RECORDS);
    if (target->arrays.failed) return memob_no_memory(error, "the waits of an engine");
    target->n_cells = n_cells;
    target->n_events = MEMOI_TARGET_N_STREAMS * MEMOB_RECORDS;
    for (int32_t i = 0; i < target->n_events && !status; i++)
        if (target->streams[i / MEMOB_RECORDS])
            status = memo_event_create_untimed(target->device, &target->events[i], error);
    return status;
}

/* What a stream is given between begin and end.  Its touches are listed before begin. */
typedef struct memoi_target_op {
    int32_t stream, n_touches;
    int32_t touches[8]; /* as in memob_cells_need */
    memob_numbers need;
} memoi_target_op;

MEMOI memoi_target_op memoi_target_op_on(int32_t stream) {
    memoi_target_op op = MEMO_ZERO(memoi_target_op);
    op.stream = stream;
    return op;
}

MEMOI void memoi_target_touch(const memoi_target* target, memoi_target_op* op, int32_t cell,
                              int is_written) {
    const int32_t touch = 2 * cell + (is_written != 0);
    if (!target->order) return;
    MEMO_ASSERT(cell >= 0 && cell < target->n_cells); /* 3 */
    memob_cells_need(target->cells, &touch, 1, &op->need);
    op->touches[op->n_touches++] = touch;
}

/* Bytes of a cell lie where the operation writes another. */
MEMOI void memoi_target_follow(const memoi_target* target, memoi_target_op* op, int32_t cell) {
    if (target->order) memob_numbers_raise(&op->need, &target->cells[cell].used);
}

/* Behind operation `number`, the stream's latest. */
MEMOI int32_t memoi_target_record_behind(memoi_target* target, int32_t stream, int64_t number) {
    memob_records* records = &target->order->records[stream];
    const int32_t event = memob_records_add(records, number);
    memoi_target_record(target, stream * MEMOB_RECORDS + event, stream);
    if (target->status) records->numbers[event] = 0;
    return event;
}

/* The compute stream has many operations, and others wait for few, so it is recorded when one of
 * them does.  The record is an operation itself: it is behind what the stream has waited for since
 * its latest one. */
MEMOI void memoi_target_begin(memoi_target* target, memoi_target_op* op) {
    memoi_target_order* order = target->order;
    if (!order || target->status || !memob_waits_reduce(&order->waits, op->stream, &op->need))
        return;
    for (int32_t s = 0; s < MEMOI_TARGET_N_STREAMS && !target->status; s++) {
        int32_t event;
        if (op->need.of[s] <= order->waits.now[op->stream].of[s]) continue;
        event = memob_records_find(&order->records[s], op->need.of[s]);
        if (event < 0)
            event = memoi_target_record_behind(target, s, memob_waits_end(&order->waits, s));
        MEMO_ASSERT(target->status || order->records[s].numbers[event] >= op->need.of[s]); /* 2 */
        memoi_target_wait(target, s * MEMOB_RECORDS + event, op->stream);
        if (!target->status)
            memob_waits_raise(&order->waits, op->stream, s, order->records[s].numbers[event]);
    }
}

MEMOI void memoi_target_end(memoi_target* target, const memoi_target_op* op) {
    int64_t number;
    if (!target->order) return;
    number = memob_waits_end(&target->order->waits, op->stream);
    memob_cells_mark(target->cells, op->touches, op->n_touches, op->stream, number);
    if (op->stream && !target->status) (void)memoi_target_record_behind(target, op->stream, number);
}

/* The caller's work, before a pass or after it, may touch everything: of cells the first n. */
MEMOI void memoi_target_fence(memoi_target* target, int32_t n_cells) {
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    memob_cell all = MEMO_ZERO(memob_cell);
    if (!target->order) return;
    for (int32_t s = 0; s < MEMOI_TARGET_N_STREAMS; s++)
        op.need.of[s] = target->order->waits.now[s].of[s];
    memoi_target_begin(target, &op);
    if (target->status) return; /* what was not waited for stays known */
    all.used.of[MEMOI_TARGET_COMPUTE] = all.wrote.of[MEMOI_TARGET_COMPUTE] =
        memob_waits_end(&target->order->waits, MEMOI_TARGET_COMPUTE);
    for (int32_t i = 0; i < n_cells; i++) target->cells[i] = all;
}

MEMOI void memoi_target_fill(memoi_target* target, int stream, void* address, int64_t n_bytes) {
    if (n_bytes && !target->status)
        target->status =
            memo_fill(target->device, target->streams[stream], address, 0, n_bytes, target->error);
}

MEMOI void memoi_target_copy_rows(memoi_target* target, int stream, void* to,
                                  int64_t to_stride_bytes, const void* from,
                                  int64_t from_stride_bytes, int64_t row_bytes, int64_t n_rows) {
    if (n_rows && row_bytes && !target->status)
        target->status = memo_copy_rows(target->device, target->streams[stream],
                                        MEMO_COPY_ON_DEVICE, to, to_stride_bytes, from,
                                        from_stride_bytes, row_bytes, n_rows, target->error);
}

/* --- messages --- */

/* Announces and opens a group of messages, "label number" or with number -1 "label".  The label
 * holds until the group ends. */
MEMOI void memoi_target_group_begin(memoi_target* target, int stream, memo_comm* comm,
                                    const char* label, int32_t number, const memo_range* reads,
                                    int64_t n_reads, const memo_range* writes, int64_t n_writes,
                                    int64_t sent_bytes) {
    char name[48];
    if (memoi_target_is_heard(target))
        snprintf(name, sizeof name, number < 0 ? "%.32s" : "%.32s %d", label, (int)number);
    memoi_target_announce(target, stream, name, reads, n_reads, writes, n_writes, sent_bytes);
    if (target->status) return; /* nothing would end the label */
    memoi_comm_label(comm, target->agreed, 0, label, memob_max(number, 0));
    target->status = memo_group_begin(comm, target->error);
}

MEMOI void memoi_target_message(memoi_target* target, int stream, memo_comm* comm, int is_send,
                                const void* address, int64_t count, memo_type type, int32_t peer) {
    if (count && !target->status)
        target->status = memoi_comm_message(comm, target->streams[stream], is_send, address, count,
                                            type, peer, target->error);
}

MEMOI void memoi_target_group_end(memoi_target* target, int stream, memo_comm* comm) {
    if (!target->status)
        target->status = memo_group_end(comm, target->streams[stream], target->error);
}

/* --- row kernels --- */

MEMOI void memoi_target_kernel(memoi_target* target, int stream, memo_row_kind kind,
                               const void* desc) {
    if (!target->status)
        target->status =
            memo_row_kernel(target->device, target->streams[stream], kind, desc, target->error);
}

/* to += from, in rows of n elements. */
MEMOI void memoi_target_add(memoi_target* target, int stream, memo_type type, void* to,
                            int64_t to_stride, const void* from, int64_t from_stride, int64_t n,
                            int64_t n_rows) {
    const memo_add_desc add = {to,     to, from,      type,      type,       type,
                               n_rows, n,  to_stride, to_stride, from_stride};
    if (n && n_rows) memoi_target_kernel(target, stream, MEMO_ROW_ADD, &add);
}

/* to (type) = from, n elements. */
MEMOI void memoi_target_cast(memoi_target* target, int stream, void* to, memo_type type,
                             const float* from, int64_t n) {
    const memo_add_desc cast = {to, from, NULL, type, MEMO_TYPE_F32, type, 1, n, 0, 0, 0};
    if (n) memoi_target_kernel(target, stream, MEMO_ROW_CAST, &cast);
}

/* ---- >>masks ------------------------------------------------------------------------------------
 * Knows: what masks of documents and of intervals let queries see, by positions.  Knows nothing of
 * ranks, rows or devices. */

/* --- documents --- */

/* An end of the keys: `offset` positions behind the query's own, or without a limit. */
typedef struct memoi_mask_limit {
    int is_set;
    int64_t offset;
} memoi_mask_limit;

/* Adds queries at own positions [own, last_own), counted like keys; number q - own is theirs.  Each
 * sees the keys of [first, last) that the limits leave. */
MEMOI void memoi_mask_add_limited(memoi_segment_list* x, int64_t q, int64_t own, int64_t last_own,
                                  int64_t first, int64_t last, memoi_mask_limit from,
                                  memoi_mask_limit to) {
    while (own < last_own && first < last) {
        const int64_t low = from.is_set ? own + from.offset : first;
        const int64_t high = to.is_set ? own + to.offset : last;
        const int64_t begin = memob_max(low, first), end = memob_min(high, last);
        const int moves_begin = from.is_set && low >= first, moves_end = to.is_set && high < last;
        int64_t n = last_own - own;
        if (low < first) n = memob_min(n, first - low);
        if (moves_end) n = memob_min(n, last - high);
        if (moves_begin && !moves_end && begin < end) n = memob_min(n, end - begin);
        if (begin >= end && high <= first) n = memob_min(n, first - high + 1);
        if (begin < end) memoi_segments_add_rows(x, q, n, begin, end, moves_begin, moves_end);
        q += n;
        own += n;
    }
}

/* The queries of a mask within their documents; in level 1, the first keys of their document that
 * the window has left. */
MEMOI void memoi_mask_add_documents(memoi_segment_list* x, const memo_mask_desc* mask) {
    const int64_t before = memob_min(mask->window_before, MEMOB_BYTES_MAX);
    const int64_t after =
        mask->kind == MEMO_MASK_CAUSAL ? 1 : memob_min(mask->window_after, MEMOB_BYTES_MAX);
    const int64_t first_own = mask->first_query, end_own = first_own + mask->n_tokens;
    const int64_t n_keys = mask->n_keys ? mask->n_keys : memob_max(end_own, 0);
    const memoi_mask_limit none = {0, 0}, from = {before > 0, 1 - before};
    const memoi_mask_limit to = {after > 0, after}, left = {1, 1 - before};
    for (int64_t d = 0; d < (mask->document_begins ? mask->n_documents : 1); d++) {
        const int64_t* document = mask->document_begins ? mask->document_begins + d : NULL;
        const int64_t own = document ? memob_max(document[0], first_own) : first_own;
        const int64_t last_own = document ? memob_min(document[1], end_own) : end_own;
        const int64_t first = document ? document[0] : 0, last = document ? document[1] : n_keys;
        if (x->open.level)
            memoi_mask_add_limited(x, own - first_own, own, last_own, first,
                                   memob_min(first + mask->n_first_keys, last), none, left);
        else
            memoi_mask_add_limited(x, own - first_own, own, last_own, first, last, from, to);
    }
}

/* The number of ancestors of a document. */
MEMOI int32_t memoi_mask_depth(const int64_t* parents, int64_t document) {
    int32_t depth = 0;
    while ((document = parents[document]) >= 0) depth++;
    return depth;
}

/* The queries of all documents that have an ancestor at a depth.  Neither end of their keys
 * descends, since documents are in preorder. */
MEMOI void memoi_mask_add_ancestors(memoi_segment_list* x, const memo_mask_desc* mask,
                                    int32_t depth) {
    const int64_t *begins = mask->document_begins, *parents = mask->document_parents;
    for (int64_t i = 0; i < mask->n_documents; i++) {
        int64_t ancestor = i;
        int32_t n = memoi_mask_depth(parents, i);
        if (n <= depth) continue;
        for (; n > depth; n--) ancestor = parents[ancestor];
        if (begins[ancestor] < begins[ancestor + 1])
            memoi_segments_add_rows(x, begins[i], begins[i + 1] - begins[i], begins[ancestor],
                                    begins[ancestor + 1], 0, 0);
    }
}

/* The segments of a checked desc, level by level.  Returns their number. */
MEMOI int64_t memoi_mask_fill(const memo_mask_desc* mask, memo_segment* segments) {
    memoi_segment_list x = MEMO_ZERO(memoi_segment_list);
    int32_t n_levels = mask->n_first_keys && mask->window_before ? 2 : 1;
    for (int64_t i = 0; i < mask->n_documents && mask->document_parents; i++)
        n_levels = (int32_t)memob_max(n_levels, memoi_mask_depth(mask->document_parents, i) + 1);
    x.list = segments;
    for (int32_t level = 0; level < n_levels; level++) {
        memoi_segments_begin(&x, level);
        if (level && mask->document_parents)
            memoi_mask_add_ancestors(&x, mask, level - 1);
        else
            memoi_mask_add_documents(&x, mask);
        memoi_segments_close(&x);
    }
    return x.n;
}

MEMOI memo_status memoi_mask_check_desc(const memo_mask_desc* mask, memo_error* error) {
    static const char name[] = "memo_mask_desc";
    const char* also = NULL;
    int64_t n_keys;
    if (MEMOI_INTEGER(name, mask, kind, 0, MEMO_N_MASK_KINDS - 1) ||
        MEMOI_INTEGER(name, mask, window_before, 0, INT64_MAX) ||
        MEMOI_INTEGER(name, mask, window_after, 0, INT64_MAX) ||
        MEMOI_INTEGER(name, mask, n_first_keys, 0, MEMOB_BYTES_MAX / 4) ||
        MEMOI_INTEGER(name, mask, n_tokens, 0, MEMOB_BYTES_MAX / 4) ||
        MEMOI_INTEGER(name, mask, n_keys, 0, MEMOB_BYTES_MAX / 4) ||
        MEMOI_INTEGER(name, mask, first_query, -MEMOB_BYTES_MAX / 4, MEMOB_BYTES_MAX / 4))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (mask->n_first_keys && mask->kind != MEMO_MASK_CAUSAL)
        return MEMOI_REFUSE("%s.n_first_keys: not 0 (%lld) beside MEMO_MASK_FULL; 0, or a causal "
                            "mask, is valid",
                            name, (long long)mask->n_first_keys);

    /* Documents of keys, and their parents. */
    n_keys = mask->n_keys ? mask->n_keys : memob_max(mask->first_query + mask->n_tokens, 0);
    if (mask->document_begins &&
        memoi_sharding_check_documents("memo_mask_desc.document_begins", mask->document_begins,
                                       mask->n_documents, n_keys, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (!mask->document_parents) return MEMO_STATUS_OK;

    if (mask->first_query) also = "beside first_query";
    if (mask->window_before || mask->window_after) also = "beside a window";
    if (!mask->document_begins) also = "without documents";
    if (mask->n_tokens != n_keys) also = "beside keys of another number";
    if (also)
        return MEMOI_REFUSE("%s.document_parents: not NULL %s; pass NULL, or document_begins and "
                            "parents alone",
                            name, also);
    return memoi_sharding_check_parents("memo_mask_desc.document_parents", mask->document_parents,
                                        mask->n_documents, error);
}

memo_status memo_mask_documents(const memo_mask_desc* desc, memo_segment* segments,
                                int64_t* n_segments, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "n_segments", n_segments);
    *n_segments = 0;
    if (memoi_mask_check_desc(desc, error)) return MEMO_STATUS_INVALID_ARGUMENT;
    *n_segments = memoi_mask_fill(desc, segments);
    return MEMO_STATUS_OK;
}

/* --- intervals and cross-attention --- */

memo_status memo_mask_intervals(const int64_t* first, const int64_t* end, int64_t n_tokens,
                                int64_t n_keys, memo_segment* segments, int64_t* n_segments,
                                memo_error* error) {
    MEMOB_REFUSE_NULL(error, "n_segments", n_segments);
    MEMOB_REFUSE_NULL(error, "key_first", first);
    MEMOB_REFUSE_NULL(error, "key_end", end);
    memoi_segment_list x = MEMO_ZERO(memoi_segment_list);
    x.list = segments;
    *n_segments = 0;
    for (int64_t i = 0; i < n_tokens; i++) {
        if (first[i] < (i ? first[i - 1] : 0) || end[i] < (i ? end[i - 1] : 0) ||
            first[i] > end[i] || end[i] > n_keys)
            return MEMOI_REFUSE("memo_mask_intervals.key_first, key_end [%lld]: invalid (%lld, "
                                "%lld); ends that do not descend, first <= end, are valid from 0 "
                                "to %lld",
                                (long long)i, (long long)first[i], (long long)end[i],
                                (long long)n_keys);
        if (first[i] < end[i]) memoi_segments_add(&x, i, first[i], end[i]);
    }
    memoi_segments_close(&x);
    *n_segments = x.n;
    return MEMO_STATUS_OK;
}

memo_status memo_mask_cross(const int64_t* query_begins, const int64_t* key_begins,
                            int64_t n_documents, memo_segment* segments, int64_t* n_segments,
                            memo_error* error) {
    MEMOB_REFUSE_NULL(error, "n_segments", n_segments);
    memoi_segment_list x = MEMO_ZERO(memoi_segment_list);
    x.list = segments;
    *n_segments = 0;
    if (memoi_sharding_check_documents("memo_mask_cross.query_begins", query_begins, n_documents,
                                       -1, error) ||
        memoi_sharding_check_documents("memo_mask_cross.key_begins", key_begins, n_documents, -1,
                                       error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    for (int64_t i = 0; i < n_documents; i++)
        if (key_begins[i] < key_begins[i + 1])
            memoi_segments_add_rows(&x, query_begins[i], query_begins[i + 1] - query_begins[i],
                                    key_begins[i], key_begins[i + 1], 0, 0);
    memoi_segments_close(&x);
    *n_segments = x.n;
    return MEMO_STATUS_OK;
}

/* --- lists of the caller --- */

/* Leaves of the queries [*from, *to] those where a value is above 0 that is `value` at query q, and
 * changes by `slope` from a query to the next. */
MEMOI void memoi_mask_narrow(int64_t value, int slope, int64_t q, int64_t* from, int64_t* to) {
    if (slope > 0) *from = memob_max(*from, q + 1 - value);
    if (slope < 0) *to = memob_min(*to, q + value - 1);
    if (!slope && value <= 0) *to = *from - 1;
}

/* Do two segments have the same pair? */
MEMOI int memoi_mask_overlaps(const memo_segment* a, const memo_segment* b) {
    int64_t from = memob_max(a->q_begin, b->q_begin), to = memob_min(a->q_end, b->q_end) - 1;
    const int64_t q = from;
    int64_t a_begin, a_end, b_begin, b_end;
    if (from > to) return 0;
    memo_segment_keys(a, q, &a_begin, &a_end);
    memo_segment_keys(b, q, &b_begin, &b_end);
    memoi_mask_narrow(a_end - b_begin, memoi_segment_moves_end(a) - memoi_segment_moves_begin(b), q,
                      &from, &to);
    memoi_mask_narrow(b_end - a_begin, memoi_segment_moves_end(b) - memoi_segment_moves_begin(a), q,
                      &from, &to);
    return from <= to;
}

/* Segments [begins[level], begins[level + 1]) of each level. */
MEMOI memo_status memoi_mask_check_levels(const memo_mask* mask, const int64_t* begins,
                                          int32_t n_levels, memo_error* error) {
    const memo_segment* list = mask->segments;
    for (int32_t k = 0; k < n_levels; k++)
        for (int32_t m = k + 1; m < n_levels; m++) {
            int64_t i = begins[k], j = begins[m];
            while (i < begins[k + 1] && j < begins[m + 1]) {
                if (memoi_mask_overlaps(&list[i], &list[j]))
                    return MEMOI_REFUSE("memo_mask.segments[%lld], [%lld]: levels %d and %d have "
                                        "the same pair; a query sees a key once",
                                        (long long)i, (long long)j, (int)k, (int)m);
                if (list[i].q_end < list[j].q_end)
                    i++;
                else
                    j++;
            }
        }
    return MEMO_STATUS_OK;
}

/* Checks a list, and sets where its levels begin: (MEMO_LEVELS_MAX + 1). */
MEMOI memo_status memoi_mask_check(const memo_mask* mask, int64_t n_tokens, int64_t n_keys,
                                   int64_t* begins, int32_t* n_levels, memo_error* error) {
    int64_t low = 0, high = 0, q = 0, i;
    *n_levels = 0;
    if (mask->n_segments < 0 || (mask->n_segments && !mask->segments))
        return MEMOI_REFUSE("memo_mask.segments: %s (%lld segments); as many as n_segments are "
                            "valid",
                            mask->segments ? "fewer than none" : "NULL",
                            (long long)mask->n_segments);

    for (i = 0; i < mask->n_segments; i++) {
        const memo_segment* s = &mask->segments[i];
        const int64_t n_q = s->q_end - s->q_begin, n_k = s->k_end - s->k_begin;
        const char* wrong = NULL;
        int64_t begin, end;
        if (s->level >= *n_levels && s->level < MEMO_LEVELS_MAX) {
            while (*n_levels <= s->level) begins[(*n_levels)++] = i;
            low = high = q = 0;
        }
        if (s->level != *n_levels - 1)
            wrong = "its level; levels from 0 to MEMO_LEVELS_MAX - 1 that ascend are valid";
        else if ((uint32_t)s->type >= MEMO_N_SEGMENT_TYPES)
            wrong = "its type; those of memo_segment_type are valid";
        else if (s->q_begin < q || s->q_end > n_tokens || n_q < 1)
            wrong = "its queries; ranges that ascend up to n_tokens are valid";
        else if (s->k_begin < 0 || s->k_end > n_keys || n_k < 1)
            wrong = "its keys; ranges up to the number of keys are valid";
        else if (s->type != MEMO_SEGMENT_FULL && n_k < n_q)
            wrong = "fewer keys than queries; FULL segments may have these";

        /* The keys of the first query, after those of the last one before it. */
        if (!wrong) {
            memo_segment_keys(s, s->q_begin, &begin, &end);
            if (begin < low || end < high)
                wrong = "keys that descend from a query to the next; use another level";
            memo_segment_keys(s, s->q_end - 1, &low, &high);
            q = s->q_end;
        }
        if (wrong)
            return MEMOI_REFUSE("memo_mask.segments[%lld]: {%lld, %lld, %lld, %lld, %d, %d}: %s",
                                (long long)i, (long long)s->q_begin, (long long)s->q_end,
                                (long long)s->k_begin, (long long)s->k_end, (int)s->type,
                                (int)s->level, wrong);
    }
    begins[*n_levels] = i;
    return memoi_mask_check_levels(mask, begins, *n_levels, error);
}

/* ---- >>launches ---------------------------------------------------------------------------------
 * Knows: the segments of a block, and what a call of a fused kernel can compute.  Knows nothing of
 * positions, ranks or devices.
 *
 * 1. No two sequences of a launch share queries or keys, and both ascend.
 * 2. Every sequence that has a segment is in one launch. */

/* Rows with one pair of limits. */
typedef struct memoi_sequence {
    int64_t q_begin, q_end, k_begin, k_end;
    int32_t left, right, from_top;
    int32_t launch, first_segment, n_segments;
} memoi_sequence;

/* The launches of a block; arrays of as many as it has segments. */
typedef struct memoi_launches {
    memoi_sequence* sequences;
    memo_launch* launches;
    memo_segment* segments;   /* in the order of launches */
    int64_t *q_ends, *k_ends; /* of launches */
    int32_t n_sequences, n;
} memoi_launches;

MEMOI memoi_sequence memoi_sequence_of(const memo_segment* s, memo_launch_kind kind) {
    const int64_t n_more = s->k_end - s->k_begin - (s->q_end - s->q_begin);
    memoi_sequence x = {s->q_begin, s->q_end, s->k_begin, s->k_end, -1, -1, 0, 0, 0, 1};
    MEMO_ASSERT(s->type == MEMO_SEGMENT_FULL || n_more >= 0); /* the first query sees a key */
    if (memoi_segment_moves_end(s)) x.right = 0;
    if (memoi_segment_moves_begin(s)) x.left = (int32_t)n_more;
    if (s->type == MEMO_SEGMENT_INVERSE && kind == MEMO_LAUNCHES_RAGGED) {
        x.left = 0;
        x.from_top = 1;
    }
    return x;
}

/* Do two sequences, one behind the other, make one with the limits of the second?  CAUSAL and BAND
 * do: a window.  FULL and INVERSE do, too, where queries move on over the same last key. */
MEMOI int memoi_sequence_joins(const memoi_sequence* first, const memoi_sequence* second) {
    const int64_t n_later = second->right ? 0 : second->q_end - second->q_begin;
    return first->left < 0 && second->left >= 0 && !second->from_top &&
           first->right == second->right && first->q_end == second->q_begin &&
           first->k_begin + 1 == second->k_begin && first->k_end == second->k_end - n_later;
}

MEMOI void memoi_launches_make_sequences(memoi_launches* x, const memo_segment* segments, int64_t n,
                                         memo_launch_kind kind) {
    x->n_sequences = 0;
    for (int64_t i = 0; i < n; i++) {
        memoi_sequence next = memoi_sequence_of(&segments[i], kind);
        memoi_sequence* last = x->sequences + x->n_sequences - 1;
        if (x->n_sequences && memoi_sequence_joins(last, &next)) {
            last->q_end = next.q_end;
            last->k_end = next.k_end;
            last->left = next.left;
            last->n_segments++;
        } else {
            next.first_segment = (int32_t)i;
            x->sequences[x->n_sequences++] = next;
        }
    }
}

/* May a sequence have the limits of a launch?  Those that cut nothing are free. */
MEMOI int memoi_sequence_fits(const memoi_sequence* s, const memo_launch* launch) {
    const int64_t n_q = s->q_end - s->q_begin, n_k = s->k_end - s->k_begin;
    int is_left = s->left == launch->left && s->from_top == launch->from_top;
    int is_right = s->right == launch->right;
    if (!is_left && s->left < 0 && !launch->from_top)
        is_left = launch->left < 0 || launch->left >= n_k - 1; /* the last query sees all keys */
    if (!is_right && s->right < 0) is_right = n_q == 1 && !launch->from_top;
    return is_left && is_right;
}

/* Puts each sequence into the first launch that ends before it.  New launches are causal with the
 * widest window, if their first sequence fits, since shorter documents and single rows then do. */
MEMOI void memoi_launches_make(memoi_launches* x, const memo_segment* segments, int64_t n,
                               memo_launch_kind kind) {
    memo_launch widest = MEMO_ZERO(memo_launch);
    int has_causal = 0;
    widest.left = -1;
    memoi_launches_make_sequences(x, segments, n, kind);
    for (int32_t i = 0; i < x->n_sequences; i++) {
        if (x->sequences[i].right || x->sequences[i].from_top) continue;
        has_causal = 1;
        widest.left = (int32_t)memob_max(widest.left, x->sequences[i].left);
    }

    x->n = 0;
    for (int32_t i = 0; i < x->n_sequences; i++) {
        memoi_sequence* s = &x->sequences[i];
        memo_launch* l = x->launches;
        int32_t k = 0;
        while (k < x->n && (x->q_ends[k] > s->q_begin || x->k_ends[k] > s->k_begin ||
                            !memoi_sequence_fits(s, &l[k])))
            k++;
        if (k == x->n) {
            l[x->n] = widest;
            x->q_ends[k] = x->k_ends[k] = 0;
            if (!has_causal || !memoi_sequence_fits(s, &widest)) {
                l[k].left = s->left;
                l[k].right = s->right;
                l[k].from_top = s->from_top;
            }
            x->n++;
        }
        s->launch = k;
        if (l[k].n++) l[k].has_gaps |= x->q_ends[k] < s->q_begin || x->k_ends[k] < s->k_begin;
        MEMO_ASSERT(s->q_begin >= x->q_ends[k] && s->k_begin >= x->k_ends[k]); /* 1 */
        l[k].max_q = (int32_t)memob_max(l[k].max_q, s->q_end - s->q_begin);
        l[k].max_k = (int32_t)memob_max(l[k].max_k, s->k_end - s->k_begin);
        x->q_ends[k] = s->q_end;
        x->k_ends[k] = s->k_end;
    }

    /* The segments of each. */
    for (int32_t k = 0, at = 0; k < x->n; at += x->launches[k++].n_segments) {
        x->launches[k].segments = x->segments + at;
        for (int32_t i = 0; i < x->n_sequences; i++) {
            const memoi_sequence* s = &x->sequences[i];
            if (s->launch != k) continue;
            memcpy(x->segments + at + x->launches[k].n_segments, segments + s->first_segment,
                   (size_t)s->n_segments * sizeof *segments);
            x->launches[k].n_segments += s->n_segments;
        }
    }
}

/* Numbers of the arrays of all launches. */
MEMOI int64_t memoi_launches_count(const memoi_launches* x) {
    return 4 * (int64_t)x->n_sequences + 2 * (int64_t)x->n;
}

/* Writes the arrays to `words`; launches then point to the same numbers behind `address`. */
MEMOI void memoi_launches_write(memoi_launches* x, int32_t* words, const int32_t* address) {
    const int32_t* begin = words;
    for (int32_t k = 0; k < x->n; k++) {
        memo_launch* l = &x->launches[k];
        int32_t *q_begins = words, *q_counts = q_begins + l->n + 1, *k_begins = q_counts + l->n;
        int32_t *k_counts = k_begins + l->n + 1, n = 0;
        for (int32_t i = 0; i < x->n_sequences; i++) {
            const memoi_sequence* s = &x->sequences[i];
            if (s->launch != k) continue;
            q_begins[n] = (int32_t)s->q_begin;
            k_begins[n] = (int32_t)s->k_begin;
            q_counts[n] = (int32_t)(s->q_end - s->q_begin);
            k_counts[n] = (int32_t)(s->k_end - s->k_begin);
            n++;
        }
        MEMO_ASSERT(n == l->n && n); /* 2 */
        q_begins[n] = (int32_t)x->q_ends[k];
        k_begins[n] = (int32_t)x->k_ends[k];
        l->q_begins = address + (q_begins - begin);
        l->q_counts = address + (q_counts - begin);
        l->k_begins = address + (k_begins - begin);
        l->k_counts = address + (k_counts - begin);
        words = k_counts + n;
    }
}

/* --- blocks --- */

/* The segments of a block, without device arrays, and launches that are to be written. */
typedef struct memoi_block_segments {
    memo_segments segments;
    memoi_launches launches;
    int64_t n_rows;    /* queries that see a key */
    int64_t first_row; /* that sees none, if all earlier ones do */
} memoi_block_segments;

MEMOI void memoi_block_segments_make(const memo_segment* seen, int64_t n_seen, const memo_run* q,
                                     int32_t n_q, const memo_run* k, int32_t n_k,
                                     memo_launch_kind kind, memob_arrays* arrays,
                                     memoi_block_segments* b) {
    const int64_t n = memoi_segments_derive(seen, n_seen, q, n_q, k, n_k, NULL);
    memo_segment* list = MEMOB_ARRAY(arrays, memo_segment, n);
    memset(b, 0, sizeof *b);
    if (arrays->failed || n > INT32_MAX / 8) arrays->failed = 1;
    if (arrays->failed) return;
    (void)memoi_segments_derive(seen, n_seen, q, n_q, k, n_k, list);
    b->segments.n = (int32_t)n;
    b->segments.host = list;
    for (int64_t i = 0; i < n; i++) {
        b->n_rows += list[i].q_end - list[i].q_begin;
        if (list[i].q_begin == b->first_row) b->first_row = list[i].q_end;
    }
    if (kind != MEMO_LAUNCHES_VARLEN && kind != MEMO_LAUNCHES_RAGGED) return;

    b->launches.sequences = MEMOB_ARRAY(arrays, memoi_sequence, n);
    b->launches.launches = MEMOB_ARRAY(arrays, memo_launch, n);
    b->launches.segments = MEMOB_ARRAY(arrays, memo_segment, n);
    b->launches.q_ends = MEMOB_ARRAY(arrays, int64_t, n);
    b->launches.k_ends = MEMOB_ARRAY(arrays, int64_t, n);
    if (arrays->failed) return;
    memoi_launches_make(&b->launches, list, n, kind);
    b->segments.n_launches = b->launches.n;
    b->segments.launches = b->launches.launches;
}

/* Most bytes of device arrays for a segment, which is a launch of its own. */
enum { MEMOI_SEGMENT_BYTES = 4 * (5 + 4 + 2) };

/* Numbers of the device arrays of a block. */
MEMOI int64_t memoi_block_segments_count(const memoi_block_segments* b) {
    return 5 * (int64_t)b->segments.n + memoi_launches_count(&b->launches);
}

/* Writes the device arrays to `words`; the segments then point to the same numbers behind
 * `address`.  Returns the words behind them. */
MEMOI int32_t* memoi_block_segments_write(memoi_block_segments* b, int32_t* words,
                                          const int32_t* address) {
    const int32_t n = b->segments.n;
    int32_t *k_ranges = words + 2 * n, *types = k_ranges + 2 * n;
    for (int32_t i = 0; i < n; i++) {
        const memo_segment* s = &b->segments.host[i];
        words[2 * i] = (int32_t)s->q_begin;
        words[2 * i + 1] = (int32_t)s->q_end;
        k_ranges[2 * i] = (int32_t)s->k_begin;
        k_ranges[2 * i + 1] = (int32_t)s->k_end;
        types[i] = (int32_t)s->type;
    }
    b->segments.q_ranges = address;
    b->segments.k_ranges = address + 2 * n;
    b->segments.types = address + 4 * n;
    memoi_launches_write(&b->launches, types + n, address + 5 * n);
    return words + memoi_block_segments_count(b);
}

/* ---- >>attention shape --------------------------------------------------------------------------
 * Knows: tokens, heads and masks of an attention on one rank.  Knows nothing of how it is
 * computed.
 *
 * 1. Runs are those of a rank of the ring. */

/* n_q_heads must be a multiple of n_kv_heads; nothing else needs to divide. */
MEMOI memo_ulysses_heads memoi_shape_split_heads(int32_t n_q_heads, int32_t n_kv_heads,
                                                 int32_t ulysses, int32_t ulysses_rank) {
    memo_ulysses_heads heads;
    int32_t group = n_q_heads / n_kv_heads, end;
    heads.first_q = (int32_t)((int64_t)ulysses_rank * n_q_heads / ulysses);
    end = (int32_t)(((int64_t)ulysses_rank + 1) * n_q_heads / ulysses);
    heads.n_q = end - heads.first_q;
    heads.first_kv = heads.first_q / group;
    heads.n_kv = heads.n_q ? (end - 1) / group - heads.first_kv + 1 : 0;
    return heads;
}

/* A sharding, and the runs of all ring ranks under it. */
typedef struct memoi_shape_tokens {
    memo_sharding sharding;
    memo_run* runs;   /* (ring, max_runs) */
    int32_t* n_runs;  /* (ring) */
    int64_t max_runs; /* of a rank */
} memoi_shape_tokens;

/* An attention on one rank.  Its documents come with each exchange. */
typedef struct memoi_shape {
    memo_sharding sharding, key_sharding; /* the desc's; an exchange may have other documents */
    int32_t has_key_sharding;             /* cross-attention */
    int32_t ring_rank, ulysses_rank;
    int32_t n_nodes; /* of the ring; consecutive ring ranks share a node */
    int32_t n_batch, n_q_heads, head_size, v_head_size;
    int32_t n_kv_heads, kv_size[2]; /* of keys, of values: as they travel */
    int32_t n_read_heads;           /* of keys, as attention reads them */
    memo_latent latent;
    memo_type type;
    float scale, softcap;
    int32_t sends_again;
    memo_type carried_type; /* of d_k and d_v in the ring: F32, or type */
    int32_t n_groups;       /* of the heads of each rank */
    int32_t group;          /* the one that heads are of, but in the whole shape */
    memo_ulysses_heads heads;
    int32_t is_replicated; /* several ranks, or groups, need the same key head */
    int32_t has_levels;    /* masks may have several */
    int32_t n_parts;       /* of the batch: 1, or n_batch if sequences have masks */
    /* (2) of an exchange: of queries; of cross-attention's keys. */
    const memoi_shape_tokens* tokens;
} memoi_shape;

MEMOI const memo_sharding* memoi_shape_sharding(const memoi_shape* shape, int is_kv) {
    return is_kv ? &shape->key_sharding : &shape->sharding;
}

MEMOI const memoi_shape_tokens* memoi_shape_tokens_of(const memoi_shape* shape, int is_kv) {
    return &shape->tokens[is_kv && shape->has_key_sharding];
}

MEMOI const memo_run* memoi_shape_runs(const memoi_shape* shape, int is_kv, int32_t ring_rank,
                                       int32_t* n) {
    const memoi_shape_tokens* tokens = memoi_shape_tokens_of(shape, is_kv);
    MEMO_ASSERT(ring_rank >= 0 && ring_rank < shape->sharding.ring); /* 1 */
    *n = tokens->n_runs[ring_rank];
    return tokens->runs + ring_rank * tokens->max_runs;
}

/* The heads of a rank's group, as if each group of each rank were a rank. */
MEMOI memo_ulysses_heads memoi_shape_heads_of(const memoi_shape* shape, int32_t rank) {
    return memoi_shape_split_heads(shape->n_q_heads, shape->n_kv_heads,
                                   shape->sharding.ulysses * shape->n_groups,
                                   rank * shape->n_groups + shape->group);
}

/* ---- >>ulysses exchange -------------------------------------------------------------------------
 * Knows: the heads and rows of a rank and of its ulysses group.  Knows nothing of positions, masks
 * or attention.
 *
 * 1. Rows are packed for the heads that peers need, no more: staging has room for these.
 * 2. Heads that arrive by rows are all placed. */

/* A tensor to exchange: in each row n elements per head. */
typedef struct memoi_exchanged {
    const char* name;
    int32_t is_kv;
    int64_t n;
    memo_type type;
} memoi_exchanged;

typedef struct memoi_heads {
    int64_t first, n;
} memoi_heads;

MEMOI MEMOB_NOINLINE memoi_heads memoi_ulysses_heads_for(const memoi_shape* shape, int32_t is_kv,
                                                         int32_t rank) {
    memo_ulysses_heads both = memoi_shape_heads_of(shape, rank);
    memoi_heads heads;
    heads.first = is_kv ? both.first_kv : both.first_q;
    heads.n = is_kv ? both.n_kv : both.n_q;
    return heads;
}

/* The heads that all ranks need together; more than exist if some are replicated. */
MEMOI int64_t memoi_ulysses_heads_needed(const memoi_shape* shape, int32_t is_kv) {
    int64_t n = 0;
    for (int32_t p = 0; p < shape->sharding.ulysses; p++)
        n += memoi_ulysses_heads_for(shape, is_kv, p).n;
    return n;
}

typedef struct memoi_ulysses {
    const memoi_shape* shape;
    memoi_target* target;
    int stream; /* of the target */
    memo_comm* comm;
    char* staging; /* holds all heads needed, of all local rows */
} memoi_ulysses;

/* One exchange. */
typedef struct memoi_ulysses_move {
    const memoi_shape* shape;
    const memoi_exchanged* x;
    int32_t degree, me;
    int64_t n_heads, n_needed; /* all; that all ranks need together */
    memoi_heads own;
    int64_t unit;                 /* bytes of a head in a row */
    int64_t n_local, n_rows;      /* rows of this rank: of a sequence, of the batch */
    int64_t slice_rows, n_pieces; /* slices of a sequence; of the batch */
    int64_t ring_tokens;          /* rows by heads, of a sequence */
    int64_t row_bytes, own_bytes; /* of a row with all heads, with the own heads */
    /* Bytes that this rank sends: what the peers need, or its heads to all peers. */
    int64_t to_heads_bytes, to_rows_bytes;
} memoi_ulysses_move;

MEMOI memoi_ulysses_move memoi_ulysses_measure(const memoi_shape* shape, const memoi_exchanged* x) {
    memoi_ulysses_move m;
    m.shape = shape;
    m.x = x;
    m.degree = shape->sharding.ulysses;
    m.me = shape->ulysses_rank;
    m.n_heads = x->is_kv ? shape->n_kv_heads : shape->n_q_heads;
    m.n_needed = memoi_ulysses_heads_needed(shape, x->is_kv);
    m.own = memoi_ulysses_heads_for(shape, x->is_kv, m.me);
    m.unit = x->n * memo_type_bytes(x->type);
    m.n_local = memoi_shape_sharding(shape, x->is_kv)->local_tokens;
    m.n_rows = shape->n_batch * m.n_local;
    m.slice_rows = memoi_sharding_slice_rows(memoi_shape_sharding(shape, x->is_kv));
    m.n_pieces = shape->n_batch * ((m.n_local - 1) / m.slice_rows + 1);
    m.ring_tokens = memoi_shape_sharding(shape, x->is_kv)->ring_tokens;
    m.row_bytes = m.n_heads * m.unit;
    m.own_bytes = m.own.n * m.unit;
    m.to_heads_bytes = (m.n_needed - m.own.n) * m.unit * m.n_rows;
    m.to_rows_bytes = m.own_bytes * m.n_rows * (m.degree - 1);
    return m;
}

/* Piece i: consecutive rows of every rank of the group, which follow each other by heads. */
typedef struct memoi_ulysses_piece {
    int64_t row, heads_row, n; /* first rows; heads_row: of rank 0 */
} memoi_ulysses_piece;

MEMOI memoi_ulysses_piece memoi_ulysses_piece_of(const memoi_ulysses_move* m, int64_t i) {
    const int64_t n_slices = m->n_pieces / m->shape->n_batch, b = i / n_slices;
    const int64_t first = i % n_slices * m->slice_rows;
    const memoi_ulysses_piece piece = {b * m->n_local + first,
                                       b * m->ring_tokens + first * m->degree,
                                       memob_min(m->slice_rows, m->n_local - first)};
    return piece;
}

/* The peer to send to in a step; the one to receive from, if step is negative.  In step k every
 * rank sends to another one, so that no rank is everyone's first. */
MEMOI int32_t memoi_ulysses_peer(const memoi_ulysses_move* m, int32_t step) {
    return (m->me + step + m->degree) % m->degree;
}
MEMOI memoi_heads memoi_ulysses_peer_heads(const memoi_ulysses_move* m, int32_t step) {
    return memoi_ulysses_heads_for(m->shape, m->x->is_kv, memoi_ulysses_peer(m, step));
}

/* Rows to heads, first part: what the peers need goes to staging, what this rank needs to its
 * place.  A peer that needs all heads is sent whole rows, unpacked.  Returns the bytes of staging
 * used. */
MEMOI int64_t memoi_ulysses_pack(const memoi_ulysses* u, const memoi_ulysses_move* m,
                                 const char* from, char* to) {
    int64_t staged = 0;
    for (int32_t step = 1; step < m->degree; step++) {
        const memoi_heads peer = memoi_ulysses_peer_heads(m, step);
        const int64_t bytes = peer.n * m->unit;
        if (peer.n == m->n_heads) continue;
        memoi_target_copy_rows(u->target, u->stream, u->staging + staged, bytes,
                               from + peer.first * m->unit, m->row_bytes, bytes, m->n_rows);
        staged += bytes * m->n_rows;
    }
    MEMO_ASSERT(staged <= m->to_heads_bytes); /* 1 */
    for (int64_t i = 0; i < m->n_pieces; i++) {
        const memoi_ulysses_piece p = memoi_ulysses_piece_of(m, i);
        memoi_target_copy_rows(
            u->target, u->stream, to + (p.heads_row + m->me * p.n) * m->own_bytes, m->own_bytes,
            from + p.row * m->row_bytes + m->own.first * m->unit, m->row_bytes, m->own_bytes, p.n);
    }
    return staged;
}

/* The messages between the side by heads, in place, and rows of the peers' heads, which are packed;
 * whole, if not NULL, holds the rows of a peer that has all heads. */
MEMOI void memoi_ulysses_exchange(const memoi_ulysses* u, const memoi_ulysses_move* m, int to_heads,
                                  const char* heads, const char* packed, const char* whole) {
    for (int32_t step = 1; step < m->degree; step++) {
        const int32_t rows_step = to_heads ? step : -step;
        const int32_t heads_rank = memoi_ulysses_peer(m, -rows_step);
        const memoi_heads peer = memoi_ulysses_peer_heads(m, rows_step);
        const int is_whole = whole && peer.n == m->n_heads;
        const char* rows = is_whole ? whole : packed;
        for (int64_t i = 0; i < m->n_pieces; i++) {
            const memoi_ulysses_piece p = memoi_ulysses_piece_of(m, i);
            memoi_target_message(u->target, u->stream, u->comm, to_heads,
                                 rows + p.row * peer.n * m->unit, p.n * peer.n * m->x->n,
                                 m->x->type, memoi_ulysses_peer(m, rows_step));
            memoi_target_message(u->target, u->stream, u->comm, !to_heads,
                                 heads + (p.heads_row + heads_rank * p.n) * m->own_bytes,
                                 p.n * m->own.n * m->x->n, m->x->type, heads_rank);
        }
        if (!is_whole) packed += peer.n * m->unit * m->n_rows;
    }
    memoi_target_group_end(u->target, u->stream, u->comm);
}

/* from (n_batch, local_tokens, all heads, n) -> to (n_batch, ring_tokens, own heads, n) */
MEMOI void memoi_ulysses_to_heads(const memoi_ulysses* u, const memoi_exchanged* x,
                                  const void* from, void* to) {
    const memoi_ulysses_move m = memoi_ulysses_measure(u->shape, x);
    memo_range reads[2], write;
    if (!m.n_needed || !x->n) return; /* on no rank */
    reads[0] = memob_range_at(from, m.n_rows * m.row_bytes);
    reads[1] = memob_range_at(u->staging, memoi_ulysses_pack(u, &m, (const char*)from, (char*)to));
    write = memob_range_at(to, m.shape->n_batch * m.ring_tokens * m.own_bytes);
    memoi_target_group_begin(u->target, u->stream, u->comm, x->name, -1, reads, 2, &write, 1,
                             m.to_heads_bytes);
    memoi_ulysses_exchange(u, &m, 1, (const char*)to, u->staging, (const char*)from);
}

/* Puts rows of some heads to their place in to; with sums, adds the rows there. */
MEMOI void memoi_ulysses_place(const memoi_ulysses* u, const memoi_ulysses_move* m, char* to,
                               float* sums, int64_t first_row, memoi_heads heads, const char* rows,
                               int64_t n_rows) {
    const int64_t at = (first_row * m->n_heads + heads.first) * m->x->n, n = heads.n * m->x->n;
    if (sums)
        memoi_target_add(u->target, u->stream, MEMO_TYPE_F32, sums + at, m->n_heads * m->x->n, rows,
                         n, n, n_rows);
    else
        memoi_target_copy_rows(u->target, u->stream, to + at * memo_type_bytes(m->x->type),
                               m->row_bytes, rows, heads.n * m->unit, heads.n * m->unit, n_rows);
}

/* from (n_batch, ring_tokens, own heads, n) -> to (n_batch, local_tokens, all heads, n).  With sums
 * (fp32, shaped as to), to is not used: replicas of a head are added up in sums, which the first
 * group clears.  The heads of the peers arrive in staging. */
MEMOI void memoi_ulysses_to_rows(const memoi_ulysses* u, const memoi_exchanged* x,
                                 const void* from_heads, void* to_rows, float* sums) {
    const memoi_ulysses_move m = memoi_ulysses_measure(u->shape, x);
    const char *from = (const char*)from_heads, *packed = u->staging;
    char* to = (char*)to_rows;
    memo_range read = memob_range_at(from, m.shape->n_batch * m.ring_tokens * m.own_bytes);
    memo_range write = memob_range_at(packed, (m.n_needed - m.own.n) * m.unit * m.n_rows);
    if (m.n_needed && x->n) { /* on any rank */
        memoi_target_group_begin(u->target, u->stream, u->comm, x->name, -1, &read, 1, &write, 1,
                                 m.to_rows_bytes);
        memoi_ulysses_exchange(u, &m, 0, from, packed, NULL);
    }
    if (sums && !u->shape->group)
        memoi_target_fill(u->target, u->stream, sums, m.n_rows * m.row_bytes);

    /* The own heads, then those of each peer. */
    for (int64_t i = 0; i < m.n_pieces; i++) {
        const memoi_ulysses_piece p = memoi_ulysses_piece_of(&m, i);
        memoi_ulysses_place(u, &m, to, sums, p.row, m.own,
                            from + (p.heads_row + m.me * p.n) * m.own_bytes, p.n);
    }
    for (int32_t step = 1; step < m.degree; step++) {
        const memoi_heads peer = memoi_ulysses_peer_heads(&m, -step);
        memoi_ulysses_place(u, &m, to, sums, 0, peer, packed, m.n_rows);
        packed += peer.n * m.unit * m.n_rows;
    }
    MEMO_ASSERT(packed == u->staging + (m.n_needed - m.own.n) * m.unit * m.n_rows); /* 2 */
}

/* ---- >>pairs of ranks ---------------------------------------------------------------------------
 * Knows: the runs of readers and of owners, and the masks.  Knows nothing of steps or messages.
 *
 * 1. Rows are added to pieces in ascending order; pieces stay apart and few enough.
 * 2. No key is seen by fewer than no queries. */

/* Rows [begin, end) of a sequence. */
typedef struct memoi_exchange_rows {
    int64_t begin, end;
} memoi_exchange_rows;

/* Rows of an owner's keys that a reader reads: ranges, ascending.  Of more ranges the narrowest
 * gaps are read, too. */
enum { MEMOI_PIECES_MAX = 64 };
typedef struct memoi_exchange_pieces {
    int32_t n;
    int64_t n_rows;                                 /* with these gaps */
    int64_t narrowest;                              /* no gap between two pieces is narrower */
    memoi_exchange_rows rows[MEMOI_PIECES_MAX + 1]; /* one more while rows are added */
} memoi_exchange_pieces;

/* A run of an owner's keys, in rows from `row` on. */
typedef struct memoi_pairs_run {
    int64_t start, end, row;
    int32_t owner;
} memoi_pairs_run;

/* At position `at` the number of queries that see a key jumps; behind it the number grows by
 * `slope` more from key to key. */
typedef struct memoi_pairs_bend {
    int64_t at, jump, slope;
} memoi_pairs_bend;

/* What the queries of a reader see of each owner's keys. */
typedef struct memoi_pairs {
    const memo_segment* seen; /* as in memo_exchange */
    const int64_t* first_seen;
    int32_t n_levels, n_ranks;
    int32_t most; /* pieces */
    const memoi_shape_tokens *queries, *keys;
    memoi_pairs_run* runs; /* of all owners, by position */
    int64_t n_runs;
    int32_t shift; /* work is counted in units of 2^shift tokens */
    /* The reader that was asked for last, by owner: rows, and twice the pairs. */
    memoi_exchange_pieces* pieces;
    int64_t* work;
    /* Scratch; the readers of all views share it. */
    memoi_pairs_bend* bends;
    memob_keyed *order, *sorted;
    int32_t* places;
} memoi_pairs;

/* --- pieces --- */

/* Adds rows that do not begin before those of p.  Of more than `most` pieces the two with the
 * narrowest gap become one. */
MEMOI void memoi_exchange_add_rows(memoi_exchange_pieces* p, int32_t most, int64_t begin,
                                   int64_t end) {
    memoi_exchange_rows* rows = p->rows;
    const int64_t last = p->n ? rows[p->n - 1].end : -1;
    int32_t narrowest = p->n - 1; /* the gap behind this piece */
    MEMO_ASSERT(begin < end && (!p->n || begin >= rows[p->n - 1].begin)); /* 1 */
    if (begin <= last) { /* the last piece goes on */
        p->n_rows += memob_max(end - last, 0);
        rows[p->n - 1].end = memob_max(end, last);
        return;
    }
    rows[p->n].begin = begin;
    rows[p->n++].end = end;
    p->n_rows += end - begin;
    MEMO_ASSERT(p->n <= most + 1); /* 1 */
    if (p->n <= most) return;

    /* The new gap is closed, unless another is narrower. */
    if (begin - last > p->narrowest) {
        for (int32_t k = narrowest = 0; k + 2 < p->n; k++)
            if (rows[k + 1].begin - rows[k].end < rows[narrowest + 1].begin - rows[narrowest].end)
                narrowest = k;
        p->narrowest = rows[narrowest + 1].begin - rows[narrowest].end;
        if (begin - last <= p->narrowest) narrowest = p->n - 2;
    }
    p->n_rows += rows[narrowest + 1].begin - rows[narrowest].end;
    rows[narrowest].end = rows[narrowest + 1].end;
    p->n--;
    for (int32_t k = narrowest + 1; k < p->n; k++) rows[k] = rows[k + 1];
}

/* Adds rows of other pieces. */
MEMOI void memoi_exchange_unite(memoi_exchange_pieces* p, const memoi_exchange_pieces* other,
                                int32_t most) {
    const memoi_exchange_pieces own = *p;
    memset(p, 0, sizeof *p);
    for (int32_t i = 0, k = 0; i < own.n || k < other->n;) {
        const int is_own =
            k == other->n || (i < own.n && own.rows[i].begin <= other->rows[k].begin);
        const memoi_exchange_rows* rows = is_own ? &own.rows[i++] : &other->rows[k++];
        memoi_exchange_add_rows(p, most, rows->begin, rows->end);
    }
}

/* Gaps that were not closed must be worth their messages. */
MEMOI void memoi_exchange_close_gaps(memoi_exchange_pieces* p, int32_t most) {
    const int64_t n = p->n ? p->rows[p->n - 1].end - p->rows[0].begin : 0;
    if (p->n < most || p->n_rows <= n / 8 * 7) return;
    p->rows[0].end = p->rows[p->n - 1].end;
    p->n_rows = n;
    p->n = 1;
}

/* A group has up to 4 messages for each piece of a sequence, of k and of v, sent and received, and
 * 2 of gradients.  NCCL is known to hang with more than 256. */
MEMOI int32_t memoi_pairs_most(const memoi_shape* shape) {
    return (int32_t)memob_max(memob_min(254 / 4 / shape->n_batch, MEMOI_PIECES_MAX), 1);
}

/* --- creation --- */

/* The runs of n owners, in the order of their positions. */
MEMOI void memoi_pairs_take_keys(memoi_pairs* p, const memoi_shape_tokens* keys,
                                 memob_arrays* arrays) {
    memob_keyed* order;
    memoi_pairs_run* runs;
    int64_t n = 0;
    for (int32_t owner = 0; owner < p->n_ranks; owner++) n += keys->n_runs[owner];
    p->keys = keys;
    p->runs = MEMOB_ARRAY(arrays, memoi_pairs_run, n + 1);
    p->n_runs = n;
    order = MEMOB_ARRAY(arrays, memob_keyed, n);
    runs = MEMOB_ARRAY(arrays, memoi_pairs_run, n);
    if (arrays->failed) return;

    n = 0;
    for (int32_t owner = 0; owner < p->n_ranks; owner++) {
        const memo_run* own = keys->runs + owner * keys->max_runs;
        int64_t row = 0;
        for (int32_t k = 0; k < keys->n_runs[owner]; row += own[k++].count) {
            runs[n].start = own[k].start;
            runs[n].end = own[k].start + own[k].count;
            runs[n].row = row;
            runs[n].owner = owner;
            order[n] = memob_keyed_of(own[k].start, n);
            n++;
        }
    }
    memob_keyed_sort(order, n);
    for (int64_t i = 0; i < n; i++) p->runs[i] = runs[order[i].index];
    p->runs[n].start = p->runs[n].end = INT64_MAX;
}

/* For readers with at most max_runs runs, under masks of n_parts parts. */
MEMOI void memoi_pairs_take_masks(memoi_pairs* p, int32_t n_parts, int64_t max_runs,
                                  int64_t n_tokens, memob_arrays* arrays) {
    int64_t most = 0;
    for (int32_t part = 0; part < n_parts; part++)
        most = memob_max(most, p->first_seen[(part + 1) * p->n_levels] -
                                   p->first_seen[part * p->n_levels]);
    most = 4 * (most + p->n_levels * max_runs); /* a run and a segment: 2 ends, each with 2 bends */
    while (n_tokens >> p->shift >> 22) p->shift++;
    p->bends = MEMOB_ARRAY(arrays, memoi_pairs_bend, most + 1);
    p->order = MEMOB_ARRAY(arrays, memob_keyed, most + 1);
    p->sorted = MEMOB_ARRAY(arrays, memob_keyed, most + 1);
    p->places = MEMOB_ARRAY(arrays, int32_t, most + 3);
    p->pieces = MEMOB_ARRAY(arrays, memoi_exchange_pieces, p->n_ranks);
    p->work = MEMOB_ARRAY(arrays, int64_t, p->n_ranks);
}

/* --- what a reader reads --- */

MEMOI int64_t memoi_pairs_add_bend(memoi_pairs* p, int64_t n, int64_t at, int64_t jump,
                                   int64_t slope) {
    p->bends[n].at = at;
    p->bends[n].jump = jump;
    p->bends[n].slope = slope;
    p->order[n] = memob_keyed_of(at, n);
    return n + 1;
}

/* n_queries see the keys from `at` on (sign 1), or none of these any more (-1); each query from one
 * key later than the query before, if it moves. */
MEMOI int64_t memoi_pairs_add_end(memoi_pairs* p, int64_t n, int64_t at, int64_t n_queries,
                                  int moves, int64_t sign) {
    if (!moves) return memoi_pairs_add_bend(p, n, at, sign * n_queries, 0);
    n = memoi_pairs_add_bend(p, n, at, sign, sign);
    return memoi_pairs_add_bend(p, n, at + n_queries, -sign, -sign);
}

/* How many of the reader's queries see each key.  Returns the number of bends. */
MEMOI int64_t memoi_pairs_bend_at(memoi_pairs* p, int32_t part, int32_t reader) {
    const memo_run* runs = p->queries->runs + reader * p->queries->max_runs;
    int64_t n = 0;
    for (int32_t mask = part * p->n_levels; mask < (part + 1) * p->n_levels; mask++) {
        const memo_segment *end = p->seen + p->first_seen[mask + 1], *s = p->seen;
        s += p->first_seen[mask];
        for (int32_t k = 0; k < p->queries->n_runs[reader]; k++) {
            const int64_t last = runs[k].start + runs[k].count;
            s += memoi_segments_first(s, end - s, runs[k].start);
            for (const memo_segment* at = s; at < end && at->q_begin < last; at++) {
                const int64_t q = memob_max(runs[k].start, at->q_begin);
                const int64_t n_queries = memob_min(last, at->q_end) - q;
                int64_t low, high;
                memo_segment_keys(at, q, &low, &high);
                n = memoi_pairs_add_end(p, n, low, n_queries, at->type & 2, 1);
                n = memoi_pairs_add_end(p, n, high, n_queries, at->type & 1, -1);
            }
        }
    }
    return n;
}

/* Keys [begin, end) are seen: the first one by `value` queries, each next one by `slope` more.
 * k: the first run that may have any. */
MEMOI int64_t memoi_pairs_read(memoi_pairs* p, int64_t k, int64_t begin, int64_t end, int64_t value,
                               int64_t slope) {
    const int64_t at = begin;
    MEMO_ASSERT(value >= 0); /* 2 */
    if (!value && slope > 0) begin++;
    if (slope < 0) end = memob_min(end, begin + (value - slope - 1) / -slope);
    if (begin >= end) return k;
    if (p->runs[k].end <= begin) { /* one of [k, last] ends behind begin */
        int64_t last = p->n_runs;
        while (k < last) {
            const int64_t middle = (k + last) / 2;
            if (p->runs[middle].end <= begin)
                k = middle + 1;
            else
                last = middle;
        }
    }
    for (int64_t i = k; p->runs[i].start < end; i++) {
        const memoi_pairs_run* run = &p->runs[i];
        const int64_t from = memob_max(run->start, begin), to = memob_min(run->end, end);
        const int64_t both = 2 * value + slope * (from + to - 1 - 2 * at); /* first and last key */
        p->work[run->owner] += (both >> p->shift) * ((to - from) >> p->shift);
        memoi_exchange_add_rows(&p->pieces[run->owner], p->most, run->row + from - run->start,
                                run->row + to - run->start);
    }
    return k;
}

/* Finds what a reader reads under the masks of a part. */
MEMOI void memoi_pairs_ask(memoi_pairs* p, int32_t part, int32_t reader) {
    const int64_t n = memoi_pairs_bend_at(p, part, reader);
    int64_t value = 0, slope = 0, largest = 0, k = 0;
    int is_sorted = 1;
    for (int32_t owner = 0; owner < p->n_ranks; owner++) {
        p->pieces[owner].n = 0;
        p->pieces[owner].n_rows = p->pieces[owner].narrowest = p->work[owner] = 0;
    }
    for (int64_t i = 0; i < n; i++) {
        largest = memob_max(largest, p->order[i].key);
        is_sorted &= !i || p->order[i - 1].key <= p->order[i].key;
    }
    if (!is_sorted) memob_digits_sort(p->order, n, 0, largest, p->sorted, p->places);
    for (int64_t i = 0; i < n; i++) {
        const memoi_pairs_bend* bend = &p->bends[p->order[i].index];
        const int64_t next = i + 1 < n ? p->order[i + 1].key : bend->at;
        value += bend->jump;
        slope += bend->slope;
        if (next == bend->at) continue;
        if (value || slope) k = memoi_pairs_read(p, k, bend->at, next, value, slope);
        value += slope * (next - bend->at);
    }
    for (int32_t owner = 0; owner < p->n_ranks; owner++)
        memoi_exchange_close_gaps(&p->pieces[owner], p->most);
}

/* ---- >>pools of rows ----------------------------------------------------------------------------
 * Knows: how many rows come one after another, and where there is room for them.  Knows nothing of
 * what they are.
 *
 * 1. The stretches of a pool ascend without gaps from its first row to its last.
 * 2. Every step finds room: two sets of a rank's rows hold any step beside the one before. */

/* Rows of keys that arrive, and contributions to gradients that leave, lie in pools, where there is
 * room.  Contributions that arrive are added at once, and share a place behind those that leave.
 * Keys that a rank holds for its node have pools of their own, and so have the sums of their
 * gradients; both have the same rooms. */
enum { MEMOI_POOL_KEYS = 0, MEMOI_POOL_GRADIENTS, MEMOI_POOL_HELD, MEMOI_POOL_SUMS, MEMOI_N_POOLS };

/* Where rows lie in a pool, and the last earlier step whose rows lay there; 0: none. */
typedef struct memoi_exchange_room {
    int64_t row;
    int32_t after;
} memoi_exchange_room;

#ifndef MEMOI_POOL_ALIGNMENT /* tests set it */
#define MEMOI_POOL_ALIGNMENT                                                                       \
    8 /* rows of a step begin at a multiple, so that kernels can load them */
#endif

/* Rows [begin, end) of a pool, where the rows of a step were last; 0: none. */
typedef struct memoi_pool_stretch {
    int64_t begin, end;
    int32_t step;
} memoi_pool_stretch;

typedef struct memoi_pool {
    int64_t n_rows;
    memoi_pool_stretch* stretches; /* ascending, without gaps */
    int32_t n;
} memoi_pool;

/* Rows of a pool.  Two sets of a rank's rows always leave room for the next step beside the present
 * one.  Rounded contributions are computed elsewhere. */
MEMOI int64_t memoi_pool_rows(const memoi_shape* shape, int pool) {
    const int64_t n = shape->n_batch * shape->key_sharding.ring_tokens;
    const int n_sets = 2 + (pool == MEMOI_POOL_GRADIENTS && shape->carried_type == MEMO_TYPE_F32);
    return n_sets * memob_align_up(n, MEMOI_POOL_ALIGNMENT);
}

/* The stretch whose step is the last one in rows [begin, end), which meet stretch i; or one that is
 * not below `most`. */
MEMOI memoi_pool_stretch memoi_pool_look(const memoi_pool* pool, int32_t i, int64_t begin,
                                         int64_t end, int32_t most) {
    const memoi_pool_stretch* s = pool->stretches;
    memoi_pool_stretch last = {begin, begin, 0};
    for (int32_t k = i; k >= 0 && s[k].end > begin && last.step < most; k--)
        if (s[k].begin < end && s[k].step > last.step) last = s[k];
    for (int32_t k = i + 1; k < pool->n && s[k].begin < end && last.step < most; k++)
        if (s[k].end > begin && s[k].step > last.step) last = s[k];
    return last;
}

/* Cuts the stretch that a row is in; returns the index of the one that begins there. */
MEMOI int32_t memoi_pool_cut(memoi_pool* pool, int64_t row) {
    memoi_pool_stretch* s = pool->stretches;
    while (s - pool->stretches < pool->n && s->end <= row) s++;
    if (s - pool->stretches < pool->n && s->begin < row) {
        memmove(s + 1, s, (size_t)(pool->stretches + pool->n++ - s) * sizeof *s);
        s->end = row;
        (++s)->begin = row;
    }
    return (int32_t)(s - pool->stretches);
}

MEMOI void memoi_pool_take(memoi_pool* pool, int64_t begin, int64_t end, int32_t step) {
    const int32_t first = memoi_pool_cut(pool, begin), next = memoi_pool_cut(pool, end);
    memoi_pool_stretch* s = pool->stretches + first;
    s->end = end;
    s->step = step;
    memmove(s + 1, pool->stretches + next, (size_t)(pool->n - next) * sizeof *s);
    pool->n -= next - first - 1;
    s = pool->stretches;
    for (int32_t i = first; i < pool->n && i < first + 2; i++) /* 1 */
        MEMO_ASSERT(s[i].begin < s[i].end && s[i].begin == (i ? s[i - 1].end : 0));
    MEMO_ASSERT(s[pool->n - 1].end == pool->n_rows); /* 1 */
}

/* Do `next` rows lie before [row, row + n) of a pool of n_rows, or behind? */
MEMOI int memoi_pool_has_beside(int64_t n_rows, int64_t row, int64_t n, int64_t next) {
    const int64_t unit = MEMOI_POOL_ALIGNMENT;
    return row >= next || (n_rows - next) / unit * unit >= row + n;
}

/* Takes n rows that no step has had yet, behind those that one had; 0: there are too few. */
MEMOI int memoi_pool_take_new(memoi_pool* pool, int64_t n, int64_t next, int32_t step,
                              memoi_exchange_room* room) {
    memoi_pool_stretch* s = &pool->stretches[pool->n - 1];
    const int64_t row = memob_align_up(s->begin, MEMOI_POOL_ALIGNMENT);
    const int has_room = memoi_pool_has_beside(pool->n_rows, row, n, next);
    const memoi_pool_stretch taken = {row, row + n, step}, rest = {row + n, pool->n_rows, 0};
    if (s->step || row + n > pool->n_rows || !has_room) return 0;
    room->row = row;
    room->after = 0;
    if (s->begin < row) {
        (s++)->end = row;
        pool->n++;
    }
    *s++ = taken;
    if (rest.begin < rest.end) {
        *s = rest;
        pool->n++;
    }
    return 1;
}

/* Finds rooms for sizes[1 .. n_steps - 1] rows: each where the last user is as early as possible,
 * and the next step has room beside it. */
MEMOI void memoi_pool_lay(memoi_pool* pool, int64_t n_rows, const int64_t* sizes, int32_t n_steps,
                          memoi_exchange_room* rooms) {
    const int64_t unit = MEMOI_POOL_ALIGNMENT;
    const memoi_pool_stretch all = {0, n_rows, 0};
    pool->n_rows = n_rows;
    pool->n = 1;
    pool->stretches[0] = all;

    for (int32_t s = 1; s < n_steps; s++) {
        const int64_t n = sizes[s], next = s + 1 < n_steps ? sizes[s + 1] : 0;
        /* Rows from `next` on, and up to `low`, leave room for the next step. */
        const int64_t low = (n_rows - next) / unit * unit - n, last = n_rows - n;
        int64_t behind[2] = {0, 0}; /* rows before it meet a step that is not earlier */
        int32_t cost = INT32_MAX;
        rooms[s].row = rooms[s].after = 0;
        if (!n || memoi_pool_take_new(pool, n, next, s, &rooms[s])) continue;

        /* Rows begin where a stretch begins, or end where it ends. */
        for (int32_t i = 0; i < pool->n && cost; i++) {
            const memoi_pool_stretch* at = &pool->stretches[i];
            if (at->step >= cost && at->end - at->begin >= unit) continue;
            for (int k = 0; k < 2; k++) {
                const int64_t row =
                    k ? memob_max(at->end - n, 0) / unit * unit : memob_align_up(at->begin, unit);
                const int32_t least = row >= next || row <= low ? 0 : s - 1;
                memoi_pool_stretch place;
                if (row < behind[k] || row > last || least >= cost) continue;
                place = memoi_pool_look(pool, i, row, row + n, cost);
                if (place.step < cost) {
                    cost = (int32_t)memob_max(place.step, least);
                    rooms[s].row = row;
                    rooms[s].after = place.step;
                }
                if (place.step >= cost) behind[k] = place.end;
            }
        }
        MEMO_ASSERT(cost < INT32_MAX); /* 2 */
        memoi_pool_take(pool, rooms[s].row, rooms[s].row + n, s);
    }
}

/* ---- >>messages ---------------------------------------------------------------------------------
 * Knows: how many rows each rank reads of whom, and what it computes with them.  Knows nothing of
 * positions, heads, streams or times.
 *
 * The messages of all ranks are one list, in turns.  In a turn a rank sends keys to at most one
 * rank and gets some from at most one, and so with contributions.  A rank takes no part in a turn
 * in which it has no message.  Each rank makes the same list from the same numbers.
 *
 * Over nodes a row crosses to a node once.  The rank at the owner's place holds the rows that
 * anybody in its node reads, and adds up the contributions to their gradients.  So there are four
 * kinds of messages: keys from the owner or who holds them to the reader, and a contribution back;
 * rows that cross from the owner to who holds them, and their sum back.  The latter two are on a
 * stream of their own.  Who holds rows and reads them sends itself nothing.
 *
 * A message has a later turn than all that it waits for, and a rank enqueues turns of both streams
 * in their order, so no two ranks wait for each other. */

/* Keys of an owner that a reader reads; the contribution to their gradients goes back. */
typedef struct memoi_ring_message {
    int32_t owner, reader;
    int32_t source;   /* the owner, or who holds these keys for the reader's node */
    int32_t crossing; /* whose rows they are; -1: the owner's */
    int32_t step;     /* of the reader, which computes with them */
    int32_t after[2]; /* by pools: of its steps, the last one whose rows lay in the same room */
    int32_t turns[3]; /* of keys in forward and in backward, of the contribution */
    int64_t n_rows, work;
} memoi_ring_message;

/* Rows of an owner that cross to another node. */
typedef struct memoi_ring_crossing {
    int32_t owner, holder;
    int32_t number;           /* of those of the holder, in the order in which they come; from 1 */
    int32_t first, n_readers; /* of_crossings[first .. first + n_readers - 1] read them */
    int32_t turns[3];         /* of rows in forward and in backward, of the sum */
    int64_t n_rows, row;      /* row: of their room */
} memoi_ring_crossing;

/* What travels in a turn: a message, or a crossing, or its contribution or sum. */
typedef struct memoi_messages_event {
    int32_t turn, index; /* turn: MEMOI_N_LINKS * turn + link */
    int32_t is_given;
} memoi_messages_event;

/* The streams of messages, and the links under them. */
enum { MEMOI_LINK_RING = 0, MEMOI_LINK_NODES, MEMOI_N_LINKS };

/* A backward computes this part of own keys first, while the first keys arrive, and the rest last,
 * while contributions leave. */
enum { MEMOI_OWN_FIRST_PART = 3 };

typedef struct memoi_messages {
    const memoi_shape* shape;
    int32_t n_ranks, n_nodes;
    int64_t n_rows, work;             /* of all ranks; work with own keys, too */
    const int64_t *rows_of, *work_of; /* (n_ranks, n_ranks): of a reader with keys of an owner */
    const int64_t* crossing_rows;     /* (n_ranks, n_nodes): of an owner that a node reads */
    const char* is_whole;             /* (n_ranks): own keys are one segment; NULL: none are */
    int64_t times[MEMOI_N_LINKS][2];  /* of a row on a link: of keys, of a contribution */
    int64_t lead;                     /* messages of a turn may differ so much in start */
    /* In the order of steps, list[order[i]]; those of reader r from first_of_rank[r] on.  Crossings
     * in the order in which they come, from first_of_holder[r] on. */
    memoi_ring_message* list;
    int32_t *order, *first_of_rank;
    memoi_ring_crossing* crossings;
    int32_t *held, *first_of_holder, *of_crossings;
    memoi_messages_event* events[2]; /* of forward, of backward, by turns */
    int32_t n_events[2];
} memoi_messages;

MEMOI int32_t memoi_messages_count(const memoi_messages* m) { return m->first_of_rank[m->n_ranks]; }
MEMOI int32_t memoi_messages_crossings(const memoi_messages* m) {
    return m->first_of_holder[m->n_ranks];
}
MEMOI int32_t memoi_messages_steps(const memoi_messages* m, int32_t reader) {
    return m->first_of_rank[reader + 1] - m->first_of_rank[reader];
}
MEMOI memoi_ring_message* memoi_messages_of(const memoi_messages* m, int32_t reader, int32_t step) {
    return &m->list[m->order[m->first_of_rank[reader] + step - 1]];
}
/* A reader reads the rows of a crossing where it holds them. */
MEMOI int memoi_messages_is_own(const memoi_ring_message* x) { return x->source == x->reader; }

/* The time of work in a pass. */
MEMOI int64_t memoi_messages_cost(int64_t work, int is_backward) {
    return is_backward ? work * 5 / 2 : work;
}

/* The time of own keys, and how much of it is spent before those of others. */
MEMOI int64_t memoi_messages_own(const memoi_messages* m, int32_t r, int is_backward) {
    return memoi_messages_cost(m->work_of[(int64_t)r * m->n_ranks + r], is_backward);
}
MEMOI int64_t memoi_messages_own_first(const memoi_messages* m, int32_t r, int is_backward) {
    const int64_t own = memoi_messages_own(m, r, is_backward);
    if (!is_backward) return own;
    return m->is_whole && m->is_whole[r] ? 0 : own / MEMOI_OWN_FIRST_PART;
}

/* --- creation --- */

/* The crossings of all owners, by holders.  at: (n_ranks, n_nodes), where they are; -1: none. */
MEMOI void memoi_messages_add_crossings(memoi_messages* m, int32_t* at, memob_arrays* arrays) {
    const int32_t n = m->n_ranks, per = n / m->n_nodes, n_all = n * m->n_nodes;
    int32_t n_crossings = 0;
    for (int32_t i = 0; i < n_all && m->crossing_rows; i++) n_crossings += m->crossing_rows[i] > 0;
    m->crossings = MEMOB_ARRAY(arrays, memoi_ring_crossing, n_crossings + 1);
    m->held = MEMOB_ARRAY(arrays, int32_t, n_crossings + 1);
    m->first_of_holder = MEMOB_ARRAY(arrays, int32_t, n + 1);
    if (arrays->failed) return;
    n_crossings = 0;
    for (int32_t holder = 0; holder < n; holder++) {
        m->first_of_holder[holder] = n_crossings;
        for (int32_t owner = holder % per; owner < n; owner += per) {
            const int32_t k = owner * m->n_nodes + holder / per;
            at[k] = -1;
            if (!m->crossing_rows || !m->crossing_rows[k]) continue;
            at[k] = n_crossings;
            m->crossings[n_crossings].owner = owner;
            m->crossings[n_crossings].holder = holder;
            m->crossings[n_crossings++].n_rows = m->crossing_rows[k];
        }
    }
    m->first_of_holder[n] = n_crossings;
}

/* What each reader reads of others, by owners. */
MEMOI void memoi_messages_add_all(memoi_messages* m, memob_arrays* arrays) {
    const int32_t n = m->n_ranks, per = n / m->n_nodes;
    int32_t n_messages = 0, n_read = 0, *at;
    for (int64_t i = 0; i < (int64_t)n * n; i++) n_messages += m->rows_of[i] > 0;
    m->list = MEMOB_ARRAY(arrays, memoi_ring_message, n_messages + 1);
    m->order = MEMOB_ARRAY(arrays, int32_t, n_messages + 1);
    m->of_crossings = MEMOB_ARRAY(arrays, int32_t, n_messages + 1);
    m->first_of_rank = MEMOB_ARRAY(arrays, int32_t, n + 1);
    at = MEMOB_ARRAY(arrays, int32_t, (int64_t)n * m->n_nodes);
    if (!arrays->failed) memoi_messages_add_crossings(m, at, arrays);
    if (arrays->failed) return;

    n_messages = 0;
    for (int32_t r = 0; r < n; r++) {
        m->first_of_rank[r] = n_messages;
        for (int32_t owner = 0; owner < n; owner++) {
            const int64_t k = (int64_t)r * n + owner;
            memoi_ring_message* x = &m->list[n_messages];
            if (!m->rows_of[k] || owner == r) continue;
            x->owner = x->source = owner;
            x->reader = r;
            x->crossing = owner / per == r / per ? -1 : at[owner * m->n_nodes + r / per];
            x->n_rows = m->rows_of[k];
            x->work = m->work_of[k];
            n_messages++;
            if (x->crossing < 0) continue;
            x->source = m->crossings[x->crossing].holder;
            m->crossings[x->crossing].n_readers++;
            if (memoi_messages_is_own(x)) x->n_rows = m->crossings[x->crossing].n_rows;
        }
    }
    m->first_of_rank[n] = n_messages;

    /* The readers of each crossing. */
    for (int32_t c = 0; c < memoi_messages_crossings(m); c++) {
        m->crossings[c].first = n_read;
        n_read += m->crossings[c].n_readers;
        m->crossings[c].n_readers = 0;
    }
    for (int32_t i = 0; i < n_messages; i++) {
        memoi_ring_crossing* c = &m->crossings[memob_max(m->list[i].crossing, 0)];
        if (m->list[i].crossing >= 0) m->of_crossings[c->first + c->n_readers++] = i;
    }
}

MEMOI void* memoi_messages_copy_of(const void* array, int64_t n, size_t n_bytes,
                                   memob_arrays* arrays) {
    void* copy = memob_arrays_add(arrays, n, n_bytes);
    if (copy) memcpy(copy, array, (size_t)n * n_bytes);
    return copy;
}

/* A list that may get another order. */
MEMOI void memoi_messages_copy(const memoi_messages* m, memoi_messages* copy,
                               memob_arrays* arrays) {
    const int64_t n = memoi_messages_count(m) + 1, n_crossings = memoi_messages_crossings(m) + 1;
    *copy = *m;
    copy->list = (memoi_ring_message*)memoi_messages_copy_of(m->list, n, sizeof *m->list, arrays);
    copy->order = (int32_t*)memoi_messages_copy_of(m->order, n, sizeof *m->order, arrays);
    copy->crossings = (memoi_ring_crossing*)memoi_messages_copy_of(m->crossings, n_crossings,
                                                                   sizeof *m->crossings, arrays);
    copy->held = (int32_t*)memoi_messages_copy_of(m->held, n_crossings, sizeof *m->held, arrays);
}

/* Puts messages of readers, or crossings of holders, in the order of keys: of index. */
MEMOI void memoi_messages_put(memoi_messages* m, int is_held, memob_keyed* keys, int32_t n,
                              memob_arrays* scratch) {
    int32_t* next = MEMOB_ARRAY(scratch, int32_t, m->n_ranks);
    const int32_t* first = is_held ? m->first_of_holder : m->first_of_rank;
    if (scratch->failed) return;
    memob_keyed_sort(keys, n);
    for (int32_t i = 0; i < n; i++) {
        const int32_t k = (int32_t)keys[i].index;
        const int32_t r = is_held ? m->crossings[k].holder : m->list[k].reader;
        (is_held ? m->held : m->order)[first[r] + next[r]++] = k;
    }
}

/* Fewest rows first, then by distance. */
MEMOI void memoi_messages_by_rows(memoi_messages* m, memob_arrays* scratch) {
    const int32_t n = m->n_ranks, n_messages = memoi_messages_count(m);
    const int32_t n_crossings = memoi_messages_crossings(m);
    memob_keyed* keys = MEMOB_ARRAY(scratch, memob_keyed, memob_max(n_messages, n_crossings) + 1);
    if (scratch->failed) return;
    for (int32_t i = 0; i < n_messages; i++) {
        const memoi_ring_message* x = &m->list[i];
        keys[i] = memob_keyed_of(x->n_rows * n + (x->reader - x->owner + n) % n, i);
    }
    memoi_messages_put(m, 0, keys, n_messages, scratch);
    for (int32_t c = 0; c < n_crossings; c++) {
        const memoi_ring_crossing* x = &m->crossings[c];
        keys[c] = memob_keyed_of(x->n_rows * n + (x->holder - x->owner + n) % n, c);
    }
    memoi_messages_put(m, 1, keys, n_crossings, scratch);
}

/* --- rooms --- */

/* The rooms of a rank that gets keys[1 .. n - 1] rows, and contributes given[1 .. n - 1]; given[n]:
 * of its own contribution, if that is computed apart.  At most `most` rows return to it at once.
 * Returns the row of these. */
MEMOI int64_t memoi_messages_lay(const memoi_shape* shape, memoi_pool* pool, const int64_t* keys,
                                 const int64_t* given, int32_t n, int64_t most,
                                 memoi_exchange_room* rooms) {
    const int64_t unit = MEMOI_POOL_ALIGNMENT;
    const int64_t taken_row = (memoi_pool_rows(shape, MEMOI_POOL_GRADIENTS) - most) / unit * unit;
    memoi_pool_lay(pool, memoi_pool_rows(shape, MEMOI_POOL_KEYS), keys, n, rooms);
    memoi_pool_lay(pool, taken_row, given, n + 1, rooms + n + 1);
    return taken_row;
}

/* What a rank lays: its steps, own contribution and what returns at once.  Arrays of its steps + 2.
 * Returns the latter. */
MEMOI int64_t memoi_messages_sizes(const memoi_messages* m, int32_t r, const int64_t* returns,
                                   const char* has_others, int64_t* keys, int64_t* given) {
    const int32_t n = memoi_messages_steps(m, r) + 1;
    for (int32_t k = 1; k < n; k++) {
        const memoi_ring_message* x = memoi_messages_of(m, r, k);
        given[k] = x->n_rows;
        keys[k] = memoi_messages_is_own(x) ? 0 : x->n_rows;
    }
    given[n] = has_others[r] && m->shape->carried_type == MEMO_TYPE_F32
                   ? m->shape->n_batch * m->shape->key_sharding.ring_tokens
                   : 0;
    return returns[r];
}

/* The most rows that return to each rank at once within its node, and whether others of its node
 * contribute to its own keys. */
MEMOI void memoi_messages_find_returns(const memoi_messages* m, int64_t* returns,
                                       char* has_others) {
    for (int32_t i = 0; i < memoi_messages_count(m); i++) {
        const memoi_ring_message* x = &m->list[i];
        has_others[x->owner] |= x->crossing < 0;
        if (!memoi_messages_is_own(x))
            returns[x->source] = memob_max(returns[x->source], x->n_rows);
    }
}

/* Finds the rooms of all ranks, for the order that their steps have. */
MEMOI void memoi_messages_find_rooms(memoi_messages* m, memob_arrays* scratch) {
    const int64_t n = m->n_ranks;
    int64_t* sizes = MEMOB_ARRAY(scratch, int64_t, 2 * (n + 2));
    int64_t* returns = MEMOB_ARRAY(scratch, int64_t, n);
    char* has_others = MEMOB_ARRAY(scratch, char, n);
    memoi_exchange_room* rooms = MEMOB_ARRAY(scratch, memoi_exchange_room, 2 * (n + 1));
    memoi_pool pool = MEMO_ZERO(memoi_pool);
    pool.stretches = MEMOB_ARRAY(scratch, memoi_pool_stretch, 2 * n + 5);
    if (scratch->failed) return;
    memoi_messages_find_returns(m, returns, has_others);
    for (int32_t r = 0; r < n; r++) {
        const int32_t n_steps = memoi_messages_steps(m, r);
        const int64_t most = memoi_messages_sizes(m, r, returns, has_others, sizes, sizes + n + 2);
        (void)memoi_messages_lay(m->shape, &pool, sizes, sizes + n + 2, n_steps + 1, most, rooms);
        for (int32_t k = 1; k <= n_steps; k++) {
            memoi_ring_message* message = memoi_messages_of(m, r, k);
            message->after[MEMOI_POOL_KEYS] = rooms[k].after;
            message->after[MEMOI_POOL_GRADIENTS] = rooms[n_steps + 2 + k].after;
        }
    }
}

/* Do rooms for rows that cross lie in the same place? */
MEMOI int memoi_messages_overlap(const memoi_ring_crossing* a, int64_t row, int64_t n_rows) {
    return a->row < row + n_rows && row < a->row + a->n_rows;
}

/* ---- >>distances --------------------------------------------------------------------------------
 * Knows: messages and crossings, their rows and rooms, as integers.  Knows nothing of times.
 *
 * All messages of a distance have one turn, in which every rank sends to one and receives from one:
 * where all ranks have as many rows, none waits for another.  A distance between nodes is followed
 * by the distances within a node.
 *
 * 1. Every distance has a turn. */

typedef struct memoi_distances {
    int32_t *places, *of;   /* of distances in the order; of messages, their distance's place */
    int32_t *gates, *room;  /* keys of a place come when the step of place `gates` gives them room;
                               behind contributions up to `room` */
    int32_t* held_room;     /* (n_nodes): rows that cross, behind all of a place */
    int32_t *turns, *given; /* of the keys and of the contributions of a place */
    int32_t *crossed, *sum; /* (n_nodes): of rows that cross and of their sums */
} memoi_distances;

/* Contributions that keys may overtake; what waits for them then is gradients alone. */
enum { MEMOI_TURNS_OVERTAKEN = 4 };

/* Distances of fewest rows first, as in a pool that others fill; of nodes, and in these of ranks.
 * The own node is first, and held rows are first who holds them computes with. */
MEMOI void memoi_distances_order(memoi_messages* m, memoi_distances* d, memob_arrays* scratch) {
    const int32_t n = m->n_ranks, n_nodes = m->n_nodes, per = n / n_nodes;
    const int32_t n_messages = memoi_messages_count(m), n_crossings = memoi_messages_crossings(m);
    memob_keyed* keys = MEMOB_ARRAY(scratch, memob_keyed, memob_max(n_messages, n_crossings) + 1);
    memob_keyed* of_nodes = MEMOB_ARRAY(scratch, memob_keyed, n_nodes);
    memob_keyed* within = MEMOB_ARRAY(scratch, memob_keyed, per);
    int64_t* rows = MEMOB_ARRAY(scratch, int64_t, n);
    if (scratch->failed) return;
    for (int32_t i = 0; i < n_messages; i++) {
        const memoi_ring_message* x = &m->list[i];
        const int32_t far = (x->reader / per - x->owner / per + n_nodes) % n_nodes;
        d->of[i] = far * per + (x->reader % per - x->owner % per + per) % per;
        if (!memoi_messages_is_own(x)) rows[d->of[i]] += x->n_rows;
        if (far) of_nodes[far].key += x->n_rows;
    }
    for (int32_t k = 0; k < n_nodes; k++) of_nodes[k].index = k;
    memob_keyed_sort(of_nodes, n_nodes);
    for (int32_t i = 0; i < n_nodes; i++) {
        const int32_t first = (int32_t)of_nodes[i].index * per;
        for (int32_t k = 0; k < per; k++) within[k] = memob_keyed_of(rows[first + k], k);
        memob_keyed_sort(within, per);
        for (int32_t k = 0; k < per; k++) d->places[first + within[k].index] = i * per + k;
    }

    for (int32_t i = 0; i < n_messages; i++) {
        d->of[i] = d->places[d->of[i]];
        keys[i] = memob_keyed_of(d->of[i], i);
    }
    memoi_messages_put(m, 0, keys, n_messages, scratch);
    for (int32_t c = 0; c < n_crossings; c++) {
        const memoi_ring_crossing* x = &m->crossings[c];
        const int32_t far = (x->holder / per - x->owner / per + n_nodes) % n_nodes;
        keys[c] = memob_keyed_of(d->places[far * per], c);
    }
    memoi_messages_put(m, 1, keys, n_crossings, scratch);
}

/* The rooms of all rows that a rank holds. */
MEMOI void memoi_distances_hold(memoi_messages* m, memoi_distances* d, memob_arrays* scratch) {
    const int32_t n_nodes = m->n_nodes, per = m->n_ranks / n_nodes;
    int64_t* sizes = MEMOB_ARRAY(scratch, int64_t, (int64_t)n_nodes + 1);
    memoi_exchange_room* rooms = MEMOB_ARRAY(scratch, memoi_exchange_room, (int64_t)n_nodes + 1);
    memoi_pool pool = MEMO_ZERO(memoi_pool);
    pool.stretches = MEMOB_ARRAY(scratch, memoi_pool_stretch, 2 * (int64_t)n_nodes + 5);
    for (int32_t r = 0; r < m->n_ranks && !scratch->failed; r++) {
        const int32_t* held = m->held + m->first_of_holder[r] - 1;
        const int32_t n = m->first_of_holder[r + 1] - m->first_of_holder[r] + 1;
        for (int32_t k = 1; k < n; k++) sizes[k] = m->crossings[held[k]].n_rows;
        memoi_pool_lay(&pool, memoi_pool_rows(m->shape, MEMOI_POOL_HELD), sizes, n, rooms);
        for (int32_t k = 1; k < n; k++) {
            memoi_ring_crossing* x = &m->crossings[held[k]];
            const int32_t far = d->of[m->of_crossings[x->first]] / per, after = rooms[k].after;
            x->row = rooms[k].row;
            x->number = k;
            if (!after) continue;
            x = &m->crossings[held[after]]; /* all of its distance between nodes */
            d->held_room[far] = (int32_t)memob_max(
                d->held_room[far], d->of[m->of_crossings[x->first]] / per * per + per - 1);
        }
    }
}

/* Keys lie behind the contributions that must leave before the step that gives them room, and two
 * steps more, which would wait else. */
MEMOI void memoi_distances_find_gates(memoi_messages* m, memoi_distances* d) {
    for (int32_t r = 0; r < m->n_ranks; r++) {
        const int32_t* order = m->order + m->first_of_rank[r] - 1;
        int32_t last = 0, s = 1; /* contributions before steps below s */
        for (int32_t k = 1; k <= memoi_messages_steps(m, r); k++) {
            memoi_ring_message* x = &m->list[order[k]];
            const int32_t after = x->after[MEMOI_POOL_KEYS], place = d->of[order[k]];
            const int32_t overtaken = after - MEMOI_TURNS_OVERTAKEN;
            int32_t behind;
            x->step = k;
            for (; s <= after + 2 && s < k; s++)
                last = (int32_t)memob_max(last, m->list[order[s]].after[MEMOI_POOL_GRADIENTS]);
            behind = (int32_t)memob_max(overtaken, last);
            if (after) d->gates[place] = (int32_t)memob_max(d->gates[place], d->of[order[after]]);
            if (behind > 0)
                d->room[place] = (int32_t)memob_max(d->room[place], d->of[order[behind]]);
        }
    }
}

/* Turns of all distances.  Keys and a contribution that may begin at the same time, on the rank
 * that gets room last, share a turn. */
MEMOI void memoi_distances_count(const memoi_messages* m, int is_backward, memoi_distances* d) {
    const int32_t n = m->n_ranks, n_nodes = m->n_nodes, per = n / n_nodes;
    int32_t turn = -1, k = 1, given = 1, gate = 0; /* of the last turn */
    int32_t far = -1, c = 1; /* the last turn between nodes; the next of these */
    for (int32_t t = 0; t < (is_backward ? n : 1); t++) {
        /* A contribution, and the sum that it ends. */
        if (t) {
            if (given || gate != t) turn++;
            d->given[t] = turn;
            given = 1;
            if (t >= per && t % per == per - 1)
                d->sum[t / per] = far = (int32_t)memob_max(far + 1, turn);
        }

        /* Rows that cross, and keys, that have room behind it. */
        for (;;) {
            for (; c < n_nodes && d->held_room[c] <= (is_backward ? t : k - 1); c++)
                d->crossed[c] = far = (int32_t)memob_max(far + 1, turn);
            if (k == n || k / per >= c || (is_backward && d->room[k] > t)) break;
            if (k >= per && turn <= d->crossed[k / per]) {
                turn = d->crossed[k / per];
                given = 1;
            }
            if (k < per || k % per) { /* held keys do not travel to who holds them */
                d->turns[k] = ++turn;
                given = 0;
                gate = d->gates[k];
            }
            k++;
        }
    }
    MEMO_ASSERT(k == n && c == n_nodes); /* 1 */
}

/* The list by distances. */
MEMOI void memoi_messages_by_distance(memoi_messages* m, memob_arrays* scratch) {
    const int64_t n = m->n_ranks, n_nodes = m->n_nodes, per = n / n_nodes;
    memoi_distances d;
    d.places = MEMOB_ARRAY(scratch, int32_t, 5 * n + 3 * n_nodes);
    d.of = MEMOB_ARRAY(scratch, int32_t, memoi_messages_count(m) + 1);
    if (scratch->failed) return;
    d.gates = d.places + n;
    d.room = d.gates + n;
    d.turns = d.room + n;
    d.given = d.turns + n;
    d.held_room = d.given + n;
    d.crossed = d.held_room + n_nodes;
    d.sum = d.crossed + n_nodes;

    /* Turns need rooms, and rooms the order. */
    memoi_distances_order(m, &d, scratch);
    if (!scratch->failed) memoi_messages_find_rooms(m, scratch);
    if (!scratch->failed) memoi_distances_hold(m, &d, scratch);
    if (scratch->failed) return;
    memoi_distances_find_gates(m, &d);
    for (int i = 0; i < 2; i++) {
        memoi_distances_count(m, i, &d);
        for (int32_t k = 0; k < memoi_messages_count(m); k++) {
            m->list[k].turns[i] = d.turns[d.of[k]];
            if (i) m->list[k].turns[2] = d.given[d.of[k]];
        }
        for (int32_t k = 0; k < memoi_messages_crossings(m); k++) {
            memoi_ring_crossing* x = &m->crossings[k];
            const int32_t far = d.of[m->of_crossings[x->first]] / (int32_t)per;
            x->turns[i] = d.crossed[far];
            if (i) x->turns[2] = d.sum[far];
        }
    }
}

/* ---- >>order of messages ------------------------------------------------------------------------
 * Knows: messages and crossings, their times and rooms, as integers.  Knows nothing of positions,
 * heads or streams.
 *
 * A pass is played once: next is always what can begin first.  A rank sends and receives one
 * message at a time, within its node and between nodes at once.
 *
 * 1. Something can begin while anything is left. */

/* A link of a rank. */
typedef struct memoi_play_port {
    int64_t sends, receives, turn_start; /* free from these times on; of its last turn */
    int32_t turn, has[4];                /* in it received and sent: keys, contributions */
} memoi_play_port;

typedef struct memoi_play_rank {
    memoi_play_port links[MEMOI_N_LINKS];
    int64_t computes;                       /* it is free from this time on */
    int32_t n_brought, n_computed, n_given; /* its steps, so far */
    int32_t oldest;                         /* step whose rows may still be in the pool */
    int64_t used, freed;       /* rows that the pool ever had; without those from `oldest` on */
    int32_t n_near, n_ready;   /* messages not brought: of its node; of crossings that are there */
    int32_t n_crossed, n_sums; /* crossings that came to it; of which all contributions have */
} memoi_play_rank;

/* What is known of a message, or INT64_MAX. */
typedef struct memoi_play_step {
    int64_t arrived, computed, left; /* keys; what is computed with them; its contribution */
    int32_t level;                   /* of what is computed: the last turn that it waits for */
} memoi_play_step;
typedef struct memoi_play_crossing {
    int64_t crossed, used, summed, released; /* used, summed: by readers so far */
    int32_t n_used, n_summed, used_level, sum_level, released_level;
} memoi_play_crossing;

/* A rank as a reader, or as one who holds rows, and what it can begin next. */
typedef struct memoi_play_actor {
    int64_t start, later; /* of what starts at the same time the one with less `later` is first */
    int32_t index, is_given; /* of what */
    int32_t at;              /* in heap */
} memoi_play_actor;

/* An actor in the heap, with what it was placed by. */
typedef struct memoi_play_place {
    int64_t start, later;
    int32_t actor;
} memoi_play_place;

typedef struct memoi_play {
    memoi_messages* m;
    int is_backward, is_fixed; /* the order of steps and crossings is given */
    memoi_play_rank* ranks;
    memoi_play_step* steps;
    memoi_play_crossing* crossings;
    int32_t *near, *ready; /* messages of each rank that are not brought */
    int32_t* sums;         /* crossings of each rank */
    memoi_play_actor* actors;
    memoi_play_place* heap; /* of actors; the first one has the earliest start */
    int32_t n_heap;
    int32_t n_left;
    int64_t pool_rows[2]; /* of keys, of held keys */
} memoi_play;

/* A rank looks at so many messages of a kind. */
enum { MEMOI_MESSAGES_LOOK = 3 };

MEMOI int64_t memoi_play_pool_rows(const memoi_ring_message* x) {
    return memoi_messages_is_own(x) ? 0 : memob_align_up(x->n_rows, MEMOI_POOL_ALIGNMENT);
}
MEMOI int32_t memoi_play_of(const memoi_play* p, int32_t r, int32_t k) {
    return p->m->order[p->m->first_of_rank[r] + k];
}
/* When a message may begin, by its link. */
MEMOI int64_t memoi_play_link(const memoi_play* p, int link, int32_t from, int32_t to) {
    return memob_max(p->ranks[from].links[link].sends, p->ranks[to].links[link].receives);
}

/* --- rooms --- */

/* When there is room for the keys of a message more.  The first play finds the order that makes
 * rooms, with rows that leave as they came. */
MEMOI int64_t memoi_play_room(const memoi_play* p, const memoi_ring_message* x) {
    const memoi_play_rank* rank = &p->ranks[x->reader];
    int64_t freed = rank->freed, at = 0;
    if (p->is_fixed) {
        const int32_t after = x->after[MEMOI_POOL_KEYS];
        if (after > rank->n_computed) return INT64_MAX;
        return after ? p->steps[memoi_play_of(p, x->reader, after - 1)].computed : 0;
    }
    for (int32_t k = rank->oldest; rank->used - freed + memoi_play_pool_rows(x) > p->pool_rows[0];
         k++) {
        const int32_t i = memoi_play_of(p, x->reader, k);
        freed += memoi_play_pool_rows(&p->m->list[i]);
        at = p->steps[i].computed;
    }
    return at;
}

/* When rows of a pool of held keys are free of all crossings that came before; level: the last turn
 * that this takes. */
MEMOI int64_t memoi_play_rows_free(const memoi_play* p, int32_t holder, int64_t row, int64_t n_rows,
                                   int32_t* level) {
    const int32_t* held = p->m->held + p->m->first_of_holder[holder];
    int64_t at = 0;
    *level = 0;
    for (int32_t k = 0; k < p->ranks[holder].n_crossed; k++) {
        const memoi_play_crossing* c = &p->crossings[held[k]];
        if (!memoi_messages_overlap(&p->m->crossings[held[k]], row, n_rows)) continue;
        at = memob_max(at, c->released);
        *level = (int32_t)memob_max(*level, c->released_level);
    }
    return at;
}

/* When there is room for a crossing more, and where: as low as is first free. */
MEMOI int64_t memoi_play_held_room(const memoi_play* p, const memoi_ring_crossing* x, int64_t* row,
                                   int32_t* level) {
    const int32_t* held = p->m->held + p->m->first_of_holder[x->holder];
    const int64_t unit = MEMOI_POOL_ALIGNMENT;
    int64_t at = INT64_MAX;
    *row = x->row;
    if (p->is_backward) return memoi_play_rows_free(p, x->holder, x->row, x->n_rows, level);
    for (int32_t k = -1; k < p->ranks[x->holder].n_crossed; k++) {
        const memoi_ring_crossing* c = k < 0 ? NULL : &p->m->crossings[held[k]];
        const int64_t here = c ? memob_align_up(c->row + c->n_rows, unit) : 0;
        int32_t level_here;
        int64_t free_at;
        if (here + x->n_rows > p->pool_rows[1]) continue;
        free_at = memoi_play_rows_free(p, x->holder, here, x->n_rows, &level_here);
        if (free_at > at || (free_at == at && here >= *row)) continue;
        at = free_at;
        *row = here;
        *level = level_here;
    }
    return at;
}

/* --- what can begin first --- */

MEMOI void memoi_play_offer(memoi_play_actor* actor, int64_t start, int32_t index, int is_given) {
    if (start >= actor->start) return;
    actor->start = start;
    actor->index = index;
    actor->is_given = is_given;
}

MEMOI void memoi_play_look_at(const memoi_play* p, memoi_play_actor* actor, int32_t i) {
    const memoi_ring_message* x = &p->m->list[i];
    int64_t at = x->crossing < 0 ? 0 : p->crossings[x->crossing].crossed;
    if (!memoi_messages_is_own(x)) {
        at = memob_max(at, memoi_play_link(p, MEMOI_LINK_RING, x->source, x->reader));
        if (at >= actor->start) return;
        at = memob_max(at, memoi_play_room(p, x));
    }
    memoi_play_offer(actor, at, i, 0);
}

/* What a reader can do next. */
MEMOI void memoi_play_look_reader(const memoi_play* p, memoi_play_actor* actor, int32_t r) {
    const memoi_play_rank* rank = &p->ranks[r];
    const int32_t first = p->m->first_of_rank[r];
    if (p->is_backward && rank->n_given < rank->n_computed) {
        const int32_t i = memoi_play_of(p, r, rank->n_given);
        const memoi_ring_message* x = &p->m->list[i];
        int64_t at = p->steps[i].computed;
        if (!memoi_messages_is_own(x))
            at = memob_max(at, memoi_play_link(p, MEMOI_LINK_RING, r, x->source));
        if (x->crossing < 0) at = memob_max(at, memoi_messages_own_first(p->m, x->owner, 1));
        memoi_play_offer(actor, at, i, 1);
    }
    if (p->is_fixed) {
        if (rank->n_brought < memoi_messages_steps(p->m, r))
            memoi_play_look_at(p, actor, memoi_play_of(p, r, rank->n_brought));
        return;
    }
    for (int32_t k = 0; k < rank->n_near && k < MEMOI_MESSAGES_LOOK; k++)
        memoi_play_look_at(p, actor, p->near[first + k]);
    for (int32_t k = 0; k < rank->n_ready && k < MEMOI_MESSAGES_LOOK; k++)
        memoi_play_look_at(p, actor, p->ready[first + k]);
}

/* What a rank can do next between nodes: rows that it will hold, or a sum that returns. */
MEMOI void memoi_play_look_holder(const memoi_play* p, memoi_play_actor* actor, int32_t r) {
    const memoi_messages* m = p->m;
    const memoi_play_rank* rank = &p->ranks[r];
    const int32_t first = m->first_of_holder[r], n = m->first_of_holder[r + 1] - first;
    const int32_t looks = p->is_fixed ? 1 : MEMOI_MESSAGES_LOOK;
    for (int32_t k = rank->n_crossed; k < n && k < rank->n_crossed + looks; k++) {
        const memoi_ring_crossing* x = &m->crossings[m->held[first + k]];
        int64_t at = memoi_play_link(p, MEMOI_LINK_NODES, x->owner, r), row;
        int32_t level;
        if (at >= actor->start) continue;
        memoi_play_offer(actor, memob_max(at, memoi_play_held_room(p, x, &row, &level)),
                         m->held[first + k], 0);
    }
    if (rank->n_sums) {
        const int32_t c = p->sums[first];
        const int32_t owner = m->crossings[c].owner;
        memoi_play_offer(
            actor,
            memob_max(p->crossings[c].summed, memoi_play_link(p, MEMOI_LINK_NODES, r, owner)), c,
            1);
    }
}

/* Is the link of what an actor begins free at its start?  Others may have taken it since the actor
 * looked; nothing else makes a start later. */
MEMOI int memoi_play_is_free(const memoi_play* p, int32_t a) {
    const memoi_play_actor* actor = &p->actors[a];
    const int link = a % 2 ? MEMOI_LINK_NODES : MEMOI_LINK_RING;
    const int32_t r = a / 2;
    int32_t other;
    if (a % 2) {
        other = p->m->crossings[actor->index].owner;
    } else {
        if (memoi_messages_is_own(&p->m->list[actor->index])) return 1;
        other = p->m->list[actor->index].source;
    }
    return memoi_play_link(p, link, actor->is_given ? r : other, actor->is_given ? other : r) <=
           actor->start;
}

/* Of what can begin at the same time, rows that cross are first; then the rank that has least to
 * compute. */
MEMOI void memoi_play_look(const memoi_play* p, int32_t a) {
    memoi_play_actor* actor = &p->actors[a];
    actor->start = INT64_MAX;
    (a % 2 ? memoi_play_look_holder : memoi_play_look_reader)(p, actor, a / 2);
    actor->later = a % 2 ? actor->is_given - 1 : p->ranks[a / 2].computes;
}

MEMOI int memoi_play_is_before(const memoi_play_place* x, const memoi_play_place* y) {
    if (x->start != y->start) return x->start < y->start;
    return x->later != y->later ? x->later < y->later : x->actor < y->actor;
}
MEMOI void memoi_play_put(memoi_play* p, int32_t i, memoi_play_place place) {
    p->heap[i] = place;
    p->actors[place.actor].at = i;
}
MEMOI void memoi_play_sift(memoi_play* p, int32_t a) {
    const memoi_play_actor* actor = &p->actors[a];
    const memoi_play_place place = {actor->start, actor->later, a};
    const memoi_play_place* heap = p->heap;
    int32_t i = actor->at;
    while (i && memoi_play_is_before(&place, &heap[(i - 1) / 2])) {
        memoi_play_put(p, i, heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= p->n_heap) break;
        child += child + 1 < p->n_heap && memoi_play_is_before(&heap[child + 1], &heap[child]);
        if (!memoi_play_is_before(&heap[child], &place)) break;
        memoi_play_put(p, i, heap[child]);
        i = child;
    }
    memoi_play_put(p, i, place);
}
/* What an actor begins next, or when, may have changed. */
MEMOI void memoi_play_look_again(memoi_play* p, int32_t a) {
    memoi_play_look(p, a);
    memoi_play_sift(p, a);
}

/* --- what begins --- */

/* The turn of what begins at this time, behind turn `level`: the present one of both ranks, if they
 * have no such message in it. */
MEMOI int32_t memoi_play_turn(memoi_play* p, int link, int32_t from, int32_t to, int is_given,
                              int64_t at, int32_t level) {
    const int32_t ends[2] = {to, from};
    int32_t turn = level + 1;
    for (int i = 0; i < 2; i++) {
        const memoi_play_port* x = &p->ranks[ends[i]].links[link];
        const int is_full = x->has[2 * is_given + i] || at - x->turn_start > p->m->lead;
        turn = (int32_t)memob_max(turn, x->turn + is_full);
    }
    for (int i = 0; i < 2; i++) {
        memoi_play_port* x = &p->ranks[ends[i]].links[link];
        if (x->turn != turn) {
            memset(x->has, 0, sizeof x->has);
            x->turn_start = at;
        }
        x->turn = turn;
        x->has[2 * is_given + i] = 1;
    }
    return turn;
}

/* Takes an entry from a queue of n + 1. */
MEMOI void memoi_play_take(int32_t* queue, int32_t n, int32_t entry) {
    int32_t k = 0;
    while (queue[k] != entry) k++;
    memmove(queue + k, queue + k + 1, (size_t)(n - k) * sizeof *queue);
}

/* A reader has read rows of a crossing. */
MEMOI void memoi_play_use(memoi_play* p, int32_t c, int64_t at, int32_t level) {
    memoi_play_crossing* x = &p->crossings[c];
    x->used = memob_max(x->used, at);
    x->used_level = (int32_t)memob_max(x->used_level, level);
    if (++x->n_used < p->m->crossings[c].n_readers || p->is_backward) return;
    x->released = x->used;
    x->released_level = x->used_level;
    memoi_play_look_again(p, 2 * p->m->crossings[c].holder + 1);
}

/* The steps that have their keys, and room for what they contribute. */
MEMOI void memoi_play_compute(memoi_play* p, int32_t r) {
    memoi_play_rank* rank = &p->ranks[r];
    while (rank->n_computed < rank->n_brought) {
        const int32_t i = memoi_play_of(p, r, rank->n_computed);
        const memoi_ring_message* x = &p->m->list[i];
        const int32_t after = p->is_backward ? x->after[MEMOI_POOL_GRADIENTS] : 0;
        memoi_play_step* step = &p->steps[i];
        step->level = x->turns[p->is_backward];
        if (after > rank->n_given) return;
        if (after) {
            const int32_t before = memoi_play_of(p, r, after - 1);
            step->level = (int32_t)memob_max(step->level, p->m->list[before].turns[2]);
            rank->computes = memob_max(rank->computes, p->steps[before].left);
        }
        if (rank->n_computed)
            step->level = (int32_t)memob_max(
                step->level, p->steps[memoi_play_of(p, r, rank->n_computed - 1)].level);
        rank->computes =
            memob_max(rank->computes, step->arrived) + memoi_messages_cost(x->work, p->is_backward);
        step->computed = rank->computes;
        rank->n_computed++;
        if (memoi_messages_is_own(x)) memoi_play_use(p, x->crossing, step->computed, step->level);
    }
}

/* Keys leave for their reader; in the first play they become those of its next step. */
MEMOI void memoi_play_bring(memoi_play* p, int32_t i, int64_t start) {
    memoi_messages* m = p->m;
    memoi_ring_message* x = &m->list[i];
    const int32_t r = x->reader, first = m->first_of_rank[r];
    memoi_play_rank* rank = &p->ranks[r];
    memoi_play_step* step = &p->steps[i];
    const int32_t after = p->is_fixed ? x->after[MEMOI_POOL_KEYS] : rank->n_brought;
    int32_t level = after ? p->steps[memoi_play_of(p, r, after - 1)].level : 0;
    step->arrived = start;
    if (x->crossing >= 0)
        level = (int32_t)memob_max(level, m->crossings[x->crossing].turns[p->is_backward]);
    if (!p->is_fixed) {
        memoi_play_take((x->crossing < 0 ? p->near : p->ready) + first,
                        x->crossing < 0 ? --rank->n_near : --rank->n_ready, i);
        m->order[first + rank->n_brought] = i;
    }

    /* It travels, and a row that has crossed may be passed on. */
    x->step = ++rank->n_brought;
    x->turns[p->is_backward] = level;
    if (!memoi_messages_is_own(x)) {
        x->turns[p->is_backward] =
            memoi_play_turn(p, MEMOI_LINK_RING, x->source, r, 0, start, level);
        step->arrived += x->n_rows * m->times[MEMOI_LINK_RING][0];
        rank->links[MEMOI_LINK_RING].receives = step->arrived;
        p->ranks[x->source].links[MEMOI_LINK_RING].sends = step->arrived;
        if (x->crossing >= 0)
            memoi_play_use(p, x->crossing, step->arrived, x->turns[p->is_backward]);
    }
    if (p->is_fixed) return;

    /* Rooms of what is computed by then are free. */
    rank->used += memoi_play_pool_rows(x);
    while (rank->oldest < rank->n_computed) {
        const int32_t oldest = memoi_play_of(p, r, rank->oldest);
        if (p->steps[oldest].computed > start) break;
        rank->freed += memoi_play_pool_rows(&m->list[oldest]);
        rank->oldest++;
    }
}

/* A contribution leaves. */
MEMOI void memoi_play_give(memoi_play* p, int32_t i, int64_t start) {
    memoi_messages* m = p->m;
    memoi_ring_message* x = &m->list[i];
    memoi_play_rank* rank = &p->ranks[x->reader];
    memoi_play_crossing* c = &p->crossings[memob_max(x->crossing, 0)];
    rank->n_given++;
    x->turns[2] =
        memoi_play_turn(p, MEMOI_LINK_RING, x->reader, x->source, 1, start, p->steps[i].level);
    p->steps[i].left = start;
    if (!memoi_messages_is_own(x)) {
        p->steps[i].left += x->n_rows * m->times[MEMOI_LINK_RING][1];
        rank->links[MEMOI_LINK_RING].sends = p->steps[i].left;
        p->ranks[x->source].links[MEMOI_LINK_RING].receives = p->steps[i].left;
    }
    if (x->crossing < 0) return;
    c->summed = memob_max(c->summed, p->steps[i].left);
    c->sum_level = (int32_t)memob_max(c->sum_level, x->turns[2]);
    if (++c->n_summed < m->crossings[x->crossing].n_readers) return;
    p->sums[m->first_of_holder[x->source] + p->ranks[x->source].n_sums++] = x->crossing;
    memoi_play_look_again(p, 2 * x->source + 1);
}

/* Rows cross to who will hold them; their readers may get them. */
MEMOI void memoi_play_cross(memoi_play* p, int32_t c, int64_t start) {
    memoi_messages* m = p->m;
    memoi_ring_crossing* x = &m->crossings[c];
    memoi_play_rank* rank = &p->ranks[x->holder];
    int32_t *held = m->held + m->first_of_holder[x->holder], level = 0, k = rank->n_crossed;
    (void)memoi_play_held_room(p, x, &x->row, &level);
    while (held[k] != c) k++;
    for (; k > rank->n_crossed; k--) held[k] = held[k - 1];
    held[rank->n_crossed++] = c;
    x->number = rank->n_crossed;
    x->turns[p->is_backward] =
        memoi_play_turn(p, MEMOI_LINK_NODES, x->owner, x->holder, 0, start, level);
    p->crossings[c].crossed = start + x->n_rows * m->times[MEMOI_LINK_NODES][0];
    rank->links[MEMOI_LINK_NODES].receives = p->crossings[c].crossed;
    p->ranks[x->owner].links[MEMOI_LINK_NODES].sends = p->crossings[c].crossed;
    for (k = x->first; k < x->first + x->n_readers; k++) {
        const int32_t i = m->of_crossings[k], reader = m->list[i].reader;
        if (!p->is_fixed) p->ready[m->first_of_rank[reader] + p->ranks[reader].n_ready++] = i;
        memoi_play_look_again(p, 2 * reader);
    }
}

/* The sum of contributions returns. */
MEMOI void memoi_play_return(memoi_play* p, int32_t c, int64_t start) {
    memoi_messages* m = p->m;
    memoi_ring_crossing* x = &m->crossings[c];
    memoi_play_rank* rank = &p->ranks[x->holder];
    memoi_play_crossing* of = &p->crossings[c];
    memoi_play_take(p->sums + m->first_of_holder[x->holder], --rank->n_sums, c);
    x->turns[2] =
        memoi_play_turn(p, MEMOI_LINK_NODES, x->holder, x->owner, 1, start, of->sum_level);
    of->released = start + x->n_rows * m->times[MEMOI_LINK_NODES][1];
    of->released_level = x->turns[2];
    rank->links[MEMOI_LINK_NODES].sends = of->released;
    p->ranks[x->owner].links[MEMOI_LINK_NODES].receives = of->released;
}

/* --- a pass --- */

/* Nothing has travelled, and every rank looks for its first message. */
MEMOI void memoi_play_begin(memoi_play* p, memob_arrays* scratch) {
    const memoi_messages* m = p->m;
    const int32_t n = m->n_ranks, n_messages = memoi_messages_count(m);
    const int32_t n_crossings = memoi_messages_crossings(m);
    p->ranks = MEMOB_ARRAY(scratch, memoi_play_rank, n);
    p->steps = MEMOB_ARRAY(scratch, memoi_play_step, n_messages + 1);
    p->crossings = MEMOB_ARRAY(scratch, memoi_play_crossing, n_crossings + 1);
    p->near = MEMOB_ARRAY(scratch, int32_t, n_messages + 1);
    p->ready = MEMOB_ARRAY(scratch, int32_t, n_messages + 1);
    p->sums = MEMOB_ARRAY(scratch, int32_t, n_crossings + 1);
    p->actors = MEMOB_ARRAY(scratch, memoi_play_actor, 2 * (int64_t)n);
    p->heap = MEMOB_ARRAY(scratch, memoi_play_place, 2 * (int64_t)n);
    p->pool_rows[0] = memoi_pool_rows(m->shape, MEMOI_POOL_KEYS);
    p->pool_rows[1] = memoi_pool_rows(m->shape, MEMOI_POOL_HELD);
    if (scratch->failed) return;

    p->n_left = (n_messages + n_crossings) * (1 + p->is_backward);
    for (int32_t c = 0; c < n_crossings; c++)
        p->crossings[c].crossed = p->crossings[c].released = INT64_MAX;
    for (int32_t r = 0; r < n; r++) {
        p->ranks[r].computes = memoi_messages_own_first(m, r, p->is_backward);
        for (int32_t k = m->first_of_rank[r]; k < m->first_of_rank[r + 1] && !p->is_fixed; k++)
            if (m->list[m->order[k]].crossing < 0)
                p->near[m->first_of_rank[r] + p->ranks[r].n_near++] = m->order[k];
    }
    for (int32_t a = 0; a < 2 * n; a++) {
        const int32_t* first = (a % 2 ? m->first_of_holder : m->first_of_rank) + a / 2;
        if (first[0] == first[1]) continue;
        p->actors[a].at = p->n_heap++;
        memoi_play_look_again(p, a);
    }
}

/* Plays a pass.  If the order of steps is not fixed, it sets that, and crossings' rooms. */
MEMOI void memoi_play_pass(memoi_messages* m, int is_backward, int is_fixed,
                           memob_arrays* scratch) {
    memoi_play p = MEMO_ZERO(memoi_play);
    p.m = m;
    p.is_backward = is_backward;
    p.is_fixed = is_fixed;
    memoi_play_begin(&p, scratch);
    while (p.n_left && !scratch->failed) {
        const int32_t a = p.heap[0].actor;
        memoi_play_actor* actor = &p.actors[a];
        const int64_t start = actor->start;
        if (memoi_play_is_free(&p, a)) {
            MEMO_ASSERT(start < INT64_MAX); /* 1 */
            p.n_left--;
            if (a % 2)
                (actor->is_given ? memoi_play_return : memoi_play_cross)(&p, actor->index, start);
            else
                (actor->is_given ? memoi_play_give : memoi_play_bring)(&p, actor->index, start);
            if (a % 2 == 0) memoi_play_compute(&p, a / 2);
        }
        memoi_play_look_again(&p, a);
    }
}

/* ---- >>clock of messages ------------------------------------------------------------------------
 * Knows: a list of messages in turns.  Knows nothing of how the list was found.
 *
 * The time of a pass: a turn begins when all its messages of a rank may, and its other ends. */

/* A rank in a turn. */
typedef struct memoi_clock_rank {
    int64_t computed, exchanged[MEMOI_N_LINKS]; /* ends of what it did last */
    int32_t n_steps;                            /* computed so far */
    int64_t begin, start, out; /* of the present turn: when it may, and does; the time of what it
                                  sends */
    int32_t turn;              /* that these are of */
} memoi_clock_rank;

typedef struct memoi_clock {
    const memoi_messages* m;
    int is_backward;
    memoi_clock_rank* ranks;
    int64_t *arrived, *computed, *left;          /* of messages, as in memoi_play_step */
    int64_t *crossed, *used, *summed, *released; /* of crossings */
    int32_t *in_turn, n_in_turn;                 /* ranks of the present turn */
    struct memoi_clock_way* ways;                /* of its events */
} memoi_clock;

/* Whom something travels from and to. */
typedef struct memoi_clock_way {
    int32_t from, to;
    int64_t time; /* on the link */
} memoi_clock_way;

MEMOI memoi_clock_way memoi_clock_way_of(const memoi_messages* m,
                                         const memoi_messages_event* event) {
    const int link = event->turn % MEMOI_N_LINKS;
    const int64_t time = m->times[link][event->is_given];
    memoi_clock_way way;
    int32_t from, to;
    if (link == MEMOI_LINK_NODES) {
        from = m->crossings[event->index].owner;
        to = m->crossings[event->index].holder;
        way.time = m->crossings[event->index].n_rows * time;
    } else {
        from = m->list[event->index].source;
        to = m->list[event->index].reader;
        way.time = from == to ? 0 : m->list[event->index].n_rows * time;
    }
    way.from = event->is_given ? to : from;
    way.to = event->is_given ? from : to;
    return way;
}

/* The end of a step of a reader, and of all before it. */
MEMOI int64_t memoi_clock_compute(memoi_clock* p, int32_t r, int32_t step) {
    const memoi_messages* m = p->m;
    memoi_clock_rank* rank = &p->ranks[r];
    const int32_t* order = m->order + m->first_of_rank[r] - 1;
    while (rank->n_steps < step) {
        const int32_t i = order[++rank->n_steps];
        const memoi_ring_message* x = &m->list[i];
        const int32_t after = p->is_backward ? x->after[MEMOI_POOL_GRADIENTS] : 0;
        const int64_t arrived = memoi_messages_is_own(x) ? p->crossed[x->crossing] : p->arrived[i];
        rank->computed = memob_max(rank->computed, arrived);
        if (after) rank->computed = memob_max(rank->computed, p->left[order[after]]);
        rank->computed += memoi_messages_cost(x->work, p->is_backward);
        p->computed[i] = rank->computed;
    }
    return step ? p->computed[order[step]] : 0;
}

/* When the room of a crossing is free of those before. */
MEMOI int64_t memoi_clock_room(memoi_clock* p, const memoi_ring_crossing* x) {
    const memoi_messages* m = p->m;
    const int32_t* held = m->held + m->first_of_holder[x->holder];
    int64_t at = 0;
    for (int32_t k = 0; k < x->number - 1; k++) {
        const memoi_ring_crossing* before = &m->crossings[held[k]];
        if (!memoi_messages_overlap(before, x->row, x->n_rows)) continue;
        at = memob_max(at, memob_max(p->used[held[k]], p->released[held[k]]));
        for (int32_t i = before->first; i < before->first + before->n_readers; i++) {
            const memoi_ring_message* by = &m->list[m->of_crossings[i]];
            if (memoi_messages_is_own(by))
                at = memob_max(at, memoi_clock_compute(p, x->holder, by->step));
        }
    }
    return at;
}

/* When each end of a message may begin it: {from, to}. */
MEMOI void memoi_clock_gates(memoi_clock* p, const memoi_messages_event* event, int64_t gates[2]) {
    const memoi_messages* m = p->m;
    gates[0] = gates[1] = 0;
    if (event->turn % MEMOI_N_LINKS == MEMOI_LINK_NODES) {
        const memoi_ring_crossing* x = &m->crossings[event->index];
        if (!event->is_given) gates[1] = memoi_clock_room(p, x);
        if (event->is_given) gates[0] = p->summed[event->index];
    } else {
        const memoi_ring_message* x = &m->list[event->index];
        if (!event->is_given) {
            if (x->crossing >= 0) gates[0] = p->crossed[x->crossing];
            gates[1] = memoi_clock_compute(p, x->reader, x->after[MEMOI_POOL_KEYS]);
        } else {
            gates[0] = memoi_clock_compute(p, x->reader, x->step);
            if (x->crossing < 0) gates[1] = memoi_messages_own_first(m, x->owner, 1);
        }
    }
}

/* A rank takes part in the present turn, behind a time. */
MEMOI memoi_clock_rank* memoi_clock_take_part(memoi_clock* p, int32_t r, int32_t turn,
                                              int64_t gate) {
    memoi_clock_rank* rank = &p->ranks[r];
    if (rank->turn != turn + 1) {
        rank->turn = turn + 1;
        rank->begin = rank->exchanged[turn % MEMOI_N_LINKS];
        rank->out = 0;
        p->in_turn[p->n_in_turn++] = r;
    }
    rank->begin = memob_max(rank->begin, gate);
    return rank;
}

/* What an event brought is there. */
MEMOI void memoi_clock_note(memoi_clock* p, const memoi_messages_event* event, int64_t at) {
    const int is_of_nodes = event->turn % MEMOI_N_LINKS == MEMOI_LINK_NODES;
    const int32_t c = is_of_nodes ? event->index : p->m->list[event->index].crossing;
    if (is_of_nodes) {
        (event->is_given ? p->released : p->crossed)[c] = at;
        return;
    }
    (event->is_given ? p->left : p->arrived)[event->index] = at;
    if (c < 0) return;
    if (event->is_given) p->summed[c] = memob_max(p->summed[c], at);
    if (!event->is_given) p->used[c] = memob_max(p->used[c], at);
}

/* A turn of n events: both ends of a message begin, what ranks send leaves, and arrives. */
MEMOI void memoi_clock_exchange(memoi_clock* p, const memoi_messages_event* events, int32_t n) {
    const int link = events->turn % MEMOI_N_LINKS;
    p->n_in_turn = 0;

    /* When each end may begin. */
    for (int32_t i = 0; i < n; i++) {
        const memoi_clock_way way = memoi_clock_way_of(p->m, &events[i]);
        int64_t gates[2];
        p->ways[i] = way;
        memoi_clock_gates(p, &events[i], gates);
        memoi_clock_take_part(p, way.from, events->turn, gates[0])->out += way.time;
        (void)memoi_clock_take_part(p, way.to, events->turn, gates[1]);
    }
    for (int32_t k = 0; k < p->n_in_turn; k++)
        p->ranks[p->in_turn[k]].start = p->ranks[p->in_turn[k]].begin;
    for (int32_t i = 0; i < n; i++) {
        const memoi_clock_way way = p->ways[i];
        memoi_clock_rank *a = &p->ranks[way.from], *b = &p->ranks[way.to];
        a->start = memob_max(a->start, b->begin);
        b->start = memob_max(b->start, a->begin);
    }

    /* When what a rank sends has left, and what it receives is there. */
    for (int32_t k = 0; k < p->n_in_turn; k++) {
        memoi_clock_rank* rank = &p->ranks[p->in_turn[k]];
        rank->exchanged[link] = rank->start + rank->out;
    }
    for (int32_t i = 0; i < n; i++) {
        const memoi_clock_way way = p->ways[i];
        const memoi_clock_rank* from = &p->ranks[way.from];
        memoi_clock_rank* to = &p->ranks[way.to];
        to->exchanged[link] = memob_max(to->exchanged[link], from->start + from->out);
    }
    for (int32_t i = 0; i < n; i++) {
        const memoi_clock_way way = p->ways[i];
        memoi_clock_note(
            p, &events[i],
            memob_max(p->ranks[way.from].exchanged[link], p->ranks[way.to].exchanged[link]));
    }
}

/* The events of a pass by turns. */
MEMOI void memoi_messages_sort(memoi_messages* m, int is_backward, memob_arrays* scratch) {
    const int32_t n = memoi_messages_count(m), n_crossings = memoi_messages_crossings(m);
    const int32_t n_most = (n + n_crossings) * (1 + is_backward);
    memoi_messages_event* events = MEMOB_ARRAY(scratch, memoi_messages_event, n_most + 1);
    memoi_messages_event* all = MEMOB_ARRAY(scratch, memoi_messages_event, n_most + 1);
    memob_keyed* order = MEMOB_ARRAY(scratch, memob_keyed, n_most + 1);
    int32_t n_events = 0;
    if (scratch->failed) return;
    for (int is_given = 0; is_given <= is_backward; is_given++) {
        for (int32_t i = 0; i < n; i++) {
            const memoi_messages_event event = {
                m->list[i].turns[is_backward + is_given] * MEMOI_N_LINKS + MEMOI_LINK_RING, i,
                is_given};
            if (is_given || !memoi_messages_is_own(&m->list[i])) all[n_events++] = event;
        }
        for (int32_t c = 0; c < n_crossings; c++) {
            const memoi_messages_event event = {
                m->crossings[c].turns[is_backward + is_given] * MEMOI_N_LINKS + MEMOI_LINK_NODES, c,
                is_given};
            all[n_events++] = event;
        }
    }

    for (int32_t i = 0; i < n_events; i++) order[i] = memob_keyed_of(all[i].turn, i);
    memob_keyed_sort(order, n_events);
    for (int32_t i = 0; i < n_events; i++) events[i] = all[order[i].index];
    m->events[is_backward] = events;
    m->n_events[is_backward] = n_events;
}

/* The time of a pass. */
MEMOI int64_t memoi_messages_time(const memoi_messages* m, int is_backward, memob_arrays* scratch) {
    const int32_t n = m->n_ranks;
    const int64_t n_messages = memoi_messages_count(m) + 1;
    const int64_t n_crossings = memoi_messages_crossings(m) + 1;
    const memoi_messages_event* events = m->events[is_backward];
    memoi_clock p = MEMO_ZERO(memoi_clock);
    int64_t end = 0;
    p.m = m;
    p.is_backward = is_backward;
    p.ranks = MEMOB_ARRAY(scratch, memoi_clock_rank, n);
    p.arrived = MEMOB_ARRAY(scratch, int64_t, 3 * n_messages);
    p.crossed = MEMOB_ARRAY(scratch, int64_t, 4 * n_crossings);
    p.in_turn = MEMOB_ARRAY(scratch, int32_t, n);
    p.ways = MEMOB_ARRAY(scratch, memoi_clock_way, 2 * (int64_t)n); /* keys and contributions */
    if (scratch->failed) return 0;
    p.computed = p.arrived + n_messages;
    p.left = p.computed + n_messages;
    p.used = p.crossed + n_crossings;
    p.summed = p.used + n_crossings;
    p.released = p.summed + n_crossings;

    for (int32_t r = 0; r < n; r++)
        p.ranks[r].computed = memoi_messages_own_first(m, r, is_backward);
    for (int32_t i = 0, next; i < m->n_events[is_backward]; i = next) {
        for (next = i; next < m->n_events[is_backward] && events[next].turn == events[i].turn;)
            next++;
        memoi_clock_exchange(&p, events + i, next - i);
    }
    for (int32_t r = 0; r < n; r++) {
        (void)memoi_clock_compute(&p, r, memoi_messages_steps(m, r));
        p.ranks[r].computed +=
            memoi_messages_own(m, r, is_backward) - memoi_messages_own_first(m, r, is_backward);
        end = memob_max(end, p.ranks[r].computed);
        for (int link = 0; link < MEMOI_N_LINKS; link++)
            end = memob_max(end, p.ranks[r].exchanged[link]);
    }
    return end;
}

/* --- the choice --- */

/* Receiving is taken for this part of a forward, in the mean of the ranks; links between nodes for
 * so much slower. */
enum { MEMOI_LINKS_PART = 6, MEMOI_NODES_SLOWER = 10 };

/* Orders of a list: turns by distance; steps by distance, turns by time; both by time. */
enum { MEMOI_ORDER_DISTANCES = 0, MEMOI_ORDER_STEPS, MEMOI_ORDER_TIME, MEMOI_N_LIST_ORDERS };

/* A pass of a list by distance gets another order.  A forward comes first: it makes rooms.  Turns
 * follow from the rooms that steps have then: those of a play, which counts free rows alone, may
 * let two messages share a turn of which one has no room for long. */
MEMOI void memoi_messages_put_in_order(memoi_messages* m, int order, int is_backward,
                                       memob_arrays* scratch) {
    const int makes_steps = order == MEMOI_ORDER_TIME && !is_backward;
    if (makes_steps) memoi_messages_by_rows(m, scratch);
    if (order != MEMOI_ORDER_DISTANCES && !scratch->failed)
        memoi_play_pass(m, is_backward, !makes_steps, scratch);
    if (makes_steps && !scratch->failed) {
        memoi_messages_find_rooms(m, scratch);
        if (!scratch->failed) memoi_play_pass(m, 0, 1, scratch); /* rooms may be free later */
    }
    if (!scratch->failed) memoi_messages_sort(m, is_backward, scratch);
}

/* What each rank and link is busy with in a pass.  Keys and contributions may arrive at once. */
typedef struct memoi_clock_load {
    int64_t computes, sends[MEMOI_N_LINKS], receives[MEMOI_N_LINKS][2];
} memoi_clock_load;

MEMOI void memoi_clock_add_load(const memoi_messages* m, int link, int32_t from, int32_t to,
                                int64_t n_rows, int is_backward, memoi_clock_load* loads) {
    for (int is_given = 0; is_given <= is_backward && from != to; is_given++) {
        const int64_t time = n_rows * m->times[link][is_given];
        loads[is_given ? to : from].sends[link] += time;
        loads[is_given ? from : to].receives[link][is_given] += time;
    }
}

/* No order of a pass takes less: the time of the rank that computes, sends or receives longest. */
MEMOI int64_t memoi_messages_least(const memoi_messages* m, int is_backward,
                                   memob_arrays* scratch) {
    const int64_t n = m->n_ranks;
    memoi_clock_load* loads = MEMOB_ARRAY(scratch, memoi_clock_load, n);
    int64_t most = 0;
    if (scratch->failed) return 0;
    for (int32_t i = 0; i < memoi_messages_count(m); i++) {
        const memoi_ring_message* x = &m->list[i];
        memoi_clock_add_load(m, MEMOI_LINK_RING, x->source, x->reader, x->n_rows, is_backward,
                             loads);
        loads[x->reader].computes += memoi_messages_cost(x->work, is_backward);
    }
    for (int32_t i = 0; i < memoi_messages_crossings(m); i++) {
        const memoi_ring_crossing* x = &m->crossings[i];
        memoi_clock_add_load(m, MEMOI_LINK_NODES, x->owner, x->holder, x->n_rows, is_backward,
                             loads);
    }
    for (int32_t r = 0; r < n; r++) {
        const memoi_clock_load* load = &loads[r];
        most = memob_max(most, load->computes + memoi_messages_own(m, r, is_backward));
        for (int link = 0; link < MEMOI_N_LINKS; link++) {
            most = memob_max(most, load->sends[link]);
            most = memob_max(most, memob_max(load->receives[link][0], load->receives[link][1]));
        }
    }
    return most;
}

/* An order of a list, made so far. */
typedef struct memoi_messages_trial {
    memoi_messages list;
    int32_t n_passes; /* made */
    int64_t least;    /* time of these, and the least of the others */
} memoi_messages_trial;

/* Makes one pass more. */
MEMOI void memoi_messages_try(const memoi_messages* by_distance, int order, const int64_t least[2],
                              memoi_messages_trial* trial, memob_arrays* scratch) {
    const int pass = trial->n_passes++;
    if (!pass) memoi_messages_copy(by_distance, &trial->list, scratch);
    if (!scratch->failed) memoi_messages_put_in_order(&trial->list, order, pass, scratch);
    if (!scratch->failed)
        trial->least += memoi_messages_time(&trial->list, pass, scratch) - least[pass];
}

/* The order that takes least in both passes is the list, or one that takes a hundredth more than
 * any can.  What takes longer already than another order may is not made further. */
MEMOI void memoi_messages_choose(memoi_messages* m, memob_arrays* scratch) {
    const int64_t least[2] = {memoi_messages_least(m, 0, scratch),
                              memoi_messages_least(m, 1, scratch)};
    const int64_t enough = least[0] + least[1] + (least[0] + least[1]) / 100;
    memoi_messages_trial trials[MEMOI_N_LIST_ORDERS];
    int best = 0;
    for (int i = 0; i < MEMOI_N_LIST_ORDERS; i++) {
        trials[i].n_passes = 0;
        trials[i].least = least[0] + least[1];
    }
    while (trials[best].n_passes < 2) {
        memoi_messages_try(m, best, least, &trials[best], scratch);
        if (scratch->failed) return;
        best = 0;
        for (int i = 1; i < MEMOI_N_LIST_ORDERS; i++) {
            const int64_t a = memob_max(trials[i].least, enough);
            const int64_t b = memob_max(trials[best].least, enough);
            if (a < b || (a == b && trials[i].n_passes > trials[best].n_passes)) best = i;
        }
    }
    *m = trials[best].list;
}

MEMOI void memoi_messages_make(memoi_messages* m, memob_arrays* scratch) {
    const int64_t n = m->n_ranks;
    for (int64_t i = 0; i < n * n; i++) {
        m->n_rows += m->rows_of[i];
        m->work += m->work_of[i];
    }
    m->times[0][0] = m->n_rows ? m->work / MEMOI_LINKS_PART / m->n_rows : 0;
    m->times[1][0] = MEMOI_NODES_SLOWER * m->times[0][0];
    for (int link = 0; link < MEMOI_N_LINKS; link++)
        m->times[link][1] = m->times[link][0] * (memo_type_bytes(m->shape->carried_type) /
                                                 memo_type_bytes(m->shape->type));
    m->lead = m->work / n / 100;
    memoi_messages_add_all(m, scratch);
    if (!scratch->failed) memoi_messages_by_distance(m, scratch);
    if (!scratch->failed) memoi_messages_choose(m, scratch);
}

/* ---- >>exchange plans ---------------------------------------------------------------------------
 * Knows: the runs of each ring rank, the masks, and the list of messages.  Knows nothing of
 * tensors, heads or streams.
 *
 * 1. Pieces have as many runs as their rank at most, and one more each.
 * 2. What a reader reads of held rows is among these.
 * 3. A number of held rows is one that this rank holds. */

/* Positions that a run of queries sees, without a gap. */
typedef struct memoi_exchange_sight {
    int64_t begin, end;
    int32_t run;
} memoi_exchange_sight;

/* Step s of a sequence: some runs of queries, from row q_row on, against keys, which arrive behind
 * those of earlier sequences.  Without segments nothing is computed. */
typedef struct memoi_exchange_step {
    const memo_run *q_runs, *k_runs;
    int32_t n_q_runs, n_k_runs;
    int64_t q_row, n_q_rows, k_row, n_k_rows;
    memoi_block_segments seen; /* of these rows */
} memoi_exchange_step;

/* Rows of another node's rank that this rank holds for its own node, and where they lie in the
 * pools of held rows. */
typedef struct memoi_exchange_held {
    int32_t owner;
    int32_t own_step; /* this rank's that reads them; 0: none */
    int64_t n_rows, row;
} memoi_exchange_held;

/* One group of messages of this rank.  Within the node it brings the keys of step k, sends keys to
 * a reader, returns what step `given` contributed to gradients, takes what a giver contributed;
 * keys are own, or held as number read_of, and so are gradients.  Between nodes k and `given` are
 * numbers of held rows, which come and whose sum returns; reader and giver are nodes.  0, or
 * rank -1: none. */
typedef struct memoi_exchange_turn {
    int32_t k, given;
    int32_t reader, giver, read_of, given_of;
    int32_t number; /* ascends, and is the same on all ranks that take part */
    int32_t gate;   /* the step before which it may not begin; 0: the start */
} memoi_exchange_turn;

/* The plan of one rank. */
struct memo_exchange {
    memo_sp_attention* attention;
    memoi_shape shape; /* the attention's, with tokens */
    memoi_shape_tokens tokens[2];
    memob_arrays arrays;
    /* The segments of each part and level, which count as a mask each: of positions, those of mask
     * m from first_seen[m]. */
    memo_segment* seen;
    int64_t* first_seen; /* (n_parts * n_levels + 1) */
    int32_t n_levels;
    memo_launch_kind launches;
    int64_t n_words;              /* device arrays of all steps' segments */
    void* given_memory;           /* for these, of the caller; NULL: the flight has it */
    struct memoi_flight* flight;  /* NULL: not begun */
    struct memo_exchange* next;   /* of those that no stream uses */
    int32_t has_begun, has_ended; /* ranks have met; destroyed */
    memo_label agreed;            /* digests of all that ranks must agree on, except the pass */
    int32_t has_sinks;
    /* Steps in which no rank reads anything are left out. */
    int32_t last_step;
    int64_t first_unset;        /* rows of queries from here on are not all set by step 0 */
    int64_t most_runs;          /* of a rank */
    int32_t* owners;            /* (last_step + 1): step s reads the keys of owners[s] */
    int32_t* held_of;           /* (last_step + 1): held here as this number; 0: they are not */
    int64_t* n_rows;            /* (2, ring) of all sequences, by rank: sent to it; read of it */
    memoi_exchange_step* steps; /* (last_step + 1, n_parts, n_levels), and behind these: */
    int32_t splits_own;         /* two steps more: a backward does step 0 in two */
    /* (MEMOI_N_POOLS, last_step + 2) by steps; behind the last step the contribution to the own
     * keys, if others contribute, too (has_others). */
    memoi_exchange_room* rooms;
    int32_t has_others;
    int64_t taken_row; /* where contributions arrive */
    /* (2): of forward, of backward, in the order in which they are enqueued. */
    memoi_exchange_turn* turns[2];
    int32_t n_turns[2];
    /* (3, ring, n_parts) by rank: rows that this rank sends from its own, reads, gets. */
    memoi_exchange_pieces* pieces;
    /* Positions that runs of this rank's queries see: of mask m from first_sight[m]. */
    memoi_exchange_sight* sights;
    int64_t* first_sight; /* (n_parts * n_levels + 1) */
    memoi_pairs pairs;    /* while the plan is made */
    memo_run*
        piece_runs; /* (last_step + 1, n_parts, most runs): positions of the rows that arrive */
    /* Over nodes: own rows that cross (n_nodes, n_parts), and how many; all rows of others that
     * this node reads (ring, n_parts); of those held here what readers read, as they lie (n_nodes
     * of owners, places of readers, n_parts). */
    memoi_exchange_pieces *crossing, *whole, *read;
    int64_t* crossing_rows;    /* (n_nodes) */
    int32_t crosses;           /* to any node */
    memoi_exchange_held* held; /* (n_held), in the order in which they come */
    int32_t n_held;
    int32_t has_own_work; /* step 0 computes, or what a split leaves of it */
};

MEMOI const memoi_exchange_step* memoi_exchange_step_of(const memo_exchange* plan, int32_t s,
                                                        int32_t mask) {
    return &plan->steps[(int64_t)s * plan->shape.n_parts * plan->n_levels + mask];
}
/* The rows of all sequences that a rank is sent, or sends. */
MEMOI int64_t* memoi_exchange_rows_of(const memo_exchange* plan, int is_receive, int32_t rank) {
    return &plan->n_rows[is_receive * plan->shape.sharding.ring + rank];
}
enum { MEMOI_PIECES_SENT = 0, MEMOI_PIECES_READ, MEMOI_PIECES_GOT };
MEMOI memoi_exchange_pieces* memoi_exchange_pieces_of(const memo_exchange* plan, int which,
                                                      int32_t rank, int32_t part) {
    const int64_t rd = plan->shape.sharding.ring;
    return &plan->pieces[(which * rd + rank) * plan->shape.n_parts + part];
}

/* Ranks of a node. */
MEMOI int32_t memoi_exchange_places(const memo_exchange* plan) {
    return plan->shape.sharding.ring / plan->shape.n_nodes;
}
MEMOI const memoi_exchange_held* memoi_exchange_held_of(const memo_exchange* plan, int32_t number) {
    MEMO_ASSERT(number > 0 && number <= plan->n_held); /* 3 */
    return &plan->held[number - 1];
}
/* All rows of a number, of the owner's; what a reader reads of them, as they lie. */
MEMOI const memoi_exchange_pieces* memoi_exchange_whole_of(const memo_exchange* plan,
                                                           int32_t number) {
    return &plan->whole[memoi_exchange_held_of(plan, number)->owner * plan->shape.n_parts];
}
MEMOI memoi_exchange_pieces* memoi_exchange_read_of(const memo_exchange* plan, int32_t owner,
                                                    int32_t reader) {
    const int32_t per = memoi_exchange_places(plan);
    return &plan->read[(owner / per * per + reader % per) * plan->shape.n_parts];
}

MEMOI const memoi_exchange_room* memoi_exchange_room_of(const memo_exchange* plan, int pool,
                                                        int32_t s) {
    return &plan->rooms[pool * ((int64_t)plan->last_step + 2) + s];
}

/* --- runs --- */

/* Without padding, which is behind the other rows of a rank. */
MEMOI void memoi_exchange_take_tokens(memoi_shape_tokens* tokens, const memo_sharding* sharding,
                                      memob_arrays* arrays) {
    tokens->sharding = *sharding;
    for (int32_t r = 0; r < sharding->ring; r++)
        tokens->max_runs = memob_max(tokens->max_runs, memoi_sharding_ring_runs(sharding, r, NULL));
    tokens->runs = MEMOB_ARRAY(arrays, memo_run, sharding->ring * tokens->max_runs);
    tokens->n_runs = MEMOB_ARRAY(arrays, int32_t, sharding->ring);
    for (int32_t r = 0; r < sharding->ring && !arrays->failed; r++) {
        memo_run* runs = tokens->runs + r * tokens->max_runs;
        int32_t n = memoi_sharding_ring_runs(sharding, r, runs);
        while (n && runs[n - 1].start >= sharding->n_tokens) n--;
        if (n) runs[n - 1].count = memoi_sharding_run_below(&runs[n - 1], sharding->n_tokens);
        tokens->n_runs[r] = n;
    }
}

/* --- steps --- */

/* The number of rows of the first n runs. */
MEMOI int64_t memoi_exchange_runs_rows(const memo_run* runs, int32_t n) {
    int64_t rows = 0;
    for (int32_t k = 0; k < n; k++) rows += runs[k].count;
    return rows;
}

/* The runs of pieces of n runs; returns their number. */
MEMOI int32_t memoi_exchange_runs_of(const memoi_exchange_pieces* p, const memo_run* runs,
                                     int32_t n, memo_run* made) {
    int64_t row = 0; /* of run k */
    int32_t n_made = 0, k = 0;
    for (int32_t i = 0; i < p->n; i++) {
        int64_t at = p->rows[i].begin;
        while (at < p->rows[i].end) {
            memo_run* run = &made[n_made++];
            MEMO_ASSERT(n_made <= n + p->n); /* 1 */
            for (; k < n && row + runs[k].count <= at; k++) row += runs[k].count;
            *run = runs[k];
            run->start += at - row;
            run->count = memob_min(row + runs[k].count, p->rows[i].end) - at;
            at += run->count;
        }
    }
    return n_made;
}

/* --- what this rank sees --- */

/* The positions that a run of queries sees under a mask, without a gap each.  Returns how many. */
MEMOI int64_t memoi_exchange_look_at(const memo_exchange* plan, int64_t mask, const memo_run* run,
                                     int32_t k, memoi_exchange_sight* sights) {
    const memo_segment* list = plan->seen + plan->first_seen[mask];
    const int64_t n = plan->first_seen[mask + 1] - plan->first_seen[mask];
    const int64_t end = run->start + run->count;
    memoi_exchange_sight sight = {0, 0, k};
    int64_t n_sights = 0;
    for (int64_t i = memoi_segments_first(list, n, run->start); i < n && list[i].q_begin < end;
         i++) {
        int64_t low, high, unused;
        memo_segment_keys(&list[i], memob_max(run->start, list[i].q_begin), &low, &unused);
        memo_segment_keys(&list[i], memob_min(end, list[i].q_end) - 1, &unused, &high);
        if (!n_sights || low > sight.end) {
            sight.begin = low;
            n_sights++;
        }
        sight.end = high;
        if (sights) sights[n_sights - 1] = sight;
    }
    return n_sights;
}

/* Finds what the queries of this rank see. */
MEMOI void memoi_exchange_look(memo_exchange* plan) {
    const memoi_shape* shape = &plan->shape;
    const int32_t n_masks = shape->n_parts * plan->n_levels;
    int32_t n_runs;
    const memo_run* runs = memoi_shape_runs(shape, 0, shape->ring_rank, &n_runs);
    plan->first_sight = MEMOB_ARRAY(&plan->arrays, int64_t, (int64_t)n_masks + 1);
    for (int is_filled = 0; is_filled < 2 && !plan->arrays.failed; is_filled++) {
        int64_t n = 0;
        for (int32_t mask = 0; mask < n_masks; mask++) {
            plan->first_sight[mask] = n;
            for (int32_t k = 0; k < n_runs; k++)
                n += memoi_exchange_look_at(plan, mask, &runs[k], k,
                                            is_filled ? plan->sights + n : NULL);
        }
        plan->first_sight[n_masks] = n;
        if (!is_filled) plan->sights = MEMOB_ARRAY(&plan->arrays, memoi_exchange_sight, n + 1);
    }
}

/* The runs [*begin, *end) of this rank's queries that see keys of an owner under a mask, from the
 * first such run to the last.  Runs of queries ascend, and so do the ends of what queries see. */
MEMOI void memoi_exchange_find_readers(const memo_exchange* plan, int32_t mask,
                                       const memo_run* keys, int32_t n_keys, int32_t* begin,
                                       int32_t* end) {
    int32_t k = 0;
    *begin = *end = 0;
    for (int64_t s = plan->first_sight[mask]; s < plan->first_sight[mask + 1]; s++) {
        const memoi_exchange_sight* sight = &plan->sights[s];
        while (k < n_keys && keys[k].start + keys[k].count <= sight->begin) k++;
        if (k == n_keys || keys[k].start >= sight->end) continue;
        if (!*end) *begin = sight->run;
        *end = sight->run + 1;
    }
}

/* Step 0 has all queries of level 0.  All levels of a part have the keys that any of them reads. */
MEMOI void memoi_exchange_make_step(memo_exchange* plan, int32_t s, int32_t mask) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, owner = plan->owners[s], part = mask / plan->n_levels;
    const int is_first = mask % plan->n_levels == 0;
    const int has_all = !s && is_first;
    memoi_exchange_step* r = &plan->steps[((int64_t)s * shape->n_parts) * plan->n_levels + mask];
    r->q_runs = memoi_shape_runs(shape, 0, me, &r->n_q_runs);
    r->k_runs = memoi_shape_runs(shape, 1, owner, &r->n_k_runs);
    if (s) { /* pieces arrive one after another */
        memo_run* runs = plan->piece_runs + ((int64_t)s * shape->n_parts + part) *
                                                (plan->most_runs + MEMOI_PIECES_MAX);
        r->n_k_runs = memoi_exchange_runs_of(memoi_exchange_pieces_of(plan, 1, owner, part),
                                             r->k_runs, r->n_k_runs, runs);
        r->k_runs = runs;
    }
    if (!has_all) {
        int32_t begin, end;
        memoi_exchange_find_readers(plan, mask, r->k_runs, r->n_k_runs, &begin, &end);
        r->q_row = memoi_exchange_runs_rows(r->q_runs, begin);
        r->q_runs += begin;
        r->n_q_runs = end - begin;
    }
    r->n_q_rows = memoi_exchange_runs_rows(r->q_runs, r->n_q_runs);
    r->n_k_rows = memoi_exchange_runs_rows(r->k_runs, r->n_k_runs);
    r->k_row = mask ? r[-1].k_row + is_first * r[-1].n_k_rows : 0;

    memoi_block_segments_make(
        plan->seen + plan->first_seen[mask], plan->first_seen[mask + 1] - plan->first_seen[mask],
        r->q_runs, r->n_q_runs, r->k_runs, r->n_k_runs, plan->launches, &plan->arrays, &r->seen);
    plan->has_own_work |= !s && r->seen.segments.n;
    if (!s && is_first) plan->first_unset = memob_min(plan->first_unset, r->seen.first_row);
}

/* --- own keys in two steps --- */

/* Twice the pairs of the first n queries of a segment. */
MEMOI int64_t memoi_exchange_pairs_of(const memo_segment* s, int64_t n) {
    int64_t first, last, begin, end, of_first;
    if (!n) return 0;
    memo_segment_keys(s, s->q_begin, &begin, &end);
    of_first = end - begin;
    memo_segment_keys(s, s->q_begin + n - 1, &first, &last);
    return n * (of_first + last - first);
}

/* Rows of queries that do the first part of a step's work; where a segment ends if one ends near.
 * A single segment stays whole: it is one call, for which a library may have a shape prepared. */
MEMOI int64_t memoi_exchange_first_rows(const memo_segment* list, int32_t n, int64_t n_rows) {
    int64_t all = 0, so_far = 0, wanted, low = 0, high;
    int32_t i = 0;
    for (int32_t k = 0; k < n; k++)
        all += memoi_exchange_pairs_of(&list[k], list[k].q_end - list[k].q_begin);
    wanted = all / MEMOI_OWN_FIRST_PART;
    for (; i < n; i++) {
        const int64_t more = memoi_exchange_pairs_of(&list[i], list[i].q_end - list[i].q_begin);
        if (so_far + more >= wanted) break;
        so_far += more;
    }
    if (n == 1) return 0; /* one call is not cut */
    if (i == n) return n_rows;
    if (wanted - so_far <= all / 16) return list[i].q_begin;

    high = list[i].q_end - list[i].q_begin;
    if (so_far + memoi_exchange_pairs_of(&list[i], high) - wanted <= all / 16) return list[i].q_end;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (so_far + memoi_exchange_pairs_of(&list[i], middle) < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return list[i].q_begin + low;
}

/* Rows [begin, end) of the queries of a step; whole: the runs of the step. */
MEMOI void memoi_exchange_cut_step(memo_exchange* plan, int32_t mask,
                                   const memoi_exchange_step* whole, int64_t begin, int64_t end,
                                   memoi_exchange_step* r) {
    memo_run* runs = MEMOB_ARRAY(&plan->arrays, memo_run, whole->n_q_runs + 1);
    int64_t row = 0;
    *r = *whole;
    r->seen = MEMO_ZERO(memoi_block_segments);
    r->q_runs = runs;
    r->q_row += begin;
    r->n_q_runs = 0;
    for (int32_t k = 0; k < whole->n_q_runs && runs; row += whole->q_runs[k++].count) {
        const int64_t from = memob_max(begin - row, 0);
        const int64_t n = memob_min(end - row, whole->q_runs[k].count) - from;
        if (n <= 0) continue;
        runs[r->n_q_runs].start = whole->q_runs[k].start + from;
        runs[r->n_q_runs++].count = n;
    }
    r->n_q_rows = end - begin;
    if (!runs || begin == end) return;
    memoi_block_segments_make(
        plan->seen + plan->first_seen[mask], plan->first_seen[mask + 1] - plan->first_seen[mask],
        r->q_runs, r->n_q_runs, r->k_runs, r->n_k_runs, plan->launches, &plan->arrays, &r->seen);
}

/* A backward computes a part of step 0 before the first keys arrive, and the rest last. */
MEMOI void memoi_exchange_split_own(memo_exchange* plan) {
    const int32_t n_masks = plan->shape.n_parts * plan->n_levels;
    plan->splits_own = plan->has_own_work && plan->shape.sharding.ring > 1;
    if (!plan->splits_own) return;
    plan->has_own_work = 0;
    for (int32_t mask = 0; mask < n_masks && !plan->arrays.failed; mask++) {
        memoi_exchange_step* parts = plan->steps + (plan->last_step + 1) * (int64_t)n_masks + mask;
        const memoi_exchange_step* whole = &plan->steps[mask];
        const int64_t n = memoi_exchange_first_rows(whole->seen.segments.host,
                                                    whole->seen.segments.n, whole->n_q_rows);
        memoi_exchange_cut_step(plan, mask, whole, 0, n, parts);
        memoi_exchange_cut_step(plan, mask, whole, n, whole->n_q_rows, parts + n_masks);
        plan->has_own_work |= parts[n_masks].seen.segments.n;
    }
}

/* --- what each rank reads --- */

/* This rank sends rows of a reader's, or gets them. */
MEMOI void memoi_exchange_keep(memo_exchange* plan, int32_t part, int32_t reader, int32_t owner,
                               const memoi_exchange_pieces* p) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, per = memoi_exchange_places(plan);
    const int64_t n_rows = shape->n_batch / shape->n_parts * p->n_rows;
    const int is_near = reader / per == owner / per;
    if (reader == me) {
        *memoi_exchange_pieces_of(plan, MEMOI_PIECES_READ, owner, part) = *p;
        *memoi_exchange_rows_of(plan, 1, owner) += n_rows;
    }
    if (owner == me && is_near) {
        *memoi_exchange_pieces_of(plan, MEMOI_PIECES_SENT, reader, part) = *p;
        *memoi_exchange_rows_of(plan, 0, reader) += n_rows;
    }
    if (!is_near && reader / per == me / per && owner % per == me % per)
        memoi_exchange_read_of(plan, owner, reader)[part] = *p;
}

/* What all readers of a node read of others' keys. */
MEMOI void memoi_exchange_cross(memo_exchange* plan, int32_t part, int32_t node,
                                memoi_exchange_pieces* read, int64_t* crossing_rows) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, per = memoi_exchange_places(plan);
    for (int32_t owner = 0; owner < shape->sharding.ring; owner++) {
        memoi_exchange_pieces* p = &read[owner];
        if (!p->n) continue;
        memoi_exchange_close_gaps(p, plan->pairs.most);
        crossing_rows[owner * shape->n_nodes + node] += shape->n_batch / shape->n_parts * p->n_rows;
        if (owner == me) plan->crossing[node * shape->n_parts + part] = *p;
        if (node == me / per) plan->whole[owner * shape->n_parts + part] = *p;
        p->n = 0;
        p->n_rows = p->narrowest = 0;
    }
}

/* What each rank reads of each, and with which pieces this rank takes part.  Sets rows_of and
 * work_of: (ring, ring) of a reader with keys of an owner; and crossing_rows: (ring, n_nodes). */
MEMOI void memoi_exchange_read(memo_exchange* plan, int64_t* rows_of, int64_t* work_of,
                               int64_t* crossing_rows, memob_arrays* scratch) {
    const memoi_shape* shape = &plan->shape;
    const int32_t rd = shape->sharding.ring, per = memoi_exchange_places(plan);
    const int64_t each = shape->n_batch / shape->n_parts;
    memoi_exchange_pieces* read = MEMOB_ARRAY(scratch, memoi_exchange_pieces, rd);
    memoi_pairs* pairs = &plan->pairs;
    for (int32_t i = 0; i < shape->n_parts * rd && !scratch->failed; i++) {
        const int32_t part = i / rd, reader = i % rd;
        memoi_pairs_ask(pairs, part, reader);
        for (int32_t owner = 0; owner < rd; owner++) {
            const memoi_exchange_pieces* p = &pairs->pieces[owner];
            work_of[(int64_t)reader * rd + owner] += each * pairs->work[owner];
            if (owner == reader || !p->n) continue;
            rows_of[(int64_t)reader * rd + owner] += each * p->n_rows;
            memoi_exchange_keep(plan, part, reader, owner, p);
            if (owner / per != reader / per) memoi_exchange_unite(&read[owner], p, pairs->most);
        }
        if (reader % per == per - 1)
            memoi_exchange_cross(plan, part, reader / per, read, crossing_rows);
    }
}

/* Pieces of rows as these lie where rows of `whole` lie one after another. */
MEMOI void memoi_exchange_place(const memoi_exchange_pieces* whole, int32_t most,
                                const memoi_exchange_pieces* p, memoi_exchange_pieces* placed) {
    int64_t row = 0;
    placed->n = 0;
    placed->n_rows = placed->narrowest = 0;
    for (int32_t i = 0, k = 0; i < p->n; i++) {
        int64_t begin;
        for (; whole->rows[k].end <= p->rows[i].begin; k++)
            row += whole->rows[k].end - whole->rows[k].begin;
        MEMO_ASSERT(whole->rows[k].begin <= p->rows[i].begin &&
                    p->rows[i].end <= whole->rows[k].end); /* 2 */
        begin = row + p->rows[i].begin - whole->rows[k].begin;
        memoi_exchange_add_rows(placed, most, begin, begin + p->rows[i].end - p->rows[i].begin);
    }
}

/* What comes from held rows lies as they do.  Who holds rows computes with all of them. */
MEMOI void memoi_exchange_place_all(memo_exchange* plan) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, per = memoi_exchange_places(plan);
    const int32_t n_parts = shape->n_parts, most = plan->pairs.most;
    for (int32_t i = 0; i < shape->sharding.ring * n_parts; i++) {
        const int32_t owner = i / n_parts, part = i % n_parts;
        memoi_exchange_pieces* p = memoi_exchange_pieces_of(plan, MEMOI_PIECES_READ, owner, part);
        const memoi_exchange_pieces* whole = &plan->whole[i];
        if (owner / per == me / per) continue;
        for (int32_t r = 0; r < per && owner % per == me % per; r++) {
            memoi_exchange_pieces* read = memoi_exchange_read_of(plan, owner, r) + part;
            const memoi_exchange_pieces of_owner = *read;
            memoi_exchange_place(whole, most, &of_owner, read);
        }
        memoi_exchange_place(whole, most, p,
                             memoi_exchange_pieces_of(plan, MEMOI_PIECES_GOT, owner, part));
        if (owner % per != me % per || !*memoi_exchange_rows_of(plan, 1, owner)) continue;
        *memoi_exchange_rows_of(plan, 1, owner) +=
            shape->n_batch / n_parts * (whole->n_rows - p->n_rows);
        *p = *whole;
        memoi_exchange_place(whole, most, whole, memoi_exchange_read_of(plan, owner, me) + part);
    }
}

/* --- the part of this rank --- */

/* The step behind which rows may come to the place of others. */
MEMOI int32_t memoi_exchange_held_gate(const memo_exchange* plan, int32_t number) {
    const memoi_exchange_held* held = memoi_exchange_held_of(plan, number);
    int32_t gate = 0;
    for (const memoi_exchange_held* x = plan->held; x < held; x++)
        if (x->row < held->row + held->n_rows && held->row < x->row + x->n_rows)
            gate = (int32_t)memob_max(gate, x->own_step);
    return gate;
}

MEMOI void memoi_exchange_take_near(const memoi_messages* m, const memoi_ring_message* x,
                                    int is_given, int32_t me, memoi_exchange_turn* turn) {
    const int32_t of = x->crossing < 0 ? 0 : m->crossings[x->crossing].number;
    if (x->reader == me) {
        const int32_t gate = is_given ? x->step : x->after[MEMOI_POOL_KEYS];
        *(is_given ? &turn->given : &turn->k) = x->step;
        turn->gate = (int32_t)memob_max(turn->gate, gate);
    }
    if (x->source == me) {
        *(is_given ? &turn->giver : &turn->reader) = x->reader;
        *(is_given ? &turn->given_of : &turn->read_of) = of;
    }
}
MEMOI void memoi_exchange_take_far(const memo_exchange* plan, const memoi_ring_crossing* x,
                                   int is_given, memoi_exchange_turn* turn) {
    const int32_t me = plan->shape.ring_rank;
    if (x->holder == me) *(is_given ? &turn->given : &turn->k) = x->number;
    if (x->holder == me && !is_given)
        turn->gate = (int32_t)memob_max(turn->gate, memoi_exchange_held_gate(plan, x->number));
    if (x->owner == me)
        *(is_given ? &turn->giver : &turn->reader) = x->holder / memoi_exchange_places(plan);
}

/* The turns of this rank, of those of all. */
MEMOI void memoi_exchange_take_turns(memo_exchange* plan, const memoi_messages* m) {
    const int32_t me = plan->shape.ring_rank;
    for (int pass = 0; pass < 2 && !plan->arrays.failed; pass++) {
        memoi_exchange_turn* turn = MEMOB_ARRAY(&plan->arrays, memoi_exchange_turn,
                                                4 * ((int64_t)m->n_ranks + m->n_nodes) + 1);
        plan->turns[pass] = turn;
        for (int32_t i = 0; i < m->n_events[pass] && turn; i++) {
            const memoi_messages_event* event = &m->events[pass][i];
            const int is_far = event->turn % MEMOI_N_LINKS == MEMOI_LINK_NODES;
            const memoi_ring_message* x = is_far ? NULL : &m->list[event->index];
            const memoi_ring_crossing* c = is_far ? &m->crossings[event->index] : NULL;
            if (is_far ? c->owner != me && c->holder != me : x->reader != me && x->source != me)
                continue;
            if (!plan->n_turns[pass] || turn->number != event->turn) {
                turn = &plan->turns[pass][plan->n_turns[pass]++];
                turn->reader = turn->giver = -1;
                turn->number = event->turn;
            }
            if (is_far)
                memoi_exchange_take_far(plan, c, event->is_given, turn);
            else
                memoi_exchange_take_near(m, x, event->is_given, me, turn);
        }
    }
}

/* The steps of this rank, and what it holds. */
MEMOI void memoi_exchange_take_steps(memo_exchange* plan, const memoi_messages* m) {
    const int32_t me = plan->shape.ring_rank;
    plan->owners[0] = me;
    for (int32_t k = 0; k < plan->n_held; k++) {
        const memoi_ring_crossing* c = &m->crossings[m->held[m->first_of_holder[me] + k]];
        plan->held[k].owner = c->owner;
        plan->held[k].n_rows = c->n_rows;
        plan->held[k].row = c->row;
    }
    for (int32_t s = 1; s <= plan->last_step; s++) {
        const memoi_ring_message* x = memoi_messages_of(m, me, s);
        plan->owners[s] = x->owner;
        if (!memoi_messages_is_own(x)) continue;
        plan->held_of[s] = m->crossings[x->crossing].number;
        plan->held[plan->held_of[s] - 1].own_step = s;
    }
}

MEMOI void memoi_exchange_make_rooms(memo_exchange* plan, const memoi_messages* m,
                                     memob_arrays* scratch) {
    const int32_t me = plan->shape.ring_rank, n = plan->last_step + 1;
    int64_t* sizes = MEMOB_ARRAY(scratch, int64_t, 2 * ((int64_t)n + 1));
    int64_t* returns = MEMOB_ARRAY(scratch, int64_t, m->n_ranks);
    char* has_others = MEMOB_ARRAY(scratch, char, m->n_ranks);
    memoi_pool pool = MEMO_ZERO(memoi_pool);
    pool.stretches = MEMOB_ARRAY(scratch, memoi_pool_stretch, 2 * (int64_t)n + 5);
    if (scratch->failed) return;
    memoi_messages_find_returns(m, returns, has_others);
    plan->has_others = has_others[me];
    plan->taken_row = memoi_messages_lay(
        &plan->shape, &pool, sizes, sizes + n + 1, n,
        memoi_messages_sizes(m, me, returns, has_others, sizes, sizes + n + 1), plan->rooms);
}

/* Which ranks' own keys are one segment, which a backward does not cut. */
MEMOI void memoi_exchange_find_whole(const memo_exchange* plan, char* is_whole) {
    const memoi_shape* shape = &plan->shape;
    const int64_t* first = plan->first_seen;
    for (int32_t r = 0; r < shape->sharding.ring; r++) {
        int32_t n_q, n_k;
        const memo_run* q = memoi_shape_runs(shape, 0, r, &n_q);
        const memo_run* k = memoi_shape_runs(shape, 1, r, &n_k);
        is_whole[r] = 1;
        /* Most ranks with several segments have them in their first runs. */
        for (int32_t i = 0; i < 2 * shape->n_parts * plan->n_levels && is_whole[r]; i++) {
            const int64_t at = first[i / 2], n = first[i / 2 + 1] - at;
            const int32_t n_runs = i % 2 ? n_q : (int32_t)memob_min(n_q, 4);
            is_whole[r] = memoi_segments_derive(plan->seen + at, n, q, n_runs, k, n_k, NULL) < 2;
        }
    }
}

/* The list of messages.  All ranks must find the same, so each finds what all ranks read. */
MEMOI void memoi_exchange_make_list(memo_exchange* plan, memoi_messages* m, memob_arrays* scratch) {
    const memoi_shape* shape = &plan->shape;
    const int64_t rd = shape->sharding.ring;
    int64_t* rows_of = MEMOB_ARRAY(scratch, int64_t, rd * rd);
    int64_t* work_of = MEMOB_ARRAY(scratch, int64_t, rd * rd);
    int64_t* crossing_rows = MEMOB_ARRAY(scratch, int64_t, rd * shape->n_nodes);
    char* is_whole = MEMOB_ARRAY(scratch, char, rd);
    memoi_pairs_take_keys(&plan->pairs, memoi_shape_tokens_of(shape, 1), scratch);
    if (!scratch->failed) memoi_exchange_read(plan, rows_of, work_of, crossing_rows, scratch);
    if (scratch->failed) return;
    if (shape->n_nodes > 1) memoi_exchange_place_all(plan);
    memoi_exchange_find_whole(plan, is_whole);
    for (int32_t node = 0; node < shape->n_nodes; node++) {
        plan->crossing_rows[node] = crossing_rows[shape->ring_rank * shape->n_nodes + node];
        plan->crosses |= plan->crossing_rows[node] > 0;
    }
    m->shape = shape;
    m->n_ranks = (int32_t)rd;
    m->n_nodes = shape->n_nodes;
    m->rows_of = rows_of;
    m->work_of = work_of;
    m->crossing_rows = crossing_rows;
    m->is_whole = is_whole;
    memoi_messages_make(m, scratch);
}

/* What passes need, once the tokens and the masks are there. */
MEMOI void memoi_exchange_make(memo_exchange* plan) {
    const memoi_shape* shape = &plan->shape;
    const int32_t me = shape->ring_rank, n_masks = shape->n_parts * plan->n_levels;
    const int64_t rd = shape->sharding.ring, n_parts = shape->n_parts;
    const int64_t is_over_nodes = shape->n_nodes > 1;
    const memoi_shape_tokens* queries = memoi_shape_tokens_of(shape, 0);
    memob_arrays *arrays = &plan->arrays, scratch = MEMO_ZERO(memob_arrays);
    memoi_messages m = MEMO_ZERO(memoi_messages);
    memoi_pairs* pairs = &plan->pairs;
    int32_t s, n;
    pairs->seen = plan->seen;
    pairs->first_seen = plan->first_seen;
    pairs->n_levels = plan->n_levels;
    pairs->n_ranks = shape->sharding.ring;
    pairs->most = memoi_pairs_most(shape);
    pairs->queries = queries;
    memoi_pairs_take_masks(pairs, shape->n_parts, queries->max_runs,
                           memob_max(shape->sharding.n_tokens, shape->key_sharding.n_tokens),
                           &scratch);
    plan->first_unset = shape->sharding.ring_tokens;
    plan->n_rows = MEMOB_ARRAY(arrays, int64_t, 2 * rd);
    plan->pieces = MEMOB_ARRAY(arrays, memoi_exchange_pieces, (2 + is_over_nodes) * rd * n_parts);
    plan->crossing_rows = MEMOB_ARRAY(arrays, int64_t, shape->n_nodes);
    plan->crossing =
        MEMOB_ARRAY(arrays, memoi_exchange_pieces, is_over_nodes * shape->n_nodes * n_parts);
    plan->whole = MEMOB_ARRAY(arrays, memoi_exchange_pieces, is_over_nodes * rd * n_parts);
    plan->read = MEMOB_ARRAY(arrays, memoi_exchange_pieces, is_over_nodes * rd * n_parts);
    if (!arrays->failed) memoi_exchange_make_list(plan, &m, &scratch);
    arrays->failed |= scratch.failed;

    /* This rank's part. */
    n = arrays->failed ? 1 : 1 + memoi_messages_steps(&m, me);
    plan->last_step = n - 1;
    plan->n_held = arrays->failed ? 0 : m.first_of_holder[me + 1] - m.first_of_holder[me];
    plan->owners = MEMOB_ARRAY(arrays, int32_t, n);
    plan->held_of = MEMOB_ARRAY(arrays, int32_t, n);
    plan->held = MEMOB_ARRAY(arrays, memoi_exchange_held, plan->n_held);
    plan->steps = MEMOB_ARRAY(arrays, memoi_exchange_step, ((int64_t)n + 2) * n_masks);
    plan->rooms = MEMOB_ARRAY(arrays, memoi_exchange_room, 2 * ((int64_t)n + 1));
    plan->piece_runs =
        MEMOB_ARRAY(arrays, memo_run, n * n_parts * (plan->most_runs + MEMOI_PIECES_MAX));
    if (!arrays->failed) {
        memoi_exchange_take_steps(plan, &m);
        memoi_exchange_take_turns(plan, &m);
    }
    for (int32_t mask = 0; mask < n_masks && !arrays->failed; mask++)
        for (s = 0; s < n && !arrays->failed; s++) memoi_exchange_make_step(plan, s, mask);
    if (!arrays->failed) memoi_exchange_split_own(plan);
    if (!arrays->failed) memoi_exchange_make_rooms(plan, &m, &scratch);
    arrays->failed |= scratch.failed;
    memob_arrays_free(&scratch);
}

/* ---- >>ring attention ---------------------------------------------------------------------------
 * Knows: the runs of each ring rank, the mask, the local attention, three streams.  Knows nothing
 * of Ulysses or of where its tensors come from.  They are by heads: (n_batch, ring_tokens, heads of
 * the rank, head_size or v_head_size).  Arrays of two hold one for keys, then one for values.
 *
 * 1. A step is enqueued behind the exchange that brings its keys.
 * 2. A call of the local attention has query heads that share key heads evenly.
 * 3. A room that is read was filled in this pass, and each has a cell. */

/* The buffers of one rank; those that are not needed are NULL. */
typedef struct memoi_ring_buffers {
    char* kv[2]; /* pools: keys and values of other ranks */
    float *block_out, *block_lse;
    float* d_kv[2];   /* the sums of all steps */
    char* gradients;  /* pool, in carried_type: contributions, each rows of d_k, then rows of d_v */
    float* d_kv_step; /* the contribution of a step before it is rounded; NULL: computed in place */
    /* Over nodes: pools of keys and values that are held for the node, and of the sums of their
     * gradients, each rows of d_k, then rows of d_v; sums that return, and come, in carried_type.
     * sums_given: NULL if that is fp32. */
    char* held[2];
    float *held_sums, *far_sums[2]; /* far_sums: of own keys, from other nodes */
    char *sums_given, *sums_taken;
    /* Keys and values of latent rows: of a step's, and of some heads. */
    char* expanded[2];
    float* d_expanded[2];
} memoi_ring_buffers;

/* Cells of the target: bytes that several streams touch.  Keys by heads have a cell for each
 * buffer; behind these each room of a pass has one. */
enum {
    MEMOI_CELL_ROWS = 0,                        /* the user's tensors, and row dots by rows */
    MEMOI_CELL_RESULTS,                         /* by heads, as they leave */
    MEMOI_CELL_HEADS,                           /* of even and odd groups: q, d_out, row dots */
    MEMOI_CELL_OWN_SUMS = MEMOI_CELL_HEADS + 2, /* gradients of own keys */
    MEMOI_CELL_FAR_SUMS,                        /* those that come from other nodes */
    MEMOI_CELL_KEYS
};

/* Who used the bytes of the pools in a pass. */
typedef struct memoi_ring_rooms {
    int32_t first_cell, n_cells;     /* room 0 is what was there before the pass */
    int32_t n;                       /* rooms so far */
    memoi_pool pools[MEMOI_N_POOLS]; /* in bytes; of keys, and held keys: of k */
} memoi_ring_rooms;

/* What an exchange reads and writes; the bytes that it sends. */
typedef struct memoi_ring_access {
    memo_range reads[3], writes[3];
    int64_t n_reads, n_writes, n_out;
} memoi_ring_access;

/* One forward or backward on one rank. */
typedef struct memoi_ring {
    const memoi_shape* shape;
    memoi_target* target;
    memo_comm *comm, *nodes; /* nodes: ranks at this place of their nodes */
    const memo_attention* attention;
    const memo_exchange* plan;
    int32_t is_backward;

    char *q, *kv[2]; /* only read */
    const char* d_out;
    float *out, *lse; /* merged so far; final at the end */
    const float* row_dots;
    float* d_q;
    float* d_kv_final[2]; /* sums of this rank's rows */
    memoi_ring_buffers buffers;

    int32_t keys_cell, heads_cell; /* of kv; of q, d_out and row_dots */
    memoi_ring_rooms* rooms;

    int32_t last_step;    /* the plan's; 0 on a rank without heads */
    int32_t n_turns;      /* exchanges of this ring, passed or enqueued so far */
    int32_t last_brought; /* the last step whose keys these bring */
    int32_t last_held;    /* the last held rows that these bring */
} memoi_ring;

/* Elements of q. */
MEMOI int64_t memoi_ring_q_elements(const memoi_shape* shape) {
    return shape->n_batch * shape->sharding.ring_tokens * shape->heads.n_q * shape->head_size;
}

/* Step 0 is of own keys.  Before it a backward may have done a part of it. */
enum { MEMOI_RING_OWN_FIRST = -1 };

/* Tensors that travel: of keys and values the rows that are needed later, and their gradients. */
enum { MEMOI_RING_K = 0, MEMOI_RING_V, MEMOI_RING_D_KV, MEMOI_RING_N_TENSORS };

/* Elements of a row of a tensor, and its type. */
MEMOI int64_t memoi_ring_row(const memoi_shape* shape, int tensor) {
    const int32_t* size = shape->kv_size;
    return (int64_t)shape->heads.n_kv *
           (tensor < MEMOI_RING_D_KV ? size[tensor] : size[0] + size[1]);
}
MEMOI memo_type memoi_ring_type(const memoi_shape* shape, int tensor) {
    return tensor < MEMOI_RING_D_KV ? shape->type : shape->carried_type;
}
/* Elements of k, or of v. */
MEMOI MEMOB_NOINLINE int64_t memoi_ring_kv_elements(const memoi_shape* shape, int is_v) {
    return shape->n_batch * shape->key_sharding.ring_tokens * memoi_ring_row(shape, is_v);
}
MEMOI int64_t memoi_ring_row_bytes(const memoi_shape* shape, int tensor) {
    return memoi_ring_row(shape, tensor) * memo_type_bytes(memoi_ring_type(shape, tensor));
}
/* Instead of a number of held rows: own ones, whose gradients come from other nodes.  They have
 * sums of their own, so that neither stream of messages waits for the other. */
enum { MEMOI_RING_FAR = -1 };

/* Rows that lie before those of sequence b where held rows lie, or own ones. */
MEMOI int64_t memoi_ring_rows_before(const memoi_ring* ring, int32_t held, int32_t b) {
    const memoi_shape* shape = ring->shape;
    int64_t n = 0;
    if (held <= 0) return b * shape->key_sharding.ring_tokens;
    for (int32_t i = 0; i < b; i++)
        n += memoi_exchange_whole_of(ring->plan, held)[shape->n_parts > 1 ? i : 0].n_rows;
    return n;
}
/* What a reader reads of these rows, in each part; and of all its sequences, which is also what it
 * contributes. */
MEMOI const memoi_exchange_pieces* memoi_ring_read_pieces(const memoi_ring* ring, int32_t held,
                                                          int32_t reader) {
    if (!held) return memoi_exchange_pieces_of(ring->plan, MEMOI_PIECES_SENT, reader, 0);
    return memoi_exchange_read_of(ring->plan, memoi_exchange_held_of(ring->plan, held)->owner,
                                  reader);
}
MEMOI int64_t memoi_ring_read_rows(const memoi_ring* ring, int32_t held, int32_t reader) {
    const memoi_shape* shape = ring->shape;
    int64_t n = 0;
    for (int32_t i = 0; i < shape->n_parts; i++)
        n += memoi_ring_read_pieces(ring, held, reader)[i].n_rows;
    return n * (shape->n_batch / shape->n_parts);
}
/* Rows of keys of step s. */
MEMOI int64_t memoi_ring_key_rows(const memoi_ring* ring, int32_t s) {
    const memoi_shape* shape = ring->shape;
    return s > 0 ? *memoi_exchange_rows_of(ring->plan, 1, ring->plan->owners[s])
                 : shape->n_batch * shape->key_sharding.ring_tokens;
}

/* Where k or v of held rows lie, or of own ones (0). */
MEMOI char* memoi_ring_held(const memoi_ring* ring, int is_v, int32_t held) {
    if (!held) return ring->kv[is_v];
    return ring->buffers.held[is_v] +
           memoi_exchange_held_of(ring->plan, held)->row * memoi_ring_row_bytes(ring->shape, is_v);
}
/* Where sums of their gradients do. */
MEMOI void memoi_ring_sums(const memoi_ring* ring, int32_t held, float* d_kv[2]) {
    const memoi_shape* shape = ring->shape;
    const memoi_exchange_held* x;
    d_kv[0] = held ? ring->buffers.far_sums[0] : ring->d_kv_final[0];
    d_kv[1] = held ? ring->buffers.far_sums[1] : ring->d_kv_final[1];
    if (held <= 0) return;
    x = memoi_exchange_held_of(ring->plan, held);
    d_kv[0] = ring->buffers.held_sums + x->row * memoi_ring_row(shape, MEMOI_RING_D_KV);
    d_kv[1] = d_kv[0] + x->n_rows * memoi_ring_row(shape, 0);
}
/* Where k or v of step s lies. */
MEMOI char* memoi_ring_keys(const memoi_ring* ring, int is_v, int32_t s) {
    if (s <= 0) return ring->kv[is_v];
    if (ring->plan->held_of[s]) return memoi_ring_held(ring, is_v, ring->plan->held_of[s]);
    return ring->buffers.kv[is_v] + memoi_exchange_room_of(ring->plan, MEMOI_POOL_KEYS, s)->row *
                                        memoi_ring_row_bytes(ring->shape, is_v);
}
/* Where the contribution of step s lies that leaves. */
MEMOI char* memoi_ring_contribution(const memoi_ring* ring, int32_t s) {
    return ring->buffers.gradients +
           memoi_exchange_room_of(ring->plan, MEMOI_POOL_GRADIENTS, s)->row *
               memoi_ring_row_bytes(ring->shape, MEMOI_RING_D_KV);
}
/* Where those of others arrive. */
MEMOI char* memoi_ring_taken(const memoi_ring* ring) {
    return ring->buffers.gradients +
           ring->plan->taken_row * memoi_ring_row_bytes(ring->shape, MEMOI_RING_D_KV);
}
/* Is the contribution to the own keys computed apart, because others are added meanwhile? */
MEMOI int memoi_ring_is_apart(const memoi_ring* ring) {
    return ring->plan->has_others && ring->plan->has_own_work;
}
/* Does step s compute its contribution apart from the sums of own keys? */
MEMOI int memoi_ring_step_is_apart(const memoi_ring* ring, int32_t s) {
    return s > 0 || (!s && memoi_ring_is_apart(ring));
}
MEMOI const memoi_exchange_step* memoi_ring_step_of(const memoi_ring* ring, int32_t s,
                                                    int32_t mask) {
    const memo_exchange* plan = ring->plan;
    if (s <= 0 && ring->is_backward && plan->splits_own) s += plan->last_step + 2;
    return memoi_exchange_step_of(plan, s, mask);
}
/* Where step s computes d_k and d_v. */
MEMOI void memoi_ring_d_kv(const memoi_ring* ring, int32_t s, float* d_kv[2]) {
    const memoi_shape* shape = ring->shape;
    const int64_t n = memoi_ring_key_rows(ring, s);
    d_kv[0] = ring->d_kv_final[0];
    d_kv[1] = ring->d_kv_final[1];
    if (!memoi_ring_step_is_apart(ring, s)) return;
    d_kv[0] = ring->buffers.d_kv_step;
    if (!d_kv[0])
        d_kv[0] = (float*)(void*)memoi_ring_contribution(ring, s ? s : ring->last_step + 1);
    d_kv[1] = d_kv[0] + n * memoi_ring_row(shape, 0);
}

/* --- rooms --- */

/* The bytes of a row in a pool. */
MEMOI int64_t memoi_ring_pool_row_bytes(const memoi_ring* ring, int pool) {
    if (pool == MEMOI_POOL_SUMS) return memoi_ring_row(ring->shape, MEMOI_RING_D_KV) * 4;
    return memoi_ring_row_bytes(ring->shape,
                                pool == MEMOI_POOL_GRADIENTS ? MEMOI_RING_D_KV : MEMOI_RING_K);
}

/* An operation fills bytes of a pool, behind all that used any of them. */
MEMOI void memoi_ring_fill_bytes(memoi_ring* ring, memoi_target_op* op, int pool, int64_t begin,
                                 int64_t n_bytes) {
    memoi_ring_rooms* rooms = ring->rooms;
    memoi_pool* p = &rooms->pools[pool];
    if (!ring->target->order) return;
    for (int32_t i = 0; i < p->n && p->stretches[i].begin < begin + n_bytes; i++)
        if (p->stretches[i].end > begin)
            memoi_target_follow(ring->target, op, rooms->first_cell + p->stretches[i].step);
    MEMO_ASSERT(rooms->n + 1 < rooms->n_cells); /* 3 */
    memoi_pool_take(p, begin, begin + n_bytes, ++rooms->n);
    ring->target->cells[rooms->first_cell + rooms->n] = MEMO_ZERO(memob_cell);
    memoi_target_touch(ring->target, op, rooms->first_cell + rooms->n, 1);
}

/* The rows of step s in their room; behind the last step: of the own contribution. */
MEMOI void memoi_ring_fill_room(memoi_ring* ring, memoi_target_op* op, int pool, int32_t s) {
    const int32_t of = s <= ring->last_step ? s : 0;
    const int64_t n = memoi_ring_key_rows(ring, of);
    const int64_t row_bytes = memoi_ring_pool_row_bytes(ring, pool);
    memoi_ring_fill_bytes(ring, op, pool,
                          memoi_exchange_room_of(ring->plan, pool, s)->row * row_bytes,
                          n * row_bytes);
}

/* An operation reads rows that fill their room, from `row` on, or writes them. */
MEMOI void memoi_ring_touch_room(const memoi_ring* ring, memoi_target_op* op, int pool, int64_t row,
                                 int is_written) {
    const memoi_ring_rooms* rooms = ring->rooms;
    const memoi_pool_stretch* at = rooms->pools[pool].stretches;
    const int64_t begin = row * memoi_ring_pool_row_bytes(ring, pool);
    if (!ring->target->order) return;
    while (at->end <= begin) at++;
    MEMO_ASSERT(at->begin == begin && at->step); /* 3 */
    memoi_target_touch(ring->target, op, rooms->first_cell + at->step, is_written);
}
/* An operation reads the rows of step s. */
MEMOI void memoi_ring_read_room(const memoi_ring* ring, memoi_target_op* op, int pool, int32_t s) {
    memoi_ring_touch_room(ring, op, pool, memoi_exchange_room_of(ring->plan, pool, s)->row, 0);
}
/* An operation reads held rows, or own ones (0); or writes their sums. */
MEMOI void memoi_ring_read_held(const memoi_ring* ring, memoi_target_op* op, int32_t held) {
    if (held)
        memoi_ring_touch_room(ring, op, MEMOI_POOL_HELD,
                              memoi_exchange_held_of(ring->plan, held)->row, 0);
    else
        memoi_target_touch(ring->target, op, ring->keys_cell, 0);
}
MEMOI void memoi_ring_add_to_held(const memoi_ring* ring, memoi_target_op* op, int32_t held) {
    if (held)
        memoi_ring_touch_room(ring, op, MEMOI_POOL_SUMS,
                              memoi_exchange_held_of(ring->plan, held)->row, 1);
    else
        memoi_target_touch(ring->target, op, MEMOI_CELL_OWN_SUMS, 1);
}

/* Before a pass. */
MEMOI void memoi_ring_clear_rooms(memoi_ring_rooms* rooms) {
    const memoi_pool_stretch all = {0, INT64_MAX, 0};
    rooms->n = 0;
    for (int i = 0; i < MEMOI_N_POOLS; i++) {
        rooms->pools[i].n_rows = INT64_MAX;
        rooms->pools[i].n = 1;
        rooms->pools[i].stretches[0] = all;
    }
}

/* Moves the addresses of a block on by rows and by heads. */
MEMOI void memoi_ring_block_move(memo_attention_block* b, int64_t q_row, int64_t k_row,
                                 int64_t q_head, int64_t kv_head) {
    const int64_t bytes = memo_type_bytes(b->type);
    const int64_t q = q_row * b->q_row_stride + q_head * b->head_size;
    const int64_t k = k_row * b->k_row_stride + kv_head * b->head_size;
    const int64_t v = k_row * b->v_row_stride + kv_head * b->v_head_size;
    const int64_t out = q_row * b->out_row_stride + q_head * b->v_head_size;
    const int64_t lse = q_row * b->lse_row_stride + q_head;
    b->q = (const char*)b->q + q * bytes;
    b->k = (const char*)b->k + k * bytes;
    b->v = (const char*)b->v + v * bytes;
    b->lse += lse;
    if (b->out) b->out += out;
    if (!b->d_q) return;
    b->d_out = (const char*)b->d_out + out * bytes;
    b->row_dots += lse;
    b->d_q += q;
    b->d_k += k;
    b->d_v += v;
}

/* Does a step merge its output into that of others? */
MEMOI int memoi_ring_merges(const memoi_ring* ring, int32_t mask, int32_t s) {
    return !ring->is_backward && (s || mask % ring->plan->n_levels);
}

/* The rectangle of step s. */
MEMOI memo_attention_block memoi_ring_block(const memoi_ring* ring, int32_t mask,
                                            const memoi_exchange_step* r, int32_t s) {
    const int32_t part = mask / ring->plan->n_levels;
    const int merges = memoi_ring_merges(ring, mask, s);
    const memoi_shape* shape = ring->shape;
    const memoi_ring_buffers* buffers = &ring->buffers;
    const int64_t n_keys = shape->key_sharding.ring_tokens;
    float* d_kv[2];
    memo_attention_block block = MEMO_ZERO(memo_attention_block);
    block.type = shape->type;
    block.scale = shape->scale;
    block.softcap = shape->softcap;
    block.first_q_head = shape->heads.first_q;
    block.n_batch = shape->n_batch / shape->n_parts;
    block.head_size = shape->head_size;
    block.v_head_size = shape->v_head_size;

    /* The positions of its rows. */
    block.q_runs = r->q_runs;
    block.n_q_runs = r->n_q_runs;
    block.k_runs = r->k_runs;
    block.n_k_runs = r->n_k_runs;
    block.segments = r->seen.segments;

    block.q_row_stride = (int64_t)shape->heads.n_q * shape->head_size;
    block.k_row_stride = memoi_ring_row(shape, 0);
    block.v_row_stride = memoi_ring_row(shape, 1);
    block.out_row_stride = (int64_t)shape->heads.n_q * shape->v_head_size;
    block.lse_row_stride = shape->heads.n_q;
    block.q_batch_stride = shape->sharding.ring_tokens * block.q_row_stride;
    block.k_batch_stride = (s > 0 ? r->n_k_rows : n_keys) * block.k_row_stride;
    block.v_batch_stride = (s > 0 ? r->n_k_rows : n_keys) * block.v_row_stride;
    block.out_batch_stride = shape->sharding.ring_tokens * block.out_row_stride;
    block.lse_batch_stride = shape->sharding.ring_tokens * block.lse_row_stride;

    /* Addresses of row 0; then of the block's first rows. */
    block.q = ring->q;
    block.k = memoi_ring_keys(ring, 0, s);
    block.v = memoi_ring_keys(ring, 1, s);
    block.lse = merges ? buffers->block_lse : ring->lse;
    if (ring->is_backward) {
        block.d_out = ring->d_out;
        block.row_dots = ring->row_dots;
        block.d_q = ring->d_q;
        memoi_ring_d_kv(ring, s, d_kv);
        block.d_k = d_kv[0];
        block.d_v = d_kv[1];
    } else {
        block.out = merges ? buffers->block_out : ring->out;
    }

    memoi_ring_block_move(&block, part * shape->sharding.ring_tokens + r->q_row,
                          s > 0 ? r->k_row : part * n_keys, 0, 0);
    return block;
}

/* The bytes of n rows of each batch, from the first row of the first batch to the last row of the
 * last one; like: the array whose strides they have. */
#define MEMOI_RING_RANGE(b, x, like, n, element_bytes)                                             \
    memob_range_at(                                                                                \
        (b)->x, (((b)->n_batch - 1) * (b)->like##_batch_stride + (n) * (b)->like##_row_stride) *   \
                    (element_bytes))

/* Announces the operation with what it reads and writes. */
MEMOI void memoi_ring_announce(const memoi_ring* ring, const memo_attention_block* b, int64_t n_q,
                               int64_t n_k) {
    const int64_t bytes = memo_type_bytes(b->type);
    const memo_range reads[] = {
        MEMOI_RING_RANGE(b, q, q, n_q, bytes), MEMOI_RING_RANGE(b, k, k, n_k, bytes),
        MEMOI_RING_RANGE(b, v, v, n_k, bytes), MEMOI_RING_RANGE(b, d_out, out, n_q, bytes),
        MEMOI_RING_RANGE(b, lse, lse, n_q, 4), MEMOI_RING_RANGE(b, row_dots, lse, n_q, 4)};
    const memo_range forward[] = {MEMOI_RING_RANGE(b, out, out, n_q, 4),
                                  MEMOI_RING_RANGE(b, lse, lse, n_q, 4)};
    const memo_range backward[] = {MEMOI_RING_RANGE(b, d_q, q, n_q, 4),
                                   MEMOI_RING_RANGE(b, d_k, k, n_k, 4),
                                   MEMOI_RING_RANGE(b, d_v, v, n_k, 4)};
    if (ring->is_backward)
        memoi_target_announce(ring->target, MEMOI_TARGET_COMPUTE, "attention backward", reads, 6,
                              backward, 3, 0);
    else
        memoi_target_announce(ring->target, MEMOI_TARGET_COMPUTE, "attention", reads, 3, forward, 2,
                              0);
}

/* Calls a function of latent keys for each sequence of a block of n_rows; part has some of its
 * heads. */
MEMOI void memoi_ring_latent(const memoi_ring* ring, const memo_attention_block* block,
                             const memo_attention_block* part, int32_t first_head, int64_t n_rows,
                             memo_latent_function function) {
    const memo_latent* latent = &ring->shape->latent;
    const int64_t bytes = memo_type_bytes(block->type);
    memoi_target* target = ring->target;
    memo_latent_block rows;
    rows.type = block->type;
    rows.first_kv_head = first_head;
    rows.n_kv_heads = part->n_kv_heads;
    rows.n_rows = n_rows;
    for (int64_t b = 0; b < block->n_batch && !target->status; b++) {
        rows.latent = (const char*)block->k + b * block->k_batch_stride * bytes;
        rows.k = ring->buffers.expanded[0] + b * part->k_batch_stride * bytes;
        rows.v = ring->buffers.expanded[1] + b * part->v_batch_stride * bytes;
        rows.d_k = ring->is_backward ? part->d_k + b * part->k_batch_stride : NULL;
        rows.d_v = ring->is_backward ? part->d_v + b * part->v_batch_stride : NULL;
        rows.d_latent = ring->is_backward ? block->d_k + b * block->k_batch_stride : NULL;
        target->status =
            function(latent->user, target->streams[MEMOI_TARGET_COMPUTE], &rows, target->error);
    }
}

/* Gives a part of a block its keys and values, from latent rows. */
MEMOI void memoi_ring_expand(const memoi_ring* ring, const memo_attention_block* block,
                             memo_attention_block* part, int32_t first_head, int64_t n_rows) {
    const memoi_ring_buffers* buffers = &ring->buffers;
    part->k = buffers->expanded[0];
    part->v = buffers->expanded[1];
    part->k_row_stride = (int64_t)part->n_kv_heads * part->head_size;
    part->v_row_stride = (int64_t)part->n_kv_heads * part->v_head_size;
    part->k_batch_stride = n_rows * part->k_row_stride;
    part->v_batch_stride = n_rows * part->v_row_stride;
    if (ring->is_backward) {
        part->d_k = buffers->d_expanded[0];
        part->d_v = buffers->d_expanded[1];
        memoi_target_fill(ring->target, MEMOI_TARGET_COMPUTE, part->d_k,
                          part->n_batch * part->k_batch_stride * 4);
        memoi_target_fill(ring->target, MEMOI_TARGET_COMPUTE, part->d_v,
                          part->n_batch * part->v_batch_stride * 4);
    }
    memoi_ring_latent(ring, block, part, first_head, n_rows, ring->shape->latent.expand);
}

/* In at most three parts of the rank's heads, or more of latent keys: the callback requires that
 * query heads share key heads evenly. */
MEMOI void memoi_ring_attend(const memoi_ring* ring, const memo_attention_block* block,
                             const memoi_exchange_step* r) {
    const memo_attention* attention = ring->attention;
    const memo_ulysses_heads* own = &ring->shape->heads;
    const memo_latent* latent = &ring->shape->latent;
    int32_t group = ring->shape->n_q_heads / ring->shape->n_read_heads, next;
    int32_t end = own->first_q + own->n_q;
    memoi_target* target = ring->target;
    if (memoi_target_is_heard(target)) memoi_ring_announce(ring, block, r->n_q_rows, r->n_k_rows);

    for (int32_t q = own->first_q; q < end && !target->status; q = next) {
        memo_attention_block part = *block;
        next = q % group || end - q < group ? (q / group + 1) * group : end / group * group;
        if (latent->size && latent->n_heads)
            next = (int32_t)memob_min(next, ((int64_t)q / group + latent->n_heads) * group);
        if (next > end) next = end;
        part.first_q_head += q - own->first_q;
        part.n_q_heads = next - q;
        part.n_kv_heads = (next - 1) / group - q / group + 1;
        MEMO_ASSERT(part.n_q_heads % part.n_kv_heads == 0); /* 2 */
        memoi_ring_block_move(&part, 0, 0, q - own->first_q,
                              latent->size ? 0 : q / group - own->first_kv);
        if (latent->size) memoi_ring_expand(ring, block, &part, q / group, r->n_k_rows);
        if (!target->status)
            target->status = (ring->is_backward ? attention->backward : attention->forward)(
                attention->user, target->streams[MEMOI_TARGET_COMPUTE], &part, target->error);
        if (latent->size && ring->is_backward)
            memoi_ring_latent(ring, block, &part, q / group, r->n_k_rows, latent->reduce);
    }
}

MEMOI void memoi_ring_merge(const memoi_ring* ring, const memo_attention_block* block,
                            const memoi_exchange_step* r) {
    const memoi_shape* shape = ring->shape;
    memo_merge_desc merge = MEMO_ZERO(memo_merge_desc);
    merge.part_out = block->out;
    merge.part_lse = block->lse;
    merge.part_type = MEMO_TYPE_F32;
    merge.out = ring->out + (block->out - ring->buffers.block_out);
    merge.lse = ring->lse + (block->lse - ring->buffers.block_lse);
    merge.n_batches = block->n_batch;
    merge.n_rows = r->n_q_rows * shape->heads.n_q;
    merge.n_columns = shape->v_head_size;
    merge.batch_stride_rows = shape->sharding.ring_tokens * shape->heads.n_q;
    memoi_target_kernel(ring->target, MEMOI_TARGET_COMPUTE, MEMO_ROW_MERGE, &merge);
}

/* LSEs of n rows in each of n_batch sequences, of rows that see nothing: -inf, which is 4 times a
 * number whose bytes are equal, and which is nearly the lowest. */
MEMOI void memoi_ring_clear_lses(const memoi_ring* ring, float* lse, int64_t n, int32_t n_batch) {
    const int64_t n_heads = ring->shape->heads.n_q;
    const int64_t stride = ring->shape->sharding.ring_tokens * n_heads;
    memoi_target* target = ring->target;
    for (int32_t b = 0; b < n_batch && !target->status; b++)
        target->status = memo_fill(target->device, target->streams[MEMOI_TARGET_COMPUTE],
                                   lse + b * stride, 0xfe, n * n_heads * 4, target->error);
    for (int k = 0; k < 2; k++)
        memoi_target_add(target, MEMOI_TARGET_COMPUTE, MEMO_TYPE_F32, lse, stride, lse, stride,
                         n * n_heads, n_batch);
}

/* Rows that see nothing in step 0, such as padding, and rows between them. */
MEMOI void memoi_ring_clear_rows(const memoi_ring* ring) {
    const memoi_shape* shape = ring->shape;
    const int64_t first = ring->plan->first_unset, n = shape->sharding.ring_tokens - first;
    const int64_t row = (int64_t)shape->heads.n_q * shape->v_head_size;
    if (!n || !shape->heads.n_q) return;
    for (int32_t b = 0; b < shape->n_batch; b++)
        memoi_target_fill(ring->target, MEMOI_TARGET_COMPUTE,
                          ring->out + (b * shape->sharding.ring_tokens + first) * row, n * row * 4);
    memoi_ring_clear_lses(ring, ring->lse + first * shape->heads.n_q, n, shape->n_batch);
}

/* Before the first step.  In backward it zeroes the gradients that steps add to. */
MEMOI void memoi_ring_begin(memoi_ring* ring) {
    const memoi_shape* shape = ring->shape;
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    ring->n_turns = ring->last_brought = ring->last_held = 0;
    if (!ring->is_backward) memoi_ring_clear_rows(ring);
    if (!ring->is_backward) return;
    memoi_target_fill(ring->target, MEMOI_TARGET_COMPUTE, ring->d_q,
                      memoi_ring_q_elements(shape) * 4);
    if (!shape->heads.n_q) return;
    memoi_target_touch(ring->target, &op, MEMOI_CELL_OWN_SUMS, 1);
    if (ring->plan->crosses) memoi_target_touch(ring->target, &op, MEMOI_CELL_FAR_SUMS, 1);
    memoi_target_begin(ring->target, &op);
    for (int32_t is_v = 0; is_v < 2; is_v++) {
        const int64_t n_bytes = memoi_ring_kv_elements(shape, is_v) * 4;
        memoi_target_fill(ring->target, MEMOI_TARGET_COMPUTE, ring->d_kv_final[is_v], n_bytes);
        if (ring->plan->crosses)
            memoi_target_fill(ring->target, MEMOI_TARGET_COMPUTE, ring->buffers.far_sums[is_v],
                              n_bytes);
    }
    memoi_target_end(ring->target, &op);
}

/* The messages of a sequence's pieces of k or v, one each: from their places on the owner, or to
 * where they arrive, one after another.  Returns the address behind the latter. */
MEMOI char* memoi_ring_send_pieces(const memoi_ring* ring, int stream, int tensor,
                                   const memoi_exchange_pieces* p, int is_receive, char* rows,
                                   int32_t peer) {
    memo_comm* comm = stream == MEMOI_TARGET_NODES ? ring->nodes : ring->comm;
    const int64_t row = memoi_ring_row(ring->shape, tensor);
    const int64_t row_bytes = memoi_ring_row_bytes(ring->shape, tensor);
    for (int32_t k = 0; k < p->n; k++) {
        const int64_t n = p->rows[k].end - p->rows[k].begin;
        memoi_target_message(ring->target, stream, comm, !is_receive,
                             is_receive ? rows : rows + p->rows[k].begin * row_bytes, n * row,
                             memoi_ring_type(ring->shape, tensor), peer);
        if (is_receive) rows += n * row_bytes;
    }
    return rows;
}

/* k or v of all sequences, own rows or held ones to a peer, which pieces are of; or those that come
 * from a peer. */
MEMOI void memoi_ring_send_rows(const memoi_ring* ring, int stream, int is_v, int32_t held,
                                const memoi_exchange_pieces* pieces, int32_t peer) {
    const memoi_shape* shape = ring->shape;
    char* rows = memoi_ring_held(ring, is_v, held);
    for (int32_t b = 0; b < shape->n_batch; b++)
        memoi_ring_send_pieces(
            ring, stream, is_v, pieces + (shape->n_parts > 1 ? b : 0), 0,
            rows + memoi_ring_rows_before(ring, held, b) * memoi_ring_row_bytes(shape, is_v), peer);
}
MEMOI void memoi_ring_get_rows(const memoi_ring* ring, int stream, int is_v, char* rows,
                               const memoi_exchange_pieces* pieces, int32_t peer) {
    for (int32_t b = 0; b < ring->shape->n_batch; b++)
        rows = memoi_ring_send_pieces(ring, stream, is_v,
                                      pieces + (ring->shape->n_parts > 1 ? b : 0), 1, rows, peer);
}

/* A contribution to d_k and d_v of n rows, in one message. */
MEMOI void memoi_ring_send_gradients(const memoi_ring* ring, int stream, int is_receive, int64_t n,
                                     char* rows, int32_t peer) {
    memoi_target_message(
        ring->target, stream, stream == MEMOI_TARGET_NODES ? ring->nodes : ring->comm, !is_receive,
        rows, n * memoi_ring_row(ring->shape, MEMOI_RING_D_KV), ring->shape->carried_type, peer);
}

/* Adds packed rows, contributions of readers, to the sums of held rows, or of own ones (0); pieces:
 * of each part. */
MEMOI void memoi_ring_add(memoi_ring* ring, int stream, char* packed, int64_t n_rows, int32_t held,
                          const memoi_exchange_pieces* pieces) {
    const memoi_shape* shape = ring->shape;
    const int64_t bytes = memo_type_bytes(shape->carried_type);
    memo_pack_desc pack;
    float* d_kv[2];
    int64_t n = 0;
    memoi_ring_sums(ring, held, d_kv);
    pack.packed_type = shape->carried_type;
    pack.rows_type = MEMO_TYPE_F32;
    pack.n_ranges = 0;
    pack.packed[0] = packed;
    for (int32_t t = 0; t < 2; t++) {
        pack.n_columns[t] = memoi_ring_row(shape, t);
        pack.rows[t] = d_kv[t];
    }
    pack.packed[1] = packed + n_rows * pack.n_columns[0] * bytes;

    for (int32_t b = 0; b < shape->n_batch; b++) {
        const memoi_exchange_pieces* p = &pieces[shape->n_parts > 1 ? b : 0];
        const int64_t before = memoi_ring_rows_before(ring, held, b);
        for (int32_t k = 0; k < p->n; k++) {
            pack.begins[pack.n_ranges] = before + p->rows[k].begin;
            n += p->rows[k].end - p->rows[k].begin;
            pack.ends[pack.n_ranges++] = n;
            if (pack.n_ranges < MEMO_PACK_MAX) continue;
            memoi_target_kernel(ring->target, stream, MEMO_ROW_ADD_PACKED, &pack);
            for (int32_t t = 0; t < 2; t++)
                pack.packed[t] = (char*)pack.packed[t] + n * pack.n_columns[t] * bytes;
            pack.n_ranges = 0;
            n = 0;
        }
    }
    if (n) memoi_target_kernel(ring->target, stream, MEMO_ROW_ADD_PACKED, &pack);
}

/* An exchange reads rows, or writes them. */
MEMOI void memoi_ring_access_add(memoi_ring_access* x, int is_written, const void* at,
                                 int64_t n_bytes) {
    if (is_written)
        x->writes[x->n_writes++] = memob_range_at(at, n_bytes);
    else
        x->reads[x->n_reads++] = memob_range_at(at, n_bytes);
}
/* It sends some of held rows, or own ones (0): all are announced, whichever travel. */
MEMOI void memoi_ring_access_sent(const memoi_ring* ring, memoi_ring_access* x, int32_t held,
                                  int64_t n_sent) {
    const memoi_shape* shape = ring->shape;
    const int64_t n = held ? memoi_exchange_held_of(ring->plan, held)->n_rows
                           : shape->n_batch * shape->key_sharding.ring_tokens;
    for (int is_v = 0; is_v < 2; is_v++) {
        const int64_t row_bytes = memoi_ring_row_bytes(shape, is_v);
        memoi_ring_access_add(x, 0, memoi_ring_held(ring, is_v, held), n * row_bytes);
        x->n_out += n_sent * row_bytes;
    }
}

/* What an exchange reads and writes. */
MEMOI void memoi_ring_touch_turn(memoi_ring* ring, const memoi_exchange_turn* turn,
                                 memoi_target_op* op, memoi_ring_access* x) {
    const memoi_shape* shape = ring->shape;
    const int64_t given_bytes = memoi_ring_row_bytes(shape, MEMOI_RING_D_KV);
    if (turn->reader >= 0) {
        memoi_ring_access_sent(ring, x, turn->read_of,
                               memoi_ring_read_rows(ring, turn->read_of, turn->reader));
        memoi_ring_read_held(ring, op, turn->read_of);
    }
    if (turn->k) {
        for (int is_v = 0; is_v < 2; is_v++)
            memoi_ring_access_add(x, 1, memoi_ring_keys(ring, is_v, turn->k),
                                  memoi_ring_key_rows(ring, turn->k) *
                                      memoi_ring_row_bytes(shape, is_v));
        memoi_ring_fill_room(ring, op, MEMOI_POOL_KEYS, turn->k);
    }

    /* Gradients that leave, and those that come. */
    if (turn->given) {
        const int64_t n_bytes = memoi_ring_key_rows(ring, turn->given) * given_bytes;
        memoi_ring_read_room(ring, op, MEMOI_POOL_GRADIENTS, turn->given);
        if (turn->giver != shape->ring_rank) {
            memoi_ring_access_add(x, 0, memoi_ring_contribution(ring, turn->given), n_bytes);
            x->n_out += n_bytes;
        }
    }
    if (turn->giver >= 0) memoi_ring_add_to_held(ring, op, turn->given_of);
    if (turn->giver >= 0 && turn->giver != shape->ring_rank) {
        const int64_t n_bytes =
            memoi_ring_read_rows(ring, turn->given_of, turn->giver) * given_bytes;
        memoi_ring_access_add(x, 1, memoi_ring_taken(ring), n_bytes);
        memoi_ring_fill_bytes(ring, op, MEMOI_POOL_GRADIENTS, ring->plan->taken_row * given_bytes,
                              n_bytes);
    }
}

/* The messages of an exchange within the node. */
MEMOI void memoi_ring_messages(memoi_ring* ring, const memoi_exchange_turn* turn) {
    const memo_exchange* plan = ring->plan;
    const int32_t me = ring->shape->ring_rank, per = memoi_exchange_places(plan);
    for (int is_v = 0; is_v < 2; is_v++) {
        if (turn->reader >= 0)
            memoi_ring_send_rows(ring, MEMOI_TARGET_RING, is_v, turn->read_of,
                                 memoi_ring_read_pieces(ring, turn->read_of, turn->reader),
                                 turn->reader);
        if (turn->k) {
            const int32_t owner = plan->owners[turn->k];
            const int is_near = owner / per == me / per;
            memoi_ring_get_rows(ring, MEMOI_TARGET_RING, is_v, memoi_ring_keys(ring, is_v, turn->k),
                                memoi_exchange_pieces_of(
                                    plan, is_near ? MEMOI_PIECES_READ : MEMOI_PIECES_GOT, owner, 0),
                                me / per * per + owner % per);
        }
    }
    if (turn->given && turn->giver != me)
        memoi_ring_send_gradients(ring, MEMOI_TARGET_RING, 0,
                                  memoi_ring_key_rows(ring, turn->given),
                                  memoi_ring_contribution(ring, turn->given),
                                  me / per * per + plan->owners[turn->given] % per);
    if (turn->giver >= 0 && turn->giver != me)
        memoi_ring_send_gradients(ring, MEMOI_TARGET_RING, 1,
                                  memoi_ring_read_rows(ring, turn->given_of, turn->giver),
                                  memoi_ring_taken(ring), turn->giver);
}

/* The next exchange within the node, one group of messages; a rank adds its own contribution to
 * what it holds without one. */
MEMOI void memoi_ring_exchange_near(memoi_ring* ring, const memoi_exchange_turn* turn) {
    memoi_target* target = ring->target;
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_RING);
    memoi_ring_access x = MEMO_ZERO(memoi_ring_access);
    const int adds_own = turn->giver == ring->shape->ring_rank;
    if (turn->k) ring->last_brought = turn->k;
    memoi_ring_touch_turn(ring, turn, &op, &x);
    memoi_target_begin(target, &op);
    if (x.n_reads || x.n_writes) {
        memoi_target_group_begin(target, MEMOI_TARGET_RING, ring->comm, "ring exchange",
                                 turn->number, x.reads, x.n_reads, x.writes, x.n_writes, x.n_out);
        memoi_ring_messages(ring, turn);
        memoi_target_group_end(target, MEMOI_TARGET_RING, ring->comm);
    }

    /* What others contributed. */
    if (turn->giver >= 0)
        memoi_ring_add(ring, MEMOI_TARGET_RING,
                       adds_own ? memoi_ring_contribution(ring, turn->given)
                                : memoi_ring_taken(ring),
                       memoi_ring_read_rows(ring, turn->given_of, turn->giver), turn->given_of,
                       memoi_ring_read_pieces(ring, turn->given_of, turn->giver));
    memoi_target_end(target, &op);
}

/* Held rows come to their place, or their sum leaves. */
MEMOI void memoi_ring_touch_held(memoi_ring* ring, const memoi_exchange_turn* turn,
                                 memoi_target_op* op, memoi_ring_access* x) {
    const memoi_shape* shape = ring->shape;
    for (int i = 0; i < 2 && turn->k; i++) {
        const memoi_exchange_held* held = memoi_exchange_held_of(ring->plan, turn->k);
        const int pool = i ? MEMOI_POOL_SUMS : MEMOI_POOL_HELD;
        const int64_t row_bytes = memoi_ring_pool_row_bytes(ring, pool);
        memoi_ring_access_add(x, 1, memoi_ring_held(ring, i, turn->k),
                              held->n_rows * memoi_ring_row_bytes(shape, i));
        if (!i || ring->is_backward)
            memoi_ring_fill_bytes(ring, op, pool, held->row * row_bytes, held->n_rows * row_bytes);
    }

    /* Rows and sums that leave, and sums that come. */
    if (turn->reader >= 0) {
        memoi_ring_read_held(ring, op, 0);
        memoi_ring_access_sent(ring, x, 0, ring->plan->crossing_rows[turn->reader]);
    }
    if (turn->given) {
        const memoi_exchange_held* held = memoi_exchange_held_of(ring->plan, turn->given);
        const int64_t n_bytes = held->n_rows * memoi_ring_row_bytes(shape, MEMOI_RING_D_KV);
        float* d_kv[2];
        memoi_ring_sums(ring, turn->given, d_kv);
        memoi_ring_touch_room(ring, op, MEMOI_POOL_SUMS, held->row, 0);
        memoi_ring_access_add(
            x, 0, ring->buffers.sums_given ? ring->buffers.sums_given : (char*)d_kv[0], n_bytes);
        x->n_out += n_bytes;
    }
    if (turn->giver >= 0) {
        memoi_target_touch(ring->target, op, MEMOI_CELL_FAR_SUMS, 1);
        memoi_ring_access_add(x, 1, ring->buffers.sums_taken,
                              ring->plan->crossing_rows[turn->giver] *
                                  memoi_ring_row_bytes(shape, MEMOI_RING_D_KV));
    }
}

/* The next exchange between nodes. */
MEMOI void memoi_ring_exchange_far(memoi_ring* ring, const memoi_exchange_turn* turn) {
    const memo_exchange* plan = ring->plan;
    const int32_t n_parts = ring->shape->n_parts, per = memoi_exchange_places(plan);
    const int64_t row = memoi_ring_row(ring->shape, MEMOI_RING_D_KV);
    const int stream = MEMOI_TARGET_NODES;
    memoi_target* target = ring->target;
    memoi_target_op op = memoi_target_op_on(stream);
    memoi_ring_access x = MEMO_ZERO(memoi_ring_access);
    const memoi_exchange_held* comes = turn->k ? memoi_exchange_held_of(plan, turn->k) : NULL;
    const memoi_exchange_held* leaves =
        turn->given ? memoi_exchange_held_of(plan, turn->given) : NULL;
    char* sums = ring->buffers.sums_given;
    float* d_kv[2];
    if (turn->k) ring->last_held = turn->k;
    memoi_ring_touch_held(ring, turn, &op, &x);
    memoi_target_begin(target, &op);
    if (leaves) {
        memoi_ring_sums(ring, turn->given, d_kv);
        if (sums)
            memoi_target_cast(target, stream, sums, ring->shape->carried_type, d_kv[0],
                              leaves->n_rows * row);
        else
            sums = (char*)d_kv[0];
    }

    memoi_target_group_begin(target, stream, ring->nodes, "node exchange", turn->number, x.reads,
                             x.n_reads, x.writes, x.n_writes, x.n_out);
    for (int is_v = 0; is_v < 2; is_v++) {
        if (turn->reader >= 0)
            memoi_ring_send_rows(ring, stream, is_v, 0, plan->crossing + turn->reader * n_parts,
                                 turn->reader);
        if (comes)
            memoi_ring_get_rows(ring, stream, is_v, memoi_ring_held(ring, is_v, turn->k),
                                memoi_exchange_whole_of(plan, turn->k), comes->owner / per);
    }
    if (leaves)
        memoi_ring_send_gradients(ring, stream, 0, leaves->n_rows, sums, leaves->owner / per);
    if (turn->giver >= 0)
        memoi_ring_send_gradients(ring, stream, 1, plan->crossing_rows[turn->giver],
                                  ring->buffers.sums_taken, turn->giver);
    memoi_target_group_end(target, stream, ring->nodes);

    if (comes && ring->is_backward) {
        memoi_ring_sums(ring, turn->k, d_kv);
        memoi_target_fill(target, stream, d_kv[0], comes->n_rows * row * 4);
    }
    if (turn->giver >= 0)
        memoi_ring_add(ring, stream, ring->buffers.sums_taken, plan->crossing_rows[turn->giver],
                       MEMOI_RING_FAR, plan->crossing + turn->giver * n_parts);
    memoi_target_end(target, &op);
}

/* Before the first block of step s.  The rows of a contribution go back as they came, in
 * carried_type: then the steps' own sums are of the compute stream alone. */
MEMOI void memoi_ring_step_begin(memoi_ring* ring, int32_t s, memoi_target_op* op) {
    const int is_apart = ring->is_backward && memoi_ring_step_is_apart(ring, s);
    memoi_target* target = ring->target;
    float* d_kv[2];
    const int32_t held = s > 0 ? ring->plan->held_of[s] : 0;
    MEMO_ASSERT(held ? held <= ring->last_held : s <= ring->last_brought); /* 1 */
    memoi_target_touch(target, op, ring->heads_cell, 0);
    if (s > 0 && !held)
        memoi_ring_read_room(ring, op, MEMOI_POOL_KEYS, s);
    else
        memoi_ring_read_held(ring, op, held);
    if (ring->is_backward && !is_apart) memoi_target_touch(target, op, MEMOI_CELL_OWN_SUMS, 1);
    if (is_apart && !ring->buffers.d_kv_step)
        memoi_ring_fill_room(ring, op, MEMOI_POOL_GRADIENTS, s ? s : ring->last_step + 1);
    memoi_target_begin(target, op);
    if (!is_apart) return;
    memoi_ring_d_kv(ring, s, d_kv);
    memoi_target_fill(target, MEMOI_TARGET_COMPUTE, d_kv[0],
                      memoi_ring_key_rows(ring, s) * memoi_ring_row(ring->shape, MEMOI_RING_D_KV) *
                          4);
}

MEMOI void memoi_ring_step(memoi_ring* ring, int32_t s) {
    const memoi_shape* shape = ring->shape;
    memoi_target* target = ring->target;
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    int has_worked = 0;
    for (int32_t mask = 0; mask < shape->n_parts * ring->plan->n_levels; mask++) {
        const memoi_exchange_step* step = memoi_ring_step_of(ring, s, mask);
        memo_attention_block block;
        if (!step->seen.segments.n) continue;
        if (!has_worked) memoi_ring_step_begin(ring, s, &op);
        has_worked = 1;
        block = memoi_ring_block(ring, mask, step, s);
        if (memoi_ring_merges(ring, mask, s) && step->seen.n_rows < step->n_q_rows)
            memoi_ring_clear_lses(ring, block.lse, step->n_q_rows, block.n_batch);
        memoi_ring_attend(ring, &block, step);
        if (memoi_ring_merges(ring, mask, s)) memoi_ring_merge(ring, &block, step);
    }
    if (has_worked) memoi_target_end(target, &op);

    /* A contribution that was computed elsewhere. */
    if (s > 0 && ring->is_backward && ring->buffers.d_kv_step && has_worked) {
        op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
        memoi_ring_fill_room(ring, &op, MEMOI_POOL_GRADIENTS, s);
        memoi_target_begin(target, &op);
        memoi_target_cast(target, MEMOI_TARGET_COMPUTE, memoi_ring_contribution(ring, s),
                          shape->carried_type, ring->buffers.d_kv_step,
                          memoi_ring_key_rows(ring, s) * memoi_ring_row(shape, MEMOI_RING_D_KV));
        memoi_target_end(target, &op);
    }
}

/* The exchanges that may begin behind step s; 0: from the start.  Before the first part of own keys
 * those that add no contribution: what is enqueued later may wait for that part. */
MEMOI void memoi_ring_exchange_behind(memoi_ring* ring, int32_t s) {
    const memo_exchange* plan = ring->plan;
    while (ring->n_turns < plan->n_turns[ring->is_backward]) {
        const memoi_exchange_turn* turn = &plan->turns[ring->is_backward][ring->n_turns];
        const int is_far = turn->number % MEMOI_N_LINKS == MEMOI_LINK_NODES;
        if (turn->gate > memob_max(s, 0)) break;
        if (s == MEMOI_RING_OWN_FIRST && turn->giver >= 0 && !is_far) break;
        ring->n_turns++;
        (is_far ? memoi_ring_exchange_far : memoi_ring_exchange_near)(ring, turn);
    }
}

/* Adds to the gradients of own keys: the own contribution, or those of other nodes. */
MEMOI void memoi_ring_add_sums(memoi_ring* ring, float* const d_kv[2], int is_far) {
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    const int64_t n_own = ring->shape->n_batch * ring->shape->key_sharding.ring_tokens;
    memoi_target_touch(ring->target, &op, MEMOI_CELL_OWN_SUMS, 1);
    if (is_far)
        memoi_target_touch(ring->target, &op, MEMOI_CELL_FAR_SUMS, 0);
    else if (!ring->buffers.d_kv_step)
        memoi_ring_read_room(ring, &op, MEMOI_POOL_GRADIENTS, ring->last_step + 1);
    memoi_target_begin(ring->target, &op);
    for (int32_t is_v = 0; is_v < 2; is_v++)
        memoi_target_add(ring->target, MEMOI_TARGET_COMPUTE, MEMO_TYPE_F32, ring->d_kv_final[is_v],
                         0, d_kv[is_v], 0, n_own * memoi_ring_row(ring->shape, is_v), 1);
    memoi_target_end(ring->target, &op);
}

/* All steps.  A backward begins with a part of step 0, the rank's own keys, while the first keys
 * arrive, and ends with the rest, behind which the last contributions return. */
MEMOI void memoi_ring_run(memoi_ring* ring) {
    const int32_t n = ring->last_step + 1, is_backward = ring->is_backward;
    float* d_kv[2];
    memoi_ring_begin(ring);
    if (!ring->shape->heads.n_q) return;
    if (is_backward && ring->plan->splits_own) {
        memoi_ring_exchange_behind(ring, MEMOI_RING_OWN_FIRST);
        memoi_ring_step(ring, MEMOI_RING_OWN_FIRST);
    }
    memoi_ring_exchange_behind(ring, 0);
    for (int32_t i = 0; i < n; i++) {
        const int32_t s = (i + is_backward) % n;
        memoi_ring_step(ring, s);
        if (!s) continue;
        memoi_ring_exchange_behind(ring, s);
    }

    /* All contributions of others are there. */
    if (!is_backward) return;
    if (memoi_ring_is_apart(ring)) {
        memoi_ring_d_kv(ring, 0, d_kv);
        memoi_ring_add_sums(ring, d_kv, 0);
    }
    if (ring->plan->crosses) memoi_ring_add_sums(ring, ring->buffers.far_sums, 1);
}

/* ---- >>attention desc ---------------------------------------------------------------------------
 * Knows: what a desc of attention may say, and the shape that follows.  Knows nothing of memory or
 * of passes. */

MEMOI int memoi_desc_is_alike(const memo_sharding* a, const memo_sharding* b) {
    return a->kind == b->kind && a->ring == b->ring && a->ulysses == b->ulysses &&
           a->slice_tokens == b->slice_tokens && a->padded_tokens == b->padded_tokens &&
           a->local_tokens == b->local_tokens && a->ring_tokens == b->ring_tokens &&
           !a->pieces == !b->pieces;
}

/* A sharding must be as memo_sharding_make left it: memory is counted from its fields. */
MEMOI memo_status memoi_desc_made_check(const char* field, const memo_sharding* sharding,
                                        memo_error* error) {
    memo_sharding made = *sharding;
    if (memoi_sharding_measure(&made, error)) return MEMO_STATUS_INVALID_ARGUMENT;
    if (memoi_desc_is_alike(&made, sharding) && !made.pieces == !made.document_begins)
        return MEMO_STATUS_OK;
    return MEMOI_REFUSE("memo_sp_attention_desc.%s: changed (local_tokens %lld); use it as "
                        "memo_sharding_make left it (%lld)",
                        field, (long long)sharding->local_tokens, (long long)made.local_tokens);
}

/* Communicators and shardings come from different calls, so they may disagree. */
MEMOI memo_status memoi_desc_rank_check(const char* name, const char* rank_name,
                                        const memo_comm* comm, int32_t degree, int32_t rank,
                                        memo_error* error) {
    if (comm && comm->size != degree)
        return MEMOI_REFUSE("memo_sp_attention_desc.%s: its size is not the sharding's degree (%d, "
                            "%d); make both from one mesh",
                            name, (int)comm->size, (int)degree);
    return memob_check_integer("memo_sp_attention_desc", rank_name, rank, 0, degree - 1, error);
}

MEMOI int32_t memoi_desc_n_nodes(const memo_sp_attention_desc* desc) {
    const int32_t n = desc->nodes ? desc->nodes->size : desc->n_nodes;
    return n > 1 ? n : 1;
}

/* Consecutive ring ranks share a node. */
MEMOI memo_status memoi_desc_nodes_check(const memo_sp_attention_desc* desc, memo_error* error) {
    const int32_t n = memoi_desc_n_nodes(desc), ring = desc->sharding.ring;
    const int32_t rank = desc->ring ? desc->ring->rank : desc->ring_rank;
    if (desc->n_nodes < 0 || ring % n)
        return MEMOI_REFUSE(
            "memo_sp_attention_desc.n_nodes: %d nodes do not divide the ring (%d); 1, or a divisor",
            (int)(desc->n_nodes < 0 ? desc->n_nodes : n), (int)ring);
    if (desc->nodes && desc->nodes->rank != rank / (ring / n))
        return MEMOI_REFUSE("memo_sp_attention_desc.nodes: rank %d of nodes, but rank %d of the "
                            "ring; make both from one mesh",
                            (int)desc->nodes->rank, (int)rank);
    return MEMO_STATUS_OK;
}

/* What the desc of a sequence has, too; name: of the desc that the caller filled. */
MEMOI memo_status memoi_desc_heads_check(const char* name, const memo_sp_attention_desc* desc,
                                         memo_error* error) {
    const memo_sharding *sharding = &desc->sharding, *keys = &desc->key_sharding;
    const int32_t n_batch = desc->n_batch ? desc->n_batch : 1;
    const int64_t head_size =
        memob_max(memob_max(desc->head_size, desc->v_head_size), desc->latent.size);
    if (desc->n_q_heads < 1 || desc->n_kv_heads < 1 || desc->n_q_heads % desc->n_kv_heads)
        return MEMOI_REFUSE("%s.n_q_heads: not a positive multiple of n_kv_heads (%d, %d); choose "
                            "one that is",
                            name, (int)desc->n_q_heads, (int)desc->n_kv_heads);
    if (MEMOI_INTEGER(name, desc, n_batch, 0, INT32_MAX) ||
        MEMOI_INTEGER(name, desc, ulysses_groups, 0, INT32_MAX) ||
        MEMOI_INTEGER(name, desc, head_size, 1, 1 << 24) ||
        MEMOI_INTEGER(name, desc, v_head_size, 0, 1 << 24) ||
        MEMOI_INTEGER(name, desc, latent.size, 0, 1 << 24) ||
        MEMOI_INTEGER(name, desc, latent.n_heads, 0, INT32_MAX) ||
        MEMOI_REAL(name, desc, softcap, 0, 3e38) || MEMOI_REAL(name, desc, scale, -3e38, 3e38) ||
        memoi_check_row_type(name, "type", desc->type, error))
        return MEMO_STATUS_INVALID_ARGUMENT;

    if (desc->ulysses_groups > 1 && sharding->ulysses > 1) {
        const int64_t n_q = desc->n_q_heads, n_ranks = sharding->ulysses;
        int64_t works = memob_min(desc->ulysses_groups, n_q);
        while (works > 1 && n_q % (n_ranks * works)) works--;
        if (works < desc->ulysses_groups)
            return MEMOI_REFUSE("%s.ulysses_groups: %d do not divide the query heads of each rank "
                                "(%lld of %lld ranks); %lld would work",
                                name, (int)desc->ulysses_groups, (long long)n_q, (long long)n_ranks,
                                (long long)works);
    }

    /* Every count of bytes must fit 63 bits: all heads, sent to every rank, in every hop. */
    if ((double)memob_max(sharding->ring_tokens, keys->ring_tokens) * sharding->ring * n_batch *
            desc->n_q_heads * (double)head_size * sharding->ulysses >
        (double)(MEMOB_BYTES_MAX / 1024))
        return MEMOI_REFUSE("%s: too large (%lld tokens, %d query heads of %d, batch %d); tokens x "
                            "heads x head size x batch x ulysses may be 2^52",
                            name, (long long)memob_max(sharding->n_tokens, keys->n_tokens),
                            (int)desc->n_q_heads, (int)head_size, (int)n_batch);
    return MEMO_STATUS_OK;
}

/* Everything that does not need a device. */
MEMOI memo_status memoi_desc_shape_check(const memo_sp_attention_desc* desc, memo_error* error) {
    const memo_sharding *sharding = &desc->sharding, *keys = &desc->key_sharding;
    const int32_t n_batch = desc->n_batch ? desc->n_batch : 1;
    if (sharding->ring < 1 || sharding->ulysses < 1 || sharding->local_tokens < 1)
        return MEMOI_REFUSE(
            "memo_sp_attention_desc.sharding: empty; fill it with memo_sharding_make");
    if (memoi_desc_made_check("sharding", sharding, error) ||
        (keys->local_tokens && memoi_desc_made_check("key_sharding", keys, error)))
        return MEMO_STATUS_INVALID_ARGUMENT;

    if (memoi_desc_rank_check("ring", "ring_rank", desc->ring, sharding->ring, desc->ring_rank,
                              error) ||
        memoi_desc_rank_check("ulysses", "ulysses_rank", desc->ulysses, sharding->ulysses,
                              desc->ulysses_rank, error) ||
        memoi_desc_nodes_check(desc, error) ||
        memoi_desc_heads_check("memo_sp_attention_desc", desc, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (desc->n_masks < 0 || (desc->n_masks > 1 && desc->n_masks != n_batch))
        return MEMOI_REFUSE(
            "memo_sp_attention_desc.n_masks: not valid (%d); 1 and n_batch (%d) are",
            (int)desc->n_masks, (int)n_batch);

    if (keys->local_tokens && (keys->ring != sharding->ring || keys->ulysses != sharding->ulysses))
        return MEMOI_REFUSE("memo_sp_attention_desc.key_sharding: ring %d x ulysses %d, but "
                            "sharding has %d x %d; make both with the same degrees",
                            (int)keys->ring, (int)keys->ulysses, (int)sharding->ring,
                            (int)sharding->ulysses);
    return MEMO_STATUS_OK;
}

/* Without tokens. */
MEMOI memo_status memoi_desc_shape_make(const memo_sp_attention_desc* desc, memoi_shape* shape,
                                        memo_error* error) {
    const int64_t n_q = desc->n_q_heads;
    int64_t n_ranks = desc->sharding.ulysses;
    memo_status status = memoi_desc_shape_check(desc, error);
    memset(shape, 0, sizeof *shape);
    if (status) return status;

    /* Who holds which tokens. */
    shape->sharding = desc->sharding;
    shape->has_key_sharding = desc->key_sharding.local_tokens > 0;
    shape->key_sharding = shape->has_key_sharding ? desc->key_sharding : desc->sharding;
    shape->ring_rank = desc->ring ? desc->ring->rank : desc->ring_rank;
    shape->ulysses_rank = desc->ulysses ? desc->ulysses->rank : desc->ulysses_rank;

    shape->n_nodes = memoi_desc_n_nodes(desc);
    if (shape->n_nodes == desc->sharding.ring) shape->n_nodes = 1; /* nothing to pass on */

    /* The attention of a head. */
    shape->n_batch = desc->n_batch ? desc->n_batch : 1;
    shape->n_q_heads = desc->n_q_heads;
    shape->n_kv_heads = desc->latent.size ? 1 : desc->n_kv_heads;
    shape->n_read_heads = desc->n_kv_heads;
    shape->head_size = desc->head_size;
    shape->v_head_size = desc->v_head_size ? desc->v_head_size : desc->head_size;
    shape->kv_size[0] = desc->latent.size ? desc->latent.size : shape->head_size;
    shape->kv_size[1] = desc->latent.size ? 0 : shape->v_head_size;
    shape->latent = desc->latent;
    shape->type = desc->type;
    shape->scale = desc->scale != 0 ? desc->scale : (float)(1 / sqrt((double)desc->head_size));
    shape->softcap = desc->softcap;

    /* How it travels. */
    shape->sends_again = desc->sends_again;
    shape->carried_type =
        desc->rounds_gradients && desc->sharding.ring > 1 ? desc->type : MEMO_TYPE_F32;
    shape->n_groups = 1;
    if (desc->ulysses_groups && n_ranks > 1) shape->n_groups = desc->ulysses_groups;
    shape->heads = memoi_shape_split_heads(desc->n_q_heads, shape->n_kv_heads, (int32_t)n_ranks,
                                           shape->ulysses_rank);
    n_ranks *= shape->n_groups;
    for (int64_t r = 1; r < n_ranks;
         r++) /* does a rank or group begin within those of a key head? */
        shape->is_replicated |= r * n_q / n_ranks % (n_q / shape->n_kv_heads) != 0;
    shape->n_parts = desc->n_masks ? desc->n_masks : 1;
    shape->has_levels = desc->has_levels != 0;
    return MEMO_STATUS_OK;
}

/* The shape of one group of heads. */
MEMOI memoi_shape memoi_desc_group_of(const memoi_shape* shape, int32_t group) {
    memoi_shape part = *shape;
    part.group = group;
    part.heads = memoi_shape_heads_of(&part, shape->ulysses_rank);
    return part;
}

/* ---- >>uploads ----------------------------------------------------------------------------------
 * Knows: the segments of a plan's steps, and a device.  Knows nothing of what is computed.
 *
 * 1. Every array that is announced on the device is written.
 * 2. A flight has as many bytes on the host as on the device, or more. */

/* The number of steps, each of a mask. */
MEMOI int64_t memoi_exchange_count_steps(const memo_exchange* plan) {
    return (plan->last_step + 1 + 2 * plan->splits_own) * (int64_t)plan->shape.n_parts *
           plan->n_levels;
}

/* A block has a segment for each piece of a mask's segment that a run of queries cuts out, and one
 * more for each begin or end of a run of keys that an end of what queries see passes. */
int64_t memo_exchange_device_bytes(const memo_sp_attention_desc* desc, int64_t n_segments) {
    const int64_t most_levels = desc->has_levels ? MEMO_LEVELS_MAX : 1;
    const int64_t n_masks = memob_max(desc->n_masks, 1) * most_levels;
    int64_t n_runs = 2;
    for (int i = 0; i < 2; i++) {
        const memo_sharding* s = i ? &desc->key_sharding : &desc->sharding;
        if (s->slice_tokens) n_runs = memob_max(n_runs, 2 * (s->n_tokens / s->slice_tokens + 1));
        if (s->kind == MEMO_SHARDING_DOCUMENTS) n_runs = memob_max(n_runs, n_segments + 64);
    }
    n_runs += memob_min(n_segments + n_runs, MEMOI_PIECES_MAX); /* of rows that travel */
    return ((int64_t)desc->sharding.ring + 2) * (n_segments + n_masks * (5 * n_runs + 8)) *
           MEMOI_SEGMENT_BYTES;
}

/* Counts the numbers of the device arrays. */
MEMOI memo_status memoi_exchange_measure(memo_exchange* plan, const memo_exchange_desc* desc,
                                         memo_error* error) {
    for (int64_t i = 0; plan->launches && i < memoi_exchange_count_steps(plan); i++)
        plan->n_words += memoi_block_segments_count(&plan->steps[i].seen);
    plan->given_memory = desc->device_memory;
    if (desc->device_memory && desc->device_bytes < plan->n_words * 4)
        return MEMOI_REFUSE("memo_exchange_desc.device_bytes: %lld, but the segments need %lld; "
                            "memo_exchange_device_bytes of the masks is enough",
                            (long long)desc->device_bytes, (long long)plan->n_words * 4);
    return MEMO_STATUS_OK;
}

MEMOI void memoi_exchange_free(memo_exchange* plan) {
    memob_arrays_free(&plan->arrays);
    MEMO_FREE(plan);
}

/* --- flights --- */

/* What an exchange has from its begin until the stream has passed its end. */
typedef struct memoi_flight {
    struct memoi_flight* next;
    memo_exchange* exchange; /* NULL: free */
    memo_event end;
    int32_t has_end; /* recorded behind all passes of the exchange */
    int64_t device_bytes, host_bytes;
    void *on_device, *on_host; /* arrays of segments; on the host pinned */
} memoi_flight;

/* Flights and their streams are of the thread that calls passes. */
typedef struct memoi_flights {
    memoi_flight* first;
    memo_exchange* passed; /* no stream uses them any more; any thread frees them (atomic) */
} memoi_flights;

MEMOI void memoi_flights_pass(memoi_flights* flights, memo_exchange* plan) {
    plan->next = __atomic_load_n(&flights->passed, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&flights->passed, &plan->next, plan, 0, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED)) {
    }
}

MEMOI void memoi_flights_free_passed(memoi_flights* flights) {
    memo_exchange* plan = __atomic_exchange_n(&flights->passed, NULL, __ATOMIC_ACQUIRE);
    while (plan) {
        memo_exchange* next = plan->next;
        memoi_exchange_free(plan);
        plan = next;
    }
}

MEMOI memo_status memoi_flights_add(memoi_flights* flights, const memo_device* device,
                                    memoi_flight** result, memo_error* error) {
    memoi_flight* flight = (memoi_flight*)memob_calloc(1, sizeof *flight);
    memo_status status = flight ? memo_event_create_untimed(device, &flight->end, error)
                                : memob_no_memory(error, "an exchange in flight");
    if (status) {
        MEMO_FREE(flight);
        return status;
    }
    flight->next = flights->first;
    flights->first = flight;
    if (result) *result = flight;
    return MEMO_STATUS_OK;
}

/* A free flight with room for arrays, or one without arrays; NULL: there is none. */
MEMOI memoi_flight* memoi_flights_find(memoi_flights* flights, int64_t device_bytes,
                                       int64_t host_bytes) {
    memoi_flight *flight = flights->first, *empty = NULL;
    for (; flight; flight = flight->next) {
        if (flight->exchange) continue;
        if (flight->device_bytes >= device_bytes && flight->host_bytes >= host_bytes) return flight;
        if (!flight->host_bytes) empty = flight;
    }
    return empty;
}

/* Gives an exchange its flight.  What is allocated is a quarter larger, for batches to come. */
MEMOI memo_status memoi_flights_take(memoi_flights* flights, const memo_device* device,
                                     memo_exchange* plan, memo_error* error) {
    const int64_t host_bytes = plan->n_words * 4, more = host_bytes / 4;
    const int64_t device_bytes = plan->given_memory ? 0 : host_bytes;
    memo_status status = MEMO_STATUS_OK;
    memoi_flight* flight;

    /* The streams may have passed others. */
    for (flight = flights->first; flight; flight = flight->next) {
        int32_t is_done = 0;
        if (!flight->has_end || memo_event_query(device, flight->end, &is_done, NULL) || !is_done)
            continue;
        memoi_flights_pass(flights, flight->exchange);
        flight->exchange = NULL;
        flight->has_end = 0;
    }

    flight = memoi_flights_find(flights, device_bytes, host_bytes);
    if (!flight) status = memoi_flights_add(flights, device, &flight, error);
    if (!status && flight->host_bytes < host_bytes) {
        status = memo_host_alloc(device, host_bytes + more, &flight->on_host, error);
        if (!status) flight->host_bytes = host_bytes + more;
    }
    if (!status && flight->device_bytes < device_bytes) {
        status = memo_device_alloc(device, device_bytes + more, &flight->on_device, error);
        if (!status) flight->device_bytes = device_bytes + more;
    }
    if (status) return status;
    MEMO_ASSERT(flight->device_bytes <= flight->host_bytes); /* 2 */
    flight->exchange = plan;
    plan->flight = flight;
    return MEMO_STATUS_OK;
}

/* After the streams. */
MEMOI void memoi_flights_close(memoi_flights* flights, const memo_device* device) {
    memoi_flights_free_passed(flights);
    while (flights->first) {
        memoi_flight* flight = flights->first;
        flights->first = flight->next;
        if (flight->exchange && flight->exchange->has_ended) memoi_exchange_free(flight->exchange);
        if (flight->on_device) memo_device_free(device, flight->on_device, NULL);
        if (flight->on_host) memo_host_free(device, flight->on_host, NULL);
        (void)memo_event_destroy(device, flight->end, NULL);
        MEMO_FREE(flight);
    }
}

/* Enqueues one copy of the arrays of all steps, from the flight. */
MEMOI memo_status memoi_exchange_upload(memo_exchange* plan, const memo_device* device,
                                        memo_stream stream, memo_error* error) {
    int32_t *words = (int32_t*)plan->flight->on_host, *at = words;
    void* to = plan->given_memory ? plan->given_memory : plan->flight->on_device;
    if (!plan->n_words) return MEMO_STATUS_OK;
    for (int64_t i = 0; i < memoi_exchange_count_steps(plan); i++)
        at =
            memoi_block_segments_write(&plan->steps[i].seen, at, (const int32_t*)to + (at - words));
    MEMO_ASSERT(at == words + plan->n_words); /* 1 */
    return memo_copy(device, stream, MEMO_COPY_TO_DEVICE, to, words, plan->n_words * 4, error);
}

/* ---- >>attention buffers ------------------------------------------------------------------------
 * Knows: the tensors that a pass keeps beside the user's, and their sizes.  Knows nothing of the
 * order in which they are used.
 *
 * 1. The pools of keys lie at the same place in both passes.
 * 2. The groups of a rank have its query heads, each in one group. */

/* The buffers of one group of heads.  Buffers that the exchange of a group fills while another
 * group is computed exist twice, for even and odd groups. */
typedef struct memoi_buffers {
    char *q[2], *kv[2][2];      /* by heads; kv[number][is_v]; used if backward sends again */
    char* d_out[2];             /* by heads, in the tensors' type */
    char* staging;              /* for exchanges between rows and heads */
    float* out;                 /* by heads: fp32 output; d_q */
    float *dots_rows, *dots[2]; /* row dots by rows, by heads */
    char* results[3]; /* by heads, as they are sent: output or d_q, d_k, d_v; may be one buffer */
    /* (n_batch, local_tokens, n_kv_heads, larger head) of d_k and d_v of replicas; may be one */
    float* sums[2];
    memoi_ring_buffers ring;
} memoi_buffers;

/* Tensors that need no exchange and no rounding are computed in the user's memory. */
MEMOI int memoi_buffers_is_direct(const memoi_shape* shape) {
    return shape->sharding.ulysses == 1 && shape->type == MEMO_TYPE_F32;
}

/* q, k and v by heads, in this order. */
MEMOI void memoi_buffers_carve_heads(const memoi_shape* shape, memoi_carver* carver, char** q,
                                     char* kv[2]) {
    int64_t element_bytes = memo_type_bytes(shape->type);
    *q = memoi_carve(carver, memoi_ring_q_elements(shape) * element_bytes);
    for (int is_v = 0; is_v < 2; is_v++)
        kv[is_v] = memoi_carve(carver, memoi_ring_kv_elements(shape, is_v) * element_bytes);
}

/* What the buffers of a pass are carved from. */
typedef struct memoi_buffers_carving {
    const memoi_shape* shape;
    memoi_carver c;
    int64_t bytes;           /* of an element */
    int64_t n_q, n_kv[2];    /* elements: rows x heads of queries; of keys, of values */
    int64_t q_rows, kv_rows; /* of this rank */
    int64_t q_size, kv_size; /* the larger head, of both */
    int32_t has_ring, has_ulysses, is_grouped, is_direct, is_backward;
} memoi_buffers_carving;

/* First, so that forward and backward have the ring's buffers at the same place: then the waits
 * that order the use of a buffer in a pass order its use between passes, too. */
MEMOI void memoi_buffers_carve_ring(memoi_buffers_carving* v, memoi_buffers* b) {
    const memoi_shape* shape = v->shape;
    const int64_t all = memob_max(shape->heads.n_q * shape->n_read_heads / shape->n_q_heads, 1);
    const int64_t n_heads = shape->latent.n_heads ? memob_min(shape->latent.n_heads, all) : all;
    const int64_t n_latent =
        shape->n_batch / shape->n_parts * shape->key_sharding.ring_tokens * n_heads;
    for (int is_v = 0; is_v < 2; is_v++)
        b->ring.kv[is_v] =
            memoi_carve(&v->c, v->has_ring * memoi_pool_rows(shape, MEMOI_POOL_KEYS) *
                                   memoi_ring_row_bytes(shape, is_v));
    for (int is_v = 0; is_v < 2; is_v++)
        b->ring.held[is_v] =
            memoi_carve(&v->c, (shape->n_nodes > 1) * memoi_pool_rows(shape, MEMOI_POOL_HELD) *
                                   memoi_ring_row_bytes(shape, is_v));

    /* Keys and values of latent rows, of one step and as many heads as a call of attention has. */
    for (int is_v = 0; is_v < 2 && shape->latent.size; is_v++) {
        const int64_t n = n_latent * (is_v ? shape->v_head_size : shape->head_size);
        b->ring.expanded[is_v] = memoi_carve(&v->c, n * v->bytes);
        if (v->is_backward) b->ring.d_expanded[is_v] = (float*)memoi_carve(&v->c, n * 4);
    }
}

/* What is exchanged between rows and heads; row dots are fp32. */
MEMOI void memoi_buffers_carve_ulysses(memoi_buffers_carving* v, memoi_buffers* b) {
    const memoi_shape* shape = v->shape;
    const int64_t sent_kv_bytes = v->is_backward && shape->is_replicated ? 4 : v->bytes;
    const int64_t kv_bytes = v->kv_rows * v->kv_size * sent_kv_bytes; /* of a head */
    const int64_t q_bytes = v->q_rows * memob_max(v->q_size * v->bytes, 4);
    const int64_t most_kv = v->is_grouped ? 0 : memob_max(v->n_kv[0], v->n_kv[1]);
    int64_t most = 0; /* that all ranks need of a group */
    if (!v->has_ulysses) return;
    for (int32_t g = 0; g < shape->n_groups; g++) {
        const memoi_shape group = memoi_desc_group_of(shape, g);
        most = memob_max(most, memoi_ulysses_heads_needed(&group, 0) * q_bytes);
        most = memob_max(most, memoi_ulysses_heads_needed(&group, 1) * kv_bytes);
    }
    for (int i = 0; i < 2 && i < shape->n_groups && shape->sends_again; i++)
        memoi_buffers_carve_heads(shape, &v->c, &b->q[i], b->kv[i]);
    b->staging = memoi_carve(&v->c, most);

    /* One buffer serves d_out and then all results, unless they leave behind the next group. */
    if (v->is_backward || v->is_grouped || shape->type != MEMO_TYPE_F32)
        b->results[0] = memoi_carve(&v->c, memob_max(v->n_q * v->q_size, most_kv) * v->bytes);
    b->results[1] = b->results[2] = b->d_out[0] = b->results[0];
    if (!v->is_backward || !v->is_grouped) return;
    for (int i = 0; i < 2; i++) b->d_out[i] = memoi_carve(&v->c, v->n_q * v->q_size * v->bytes);
    for (int i = 0; i < 2; i++) b->results[1 + i] = memoi_carve(&v->c, v->n_kv[i] * sent_kv_bytes);
}

MEMOI void memoi_buffers_carve_gradients(memoi_buffers_carving* v, memoi_buffers* b) {
    const memoi_shape* shape = v->shape;
    const int64_t carried_bytes = memoi_ring_row_bytes(shape, MEMOI_RING_D_KV); /* of a row */
    const int64_t n_rows = shape->n_batch * shape->key_sharding.ring_tokens;
    const int rounds = shape->carried_type != MEMO_TYPE_F32;
    for (int i = 0; i < 2 && i < shape->n_groups; i++)
        b->dots[i] = (float*)memoi_carve(&v->c, v->n_q * 4);
    b->dots_rows = b->dots[0];
    if (v->has_ulysses) b->dots_rows = (float*)memoi_carve(&v->c, v->q_rows * shape->n_q_heads * 4);
    for (int i = 0; i < 2; i++)
        b->ring.d_kv[i] =
            (float*)memoi_carve(&v->c, (v->has_ring || !v->is_direct) * v->n_kv[i] * 4);

    /* Gradients of the ring, and of the rows that a rank holds for its node. */
    if (v->has_ring && rounds)
        b->ring.d_kv_step = (float*)memoi_carve(&v->c, (v->n_kv[0] + v->n_kv[1]) * 4);
    b->ring.gradients = memoi_carve(
        &v->c, v->has_ring * memoi_pool_rows(shape, MEMOI_POOL_GRADIENTS) * carried_bytes);
    if (shape->n_nodes > 1) {
        b->ring.held_sums =
            (float*)memoi_carve(&v->c, memoi_pool_rows(shape, MEMOI_POOL_SUMS) *
                                           memoi_ring_row(shape, MEMOI_RING_D_KV) * 4);
        for (int i = 0; i < 2; i++)
            b->ring.far_sums[i] = (float*)memoi_carve(&v->c, v->n_kv[i] * 4);
        b->ring.sums_taken = memoi_carve(&v->c, n_rows * carried_bytes);
        if (rounds) b->ring.sums_given = memoi_carve(&v->c, n_rows * carried_bytes);
    }

    /* Replicas are sent and summed in fp32. */
    for (int i = 0; i < 2 && shape->is_replicated; i++)
        b->sums[i] =
            i && !v->is_grouped
                ? b->sums[0]
                : (float*)memoi_carve(&v->c, v->kv_rows * shape->n_kv_heads * v->kv_size * 4);
}

/* The buffers of a pass behind base.  Returns their bytes; what is not used has none. */
MEMOI int64_t memoi_buffers_carve_pass(const memoi_shape* shape, char* base, int is_backward,
                                       memoi_buffers* b) {
    const int64_t out_size = is_backward ? shape->head_size : shape->v_head_size; /* or of d_q */
    memoi_buffers_carving v = MEMO_ZERO(memoi_buffers_carving);
    v.shape = shape;
    v.c.base = base;
    v.bytes = memo_type_bytes(shape->type);
    v.n_q = (int64_t)shape->n_batch * shape->sharding.ring_tokens * shape->heads.n_q;
    v.n_kv[0] = memoi_ring_kv_elements(shape, 0);
    v.n_kv[1] = memoi_ring_kv_elements(shape, 1);
    v.q_rows = shape->n_batch * shape->sharding.local_tokens;
    v.kv_rows = shape->n_batch * shape->key_sharding.local_tokens;
    v.q_size = memob_max(shape->head_size, shape->v_head_size);
    v.kv_size = memob_max(shape->kv_size[0], shape->kv_size[1]);
    v.has_ring = shape->sharding.ring > 1;
    v.has_ulysses = shape->sharding.ulysses > 1;
    v.is_grouped = shape->n_groups > 1;
    v.is_direct = memoi_buffers_is_direct(shape);
    v.is_backward = is_backward;

    memset(b, 0, sizeof *b);
    memoi_buffers_carve_ring(&v, b);
    memoi_buffers_carve_ulysses(&v, b);
    b->out = (float*)memoi_carve(&v.c, !v.is_direct * v.n_q * out_size * 4);
    if (is_backward) {
        memoi_buffers_carve_gradients(&v, b);
    } else {
        const int merges = v.has_ring || shape->has_levels;
        b->ring.block_out = (float*)memoi_carve(&v.c, merges * v.n_q * out_size * 4);
        b->ring.block_lse = (float*)memoi_carve(&v.c, merges * v.n_q * 4);
    }
    return v.c.n_bytes;
}

/* The buffers of both passes, in the same memory.  Returns the bytes needed. */
MEMOI int64_t memoi_buffers_carve_all(const memoi_shape* shape, char* base,
                                      memoi_buffers buffers[2]) {
    memoi_shape largest = *shape; /* with as many heads as the largest groups have */
    int64_t n_bytes;
    int32_t n_q = 0;
    largest.heads.n_q = largest.heads.n_kv = 0;
    for (int32_t g = 0; g < shape->n_groups; g++) {
        const memo_ulysses_heads heads = memoi_desc_group_of(shape, g).heads;
        n_q += heads.n_q;
        largest.heads.n_q = (int32_t)memob_max(largest.heads.n_q, heads.n_q);
        largest.heads.n_kv = (int32_t)memob_max(largest.heads.n_kv, heads.n_kv);
    }
    MEMO_ASSERT(n_q == shape->heads.n_q); /* 2 */

    n_bytes = memoi_buffers_carve_pass(&largest, base, 0, &buffers[0]);
    n_bytes = memob_max(n_bytes, memoi_buffers_carve_pass(&largest, base, 1, &buffers[1]));
    MEMO_ASSERT(buffers[0].ring.kv[0] == buffers[1].ring.kv[0] &&
                buffers[0].ring.kv[1] == buffers[1].ring.kv[1]); /* 1 */
    return n_bytes;
}

memo_status memo_sp_attention_desc_get_sizes(const memo_sp_attention_desc* desc,
                                             memo_sp_attention_sizes* sizes, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "sizes", sizes);
    memoi_shape shape;
    memo_status status = memoi_desc_shape_make(desc, &shape, error);
    memoi_buffers buffers[2];
    memoi_carver saved = {NULL, 0};
    char *q_heads, *kv_heads[2];
    memset(sizes, 0, sizeof *sizes);
    if (status) return status;
    sizes->device_bytes = memoi_buffers_carve_all(&shape, NULL, buffers);
    for (int32_t g = 0; g < shape.n_groups && shape.sharding.ulysses > 1 && !shape.sends_again;
         g++) {
        memoi_shape group = memoi_desc_group_of(&shape, g);
        memoi_buffers_carve_heads(&group, &saved, &q_heads, kv_heads);
    }
    sizes->saved_bytes = saved.n_bytes;
    sizes->lse_bytes = (int64_t)shape.n_batch * shape.sharding.ring_tokens * shape.heads.n_q * 4;
    sizes->heads = memoi_shape_split_heads(shape.n_q_heads, shape.n_read_heads,
                                           shape.sharding.ulysses, shape.ulysses_rank);
    return MEMO_STATUS_OK;
}

/* ---- >>hybrid attention -------------------------------------------------------------------------
 * Knows: Ulysses and the ring as functions, and the buffers that these need.  Knows nothing of how
 * Ulysses and the ring work.
 *
 * 1. The rows of a group's LSEs are of heads that this rank has. */

struct memo_sp_attention {
    memo_sp_attention_desc desc;
    memoi_shape shape; /* without tokens */
    memoi_target target;
    memoi_ring_rooms rooms;
    memoi_buffers buffers[2]; /* of forward and backward, in the same memory */
    memoi_flights flights;    /* of exchanges in flight */
    int64_t n_begun;          /* exchanges, in one order on all ranks */
};

/* --- what all ranks must agree on ---
 *
 * A rank whose desc or mask differs would compute other numbers than the others expect. */

/* Fields of digests: K(field, name in errors). */
#define MEMOI_AGREED_ALL(K)                                                                        \
    K(PASS, "memo_sp_attention_forward on one rank, memo_sp_attention_backward on another")        \
    K(SCALE, "memo_sp_attention_desc.scale")                                                       \
    K(SOFTCAP, "memo_sp_attention_desc.softcap")                                                   \
    K(HEADS, "memo_sp_attention_desc: n_q_heads, n_kv_heads, head_size, v_head_size or latent")    \
    K(BATCH, "memo_sp_attention_desc: n_batch, n_masks or type")                                   \
    K(WAY, "memo_sp_attention_desc: rounds_gradients, sends_again, ulysses_groups or nodes")       \
    K(SHARDING, "memo_sp_attention_desc.sharding or memo_exchange_desc.sharding")                  \
    K(KEY_SHARDING, "memo_sp_attention_desc.key_sharding")                                         \
    K(SINKS, "memo_exchange_desc.has_sinks")                                                       \
    K(ORDER, "the order of exchanges, or of a sequence's batches and layers")                      \
    K(MASKS, "memo_exchange_desc.masks: segments")

#define MEMOI_AGREED_ENUM(field, name) MEMOI_AGREED_##field,
#define MEMOI_AGREED_NAME(field, name) name,
enum { MEMOI_AGREED_ALL(MEMOI_AGREED_ENUM) MEMOI_AGREED_N };
typedef char memoi_agreed_fits[MEMOI_AGREED_N == MEMO_LABEL_FIELDS ? 1 : -1];
static const char* const memoi_agreed_fields[] = {MEMOI_AGREED_ALL(MEMOI_AGREED_NAME)};

/* Adds the shape and its shardings. */
MEMOI void memoi_agreed_shape(memo_label* label, const memoi_shape* shape) {
    const int64_t heads[] = {shape->n_q_heads, shape->n_read_heads, shape->head_size,
                             shape->v_head_size, shape->latent.size};
    const int64_t batch[] = {shape->n_batch, shape->n_parts, shape->type};
    const int64_t way[] = {shape->carried_type, shape->sends_again, shape->n_groups,
                           shape->n_nodes};
    memset(label, 0, sizeof *label);
    label->fields = memoi_agreed_fields;
    memoi_label_add(label, MEMOI_AGREED_SCALE, &shape->scale, sizeof shape->scale);
    memoi_label_add(label, MEMOI_AGREED_SOFTCAP, &shape->softcap, sizeof shape->softcap);
    memoi_label_add(label, MEMOI_AGREED_HEADS, heads, sizeof heads);
    memoi_label_add(label, MEMOI_AGREED_BATCH, batch, sizeof batch);
    memoi_label_add(label, MEMOI_AGREED_WAY, way, sizeof way);
    for (int32_t i = 0; i <= shape->has_key_sharding; i++) {
        const int field = i ? MEMOI_AGREED_KEY_SHARDING : MEMOI_AGREED_SHARDING;
        const memo_sharding* own = &shape->tokens[i].sharding;
        memoi_label_add_number(label, field, own->kind);
        memoi_label_add_number(label, field, own->n_tokens);
        memoi_label_add_number(label, field, own->padded_tokens);
        memoi_label_add_number(label, field, own->slice_tokens);
        memoi_label_add_array(label, field, own->document_begins, own->n_documents + 1);
        memoi_label_add_array(label, field, own->document_parents, own->n_documents);
        memoi_label_add_array(label, field, own->pieces ? &own->pieces->row : NULL,
                              2 * (own->n_pieces + 1));
    }
}

/* Adds the rest of an exchange. */
MEMOI void memoi_agreed_masks(memo_label* label, const memo_exchange* plan) {
    const int64_t n_masks = (int64_t)plan->shape.n_parts * plan->n_levels;
    memoi_label_add_number(label, MEMOI_AGREED_SINKS, plan->has_sinks);
    for (int64_t i = 0; i < plan->first_seen[n_masks]; i++) {
        const memo_segment* s = &plan->seen[i];
        const int64_t numbers[] = {s->q_begin, s->q_end, s->k_begin, s->k_end, s->type, s->level};
        memoi_label_add(label, MEMOI_AGREED_MASKS, numbers, sizeof numbers);
    }
    memoi_label_add_array(label, MEMOI_AGREED_MASKS, plan->first_seen, n_masks + 1);
}

/* --- creation --- */

/* name: of the desc that the caller filled. */
MEMOI memo_status memoi_hybrid_device_check(const char* name, const memo_sp_attention_desc* desc,
                                            memo_error* error) {
    if (MEMOI_GIVEN(name, desc, device) || MEMOI_GIVEN(name, desc, stream) ||
        MEMOI_GIVEN(name, desc, attention.forward) || MEMOI_GIVEN(name, desc, attention.backward) ||
        MEMOI_INTEGER(name, desc, attention.launches, 0, MEMO_N_LAUNCH_KINDS - 1) ||
        (desc->latent.size && MEMOI_GIVEN(name, desc, latent.expand)) ||
        (desc->latent.size && MEMOI_GIVEN(name, desc, latent.reduce)) ||
        (desc->sharding.ring > 1 && MEMOI_GIVEN(name, desc, ring)) ||
        (desc->n_nodes > 1 && MEMOI_GIVEN(name, desc, nodes)) ||
        (desc->sharding.ulysses > 1 && MEMOI_GIVEN(name, desc, ulysses)))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (desc->attention.launches &&
        memob_max(desc->sharding.ring_tokens, desc->key_sharding.ring_tokens) > INT32_MAX)
        return MEMOI_REFUSE("%s.attention.launches: rows of a ring rank do not fit 32 bits (%lld); "
                            "more ring ranks, or MEMO_LAUNCHES_NONE",
                            name, (long long)desc->sharding.ring_tokens);
    return memoi_check_memory(name, desc->device_memory, error);
}

/* A step fills a room of keys and two of contributions; step 0 one.  Rows that are held for the
 * node have a room, and one of sums. */
MEMOI memo_status memoi_hybrid_order_make(memo_sp_attention* a, memo_error* error) {
    memoi_ring_rooms* rooms = &a->rooms;
    const int64_t n_steps =
        (int64_t)a->shape.n_groups * (a->shape.sharding.ring + a->shape.n_nodes - 1);
    if (n_steps > INT32_MAX / 8) return memob_no_memory(error, "the waits of an attention");
    rooms->n_cells = 1 + 3 * (int32_t)n_steps;
    rooms->first_cell = MEMOI_CELL_KEYS + (int32_t)memob_max(a->shape.n_groups, 2);
    for (int i = 0; i < MEMOI_N_POOLS; i++) /* a room cuts at its begin and end */
        rooms->pools[i].stretches =
            MEMOB_ARRAY(&a->target.arrays, memoi_pool_stretch, 2 * (int64_t)rooms->n_cells);
    return memoi_target_order_make(&a->target, rooms->first_cell + rooms->n_cells, error);
}

MEMOI memo_status memoi_sp_attention_prepare(memo_sp_attention* a,
                                             const memo_sp_attention_desc* desc,
                                             memo_error* error) {
    const char* names[MEMOI_TARGET_N_STREAMS] = {NULL}; /* of the engine's streams */
    const memo_device* device = desc->device;
    int64_t n_bytes;
    int has_streams = 0; /* beside the caller's */
    memo_status status = memoi_desc_shape_make(desc, &a->shape, error);
    if (!status) status = memoi_hybrid_device_check("memo_sp_attention_desc", desc, error);
    if (status) return status;

    /* Streams and events. */
    if (a->shape.sharding.ring > 1) names[MEMOI_TARGET_RING] = "ring";
    if (a->shape.n_groups > 1) names[MEMOI_TARGET_ULYSSES] = "ulysses";
    if (a->shape.n_nodes > 1) names[MEMOI_TARGET_NODES] = "nodes";
    a->target.device = device;
    a->target.streams[MEMOI_TARGET_COMPUTE] = desc->stream;
    a->desc = *desc;
    for (int i = MEMOI_TARGET_RING; i < MEMOI_TARGET_N_STREAMS && !status; i++) {
        if (!names[i]) continue;
        status = memo_stream_create(device, names[i], 1, &a->target.streams[i], error);
        has_streams = 1;
    }
    if (has_streams && !status) status = memoi_hybrid_order_make(a, error);

    /* Scratch memory. */
    n_bytes = memoi_buffers_carve_all(&a->shape, NULL, a->buffers);
    if (!status && !desc->device_memory && n_bytes)
        status = memo_device_alloc(device, n_bytes, &a->target.memory, error);
    if (n_bytes)
        memoi_buffers_carve_all(
            &a->shape, (char*)(desc->device_memory ? desc->device_memory : a->target.memory),
            a->buffers);
    return status;
}

void memo_sp_attention_destroy(memo_sp_attention* a) {
    if (!a) return;
    memoi_target_close(&a->target);
    memoi_flights_close(&a->flights, a->target.device);
    MEMO_FREE(a);
}
MEMOI_TARGET_CREATE(sp_attention, "an attention over ranks")

/* --- exchanges --- */

/* Causal within the documents of the keys. */
MEMOI memo_status memoi_hybrid_causal_mask(memo_exchange* plan, memo_mask* mask,
                                           memo_error* error) {
    const memoi_shape* shape = &plan->shape;
    const memo_sharding* keys = &memoi_shape_tokens_of(shape, 1)->sharding;
    memo_mask_desc desc = MEMO_ZERO(memo_mask_desc);
    memo_segment* list;
    desc.n_tokens = shape->sharding.n_tokens;
    desc.n_keys = keys->n_tokens;
    desc.document_begins = keys->document_begins;
    desc.n_documents = keys->n_documents;
    desc.document_parents = keys->document_parents;
    if (shape->has_key_sharding && shape->tokens[0].sharding.n_documents)
        return MEMOI_REFUSE("memo_exchange_desc.masks: NULL, but queries have documents, and keys "
                            "a sharding of their own; pass the mask, from memo_mask_cross");
    if (memoi_mask_check_desc(&desc, error)) return MEMO_STATUS_INVALID_ARGUMENT;
    mask->n_segments = memoi_mask_fill(&desc, NULL);
    mask->segments = list = MEMOB_ARRAY(&plan->arrays, memo_segment, mask->n_segments + 1);
    if (list) (void)memoi_mask_fill(&desc, list);
    return list ? MEMO_STATUS_OK : memob_no_memory(error, "the mask of an exchange");
}

/* The masks of all parts, checked and copied, with as many levels each. */
MEMOI memo_status memoi_hybrid_plan_masks(memo_exchange* plan, const memo_mask* given,
                                          memo_error* error) {
    const memoi_shape* shape = &plan->shape;
    const int64_t n_tokens = shape->sharding.n_tokens, n_keys = shape->key_sharding.n_tokens;
    int64_t begins[MEMO_LEVELS_MAX + 1], n = 0, at = 0;
    int32_t n_levels;
    memo_mask causal = {NULL, 0};
    memo_status status = MEMO_STATUS_OK;
    plan->n_levels = 1;
    if (!given) status = memoi_hybrid_causal_mask(plan, &causal, error);
    if (status) return status;
    for (int32_t i = 0; i < shape->n_parts; i++) {
        const memo_mask* mask = given ? &given[i] : &causal;
        if (memoi_mask_check(mask, n_tokens, n_keys, begins, &n_levels, error))
            return MEMO_STATUS_INVALID_ARGUMENT;
        plan->n_levels = (int32_t)memob_max(plan->n_levels, n_levels);
        n += mask->n_segments;
    }
    if (plan->n_levels > 1 && !shape->has_levels)
        return MEMOI_REFUSE("memo_exchange_desc.masks: %d levels, but the attention has no memory "
                            "for them; set memo_sp_attention_desc.has_levels to 1",
                            (int)plan->n_levels);

    plan->seen = MEMOB_ARRAY(&plan->arrays, memo_segment, n + 1);
    plan->first_seen =
        MEMOB_ARRAY(&plan->arrays, int64_t, (int64_t)shape->n_parts * plan->n_levels + 1);
    if (plan->arrays.failed) return memob_no_memory(error, "the masks of an exchange");
    for (int32_t i = 0; i < shape->n_parts * plan->n_levels; i++) {
        const int32_t part = i / plan->n_levels, level = i % plan->n_levels;
        const memo_mask* mask = given ? &given[part] : &causal;
        plan->first_seen[i] = at;
        for (int64_t k = 0; k < mask->n_segments; k++)
            if (mask->segments[k].level == level) plan->seen[at++] = mask->segments[k];
    }
    plan->first_seen[shape->n_parts * plan->n_levels] = at;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_hybrid_plan(memo_exchange* plan, memo_sp_attention* attention,
                                    const memo_exchange_desc* desc, memo_error* error) {
    memoi_shape* shape = &plan->shape;
    const memo_sharding* sharding = desc->sharding ? desc->sharding : &attention->shape.sharding;
    const memo_sharding* const shardings[2] = {sharding, &attention->shape.key_sharding};
    memo_status status;
    plan->attention = attention;
    plan->has_sinks = desc->has_sinks != 0;
    plan->launches = attention->desc.attention.launches;
    *shape = attention->shape;
    if (!memoi_desc_is_alike(sharding, &shape->sharding))
        return MEMOI_REFUSE("memo_exchange_desc.sharding: does not match the attention's, which is "
                            "%s, ring %d x ulysses %d, %lld rows a rank; only its tokens and "
                            "documents may differ",
                            memoi_sharding_name(shape->sharding.kind), (int)shape->sharding.ring,
                            (int)shape->sharding.ulysses, (long long)shape->sharding.local_tokens);
    if (sharding->kind == MEMO_SHARDING_DOCUMENTS &&
        memoi_sharding_check_documents("memo_exchange_desc.sharding.document_begins",
                                       sharding->document_begins, sharding->n_documents,
                                       sharding->n_tokens, error))
        return MEMO_STATUS_INVALID_ARGUMENT;

    /* Who holds which tokens. */
    shape->sharding = *sharding;
    if (!shape->has_key_sharding) shape->key_sharding = *sharding;
    for (int32_t i = 0; i <= shape->has_key_sharding && !plan->arrays.failed; i++) {
        memoi_exchange_take_tokens(&plan->tokens[i], shardings[i], &plan->arrays);
        plan->most_runs = memob_max(plan->most_runs, plan->tokens[i].max_runs);
    }
    if (plan->arrays.failed) return memob_no_memory(error, "the plan of an exchange");
    shape->tokens = plan->tokens;

    /* Who sees what. */
    status = memoi_hybrid_plan_masks(plan, desc->masks, error);
    if (status) return status;
    memoi_exchange_look(plan);
    if (!plan->arrays.failed) memoi_exchange_make(plan);
    if (plan->arrays.failed) return memob_no_memory(error, "the plan of an exchange");
    memoi_agreed_shape(&plan->agreed, shape);
    memoi_agreed_masks(&plan->agreed, plan);
    return memoi_exchange_measure(plan, desc, error);
}

/* Before the first pass, on the thread of passes.  Allocates only if no flight has room. */
MEMOI memo_status memoi_exchange_begin(memo_exchange* plan, memo_error* error) {
    memo_sp_attention* a = plan->attention;
    const memo_stream stream = a->target.streams[MEMOI_TARGET_COMPUTE];
    memo_status status = MEMO_STATUS_OK;
    if (!plan->flight) {
        memoi_label_add_number(&plan->agreed, MEMOI_AGREED_ORDER, ++a->n_begun);
        status = memoi_flights_take(&a->flights, a->target.device, plan, error);
    }
    if (!status) status = memoi_exchange_upload(plan, a->target.device, stream, error);
    if (!status) status = memoi_comm_meet(a->desc.ring, stream, &plan->agreed, "exchange", error);
    if (!status)
        status = memoi_comm_meet(a->desc.ulysses, stream, &plan->agreed, "exchange", error);
    plan->has_begun = !status;
    return status;
}

memo_status memo_exchange_create(memo_sp_attention* attention, const memo_exchange_desc* desc,
                                 memo_exchange** result, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "exchange", result);
    memo_exchange* plan;
    memo_status status = memob_check_given("memo_exchange_create", "attention", attention, error);
    if (!status) status = memob_check_given("memo_exchange_create", "desc", desc, error);
    *result = NULL;
    if (status) return status;
    memoi_flights_free_passed(&attention->flights);
    plan = (memo_exchange*)memob_calloc(1, sizeof *plan);
    status = plan ? memoi_hybrid_plan(plan, attention, desc, error)
                  : memob_no_memory(error, "the plan of an exchange");
    if (!status) status = memoi_exchange_begin(plan, error);
    if (status)
        memo_exchange_destroy(plan);
    else
        *result = plan;
    return status;
}

/* The stream may still read runs and segments.  Without an event they stay until the attention
 * ends. */
void memo_exchange_destroy(memo_exchange* plan) {
    if (!plan || plan->has_ended) return;
    memo_sp_attention* a = plan->attention;
    plan->has_ended = 1;
    if (!plan->flight)
        memoi_flights_pass(&a->flights, plan);
    else
        plan->flight->has_end = !memo_event_record(a->target.device, plan->flight->end,
                                                   a->target.streams[MEMOI_TARGET_COMPUTE], NULL);
}

/* --- one forward or backward --- */

/* One forward or backward of this rank. */
typedef struct memoi_hybrid_walk {
    const memoi_shape* shape;
    memoi_shape groups[2]; /* of heads: even and odd ones */
    memoi_target target;
    memoi_buffers buffers;
    memo_sp_attention_tensors tensors;
    memoi_ulysses ulysses;
    memoi_ring ring;
    float* d_kv[2]; /* of a group: the sums of this rank's rows */
} memoi_hybrid_walk;

MEMOI void memoi_hybrid_walk_init(memoi_hybrid_walk* walk, const memo_exchange* plan,
                                  const memo_sp_attention_tensors* tensors, int32_t is_backward,
                                  memo_error* error) {
    const memo_sp_attention* a = plan->attention;
    memset(walk, 0, sizeof *walk);
    walk->shape = walk->ring.shape = &plan->shape;
    walk->target = a->target;
    walk->target.error = error;
    walk->buffers = a->buffers[is_backward];
    walk->tensors = *tensors;
    if (walk->shape->latent.size) { /* no bytes of values travel; any address will do */
        walk->tensors.v = tensors->k;
        walk->tensors.d_v = tensors->d_k;
    }

    walk->ulysses.target = walk->ring.target = &walk->target;
    walk->ulysses.stream = a->shape.n_groups > 1 ? MEMOI_TARGET_ULYSSES : MEMOI_TARGET_COMPUTE;
    walk->ulysses.comm = a->desc.ulysses;
    walk->ulysses.staging = walk->buffers.staging;
    walk->ring.comm = a->desc.ring;
    walk->ring.attention = &a->desc.attention;
    walk->ring.is_backward = is_backward;
    walk->ring.plan = plan;
    walk->ring.nodes = a->desc.nodes;
    walk->ring.rooms = &plan->attention->rooms;
    walk->ring.last_step = a->shape.heads.n_q ? plan->last_step : 0;
}

/* --- one group of heads --- */

/* Where q, k and v of a group are by heads. */
MEMOI void memoi_hybrid_find_heads(const memoi_hybrid_walk* walk, int32_t g, char** q,
                                   char* kv[2]) {
    const memo_sp_attention_tensors* t = &walk->tensors;
    const memoi_shape* group = &walk->groups[g % 2];
    memoi_carver saved = {(char*)t->saved, 0};
    if (!group->heads.n_q) { /* a rank without heads gets no bytes; any address will do */
        *q = kv[0] = kv[1] = (char*)t->out;
        return;
    }
    *q = walk->buffers.q[g % 2];
    kv[0] = walk->buffers.kv[g % 2][0];
    kv[1] = walk->buffers.kv[g % 2][1];
    for (int32_t earlier = 0; earlier <= g && !walk->shape->sends_again; earlier++) {
        const memoi_shape part = memoi_desc_group_of(walk->shape, earlier);
        memoi_buffers_carve_heads(&part, &saved, q, kv);
    }
}

/* The cell of these keys; without Ulysses of the user's, which their gradients may replace. */
MEMOI int32_t memoi_hybrid_keys_cell(const memoi_hybrid_walk* walk, int32_t g) {
    return MEMOI_CELL_KEYS + (walk->shape->sends_again ? g % 2 : g);
}

/* What attention reads of a group arrives by heads.  q, k and v arrive in forward, and in backward
 * if the desc says that they are sent again; otherwise q, k and v were saved. */
MEMOI void memoi_hybrid_arrive(memoi_hybrid_walk* walk, int32_t g) {
    const memo_sp_attention_tensors* t = &walk->tensors;
    const memoi_shape* shape = walk->shape;
    const memoi_buffers* b = &walk->buffers;
    const memoi_exchanged q = {"q to heads", 0, shape->head_size, shape->type};
    const memoi_exchanged k = {"k to heads", 1, shape->kv_size[0], shape->type};
    const memoi_exchanged v = {"v to heads", 1, shape->kv_size[1], shape->type};
    const memoi_exchanged d_out = {"d_out to heads", 0, shape->v_head_size, shape->type};
    const memoi_exchanged dots = {"row dots to heads", 0, 1, MEMO_TYPE_F32};
    const int sends = !walk->ring.is_backward || shape->sends_again;
    memoi_target_op op = memoi_target_op_on(walk->ulysses.stream);
    char *q_heads, *kv_heads[2];
    walk->groups[g % 2] = memoi_desc_group_of(shape, g);
    if (shape->sharding.ulysses == 1) return;

    memoi_target_touch(&walk->target, &op, MEMOI_CELL_ROWS, 0);
    if (walk->groups[g % 2].heads.n_q) {
        memoi_target_touch(&walk->target, &op, MEMOI_CELL_HEADS + g % 2, 1);
        if (sends) memoi_target_touch(&walk->target, &op, memoi_hybrid_keys_cell(walk, g), 1);
    }
    memoi_target_begin(&walk->target, &op);
    walk->ulysses.shape = &walk->groups[g % 2];
    if (sends) {
        memoi_hybrid_find_heads(walk, g, &q_heads, kv_heads);
        memoi_ulysses_to_heads(&walk->ulysses, &q, t->q, q_heads);
        memoi_ulysses_to_heads(&walk->ulysses, &k, t->k, kv_heads[0]);
        memoi_ulysses_to_heads(&walk->ulysses, &v, t->v, kv_heads[1]);
    }
    if (walk->ring.is_backward) {
        memoi_ulysses_to_heads(&walk->ulysses, &d_out, t->d_out, b->d_out[g % 2]);
        memoi_ulysses_to_heads(&walk->ulysses, &dots, b->dots_rows, b->dots[g % 2]);
    }
    memoi_target_end(&walk->target, &op);
}

/* Gives a group's tensors and buffers to the ring. */
MEMOI void memoi_hybrid_enter(memoi_hybrid_walk* walk, int32_t g) {
    const memoi_shape* group = &walk->groups[g % 2];
    const memo_sp_attention_tensors* t = &walk->tensors;
    const memoi_buffers* b = &walk->buffers;
    memoi_ring* ring = &walk->ring;
    int is_direct = memoi_buffers_is_direct(walk->shape), has_ulysses = group->sharding.ulysses > 1;
    ring->shape = group;
    ring->q = (char*)(uintptr_t)t->q;
    ring->kv[0] = (char*)(uintptr_t)t->k;
    ring->kv[1] = (char*)(uintptr_t)t->v;
    if (has_ulysses) memoi_hybrid_find_heads(walk, g, &ring->q, ring->kv);
    ring->keys_cell = memoi_hybrid_keys_cell(walk, g);
    ring->heads_cell = MEMOI_CELL_HEADS + g % 2;

    /* The LSEs of a group follow those of earlier groups. */
    ring->lse = t->lse;
    MEMO_ASSERT(!group->heads.n_q || (group->heads.first_q >= walk->shape->heads.first_q && /* 1 */
                                      group->heads.first_q + group->heads.n_q <=
                                          walk->shape->heads.first_q + walk->shape->heads.n_q));
    if (t->lse)
        ring->lse += (int64_t)group->n_batch * group->sharding.ring_tokens *
                     (group->heads.n_q ? group->heads.first_q - walk->shape->heads.first_q : 0);
    ring->buffers = b->ring;
    if (!ring->is_backward) {
        ring->out = is_direct ? (float*)t->out : b->out;
        return;
    }
    ring->d_out = has_ulysses ? b->d_out[g % 2] : (const char*)t->d_out;
    ring->row_dots = b->dots[g % 2];
    ring->d_q = is_direct ? (float*)t->d_q : b->out;

    /* A step reads k while step 0 adds to d_k, which may be k. */
    is_direct &= group->sharding.ring == 1;
    ring->d_kv_final[0] = walk->d_kv[0] = is_direct ? (float*)t->d_k : b->ring.d_kv[0];
    ring->d_kv_final[1] = walk->d_kv[1] = is_direct ? (float*)t->d_v : b->ring.d_kv[1];
}

/* A result of a group: output; or d_q, d_k or d_v. */
typedef struct memoi_hybrid_result {
    memoi_exchanged x;
    const void* from; /* by heads, in the type that is sent */
    void* to;         /* the user's rows */
} memoi_hybrid_result;

/* Result i, converted to the type that is sent, or to the user's tensor if nothing is sent. */
MEMOI memoi_hybrid_result memoi_hybrid_result_of(memoi_hybrid_walk* walk, int32_t i) {
    static const char* const names[] = {"out to rows", "d_q to rows", "d_k to rows", "d_v to rows"};
    const memoi_ring* ring = &walk->ring;
    const memoi_shape* group = ring->shape;
    const memo_sp_attention_tensors* t = &walk->tensors;
    const float* const computed[] = {ring->out, ring->d_q, walk->d_kv[0], walk->d_kv[1]};
    void* const rows[] = {t->out, t->d_q, t->d_k, t->d_v};
    const int32_t sizes[] = {group->v_head_size, group->head_size, group->kv_size[0],
                             group->kv_size[1]};
    const int32_t k = ring->is_backward + i, has_ulysses = group->sharding.ulysses > 1;
    /* Gradients of replicas are summed before they are rounded. */
    const memo_type type = i && group->is_replicated ? MEMO_TYPE_F32 : group->type;
    memoi_hybrid_result result = {{names[k], i > 0, sizes[k], type}, computed[k], rows[k]};
    void* to;
    if (has_ulysses && group->n_groups == 1 && type == MEMO_TYPE_F32)
        return result; /* sent as it is */

    to = has_ulysses ? (void*)walk->buffers.results[i] : result.to;
    if (to != result.from) /* not computed in place */
        memoi_target_cast(&walk->target, MEMOI_TARGET_COMPUTE, to, type, computed[k],
                          group->n_batch * memoi_shape_sharding(group, i > 0)->ring_tokens *
                              (i ? group->heads.n_kv : group->heads.n_q) * sizes[k]);
    result.from = to;
    return result;
}

/* Result i goes to its rows.  Replicas are summed there, and the last group rounds the sums. */
MEMOI void memoi_hybrid_return(memoi_hybrid_walk* walk, const memoi_hybrid_result* result,
                               int32_t i, int32_t g) {
    const memoi_shape* shape = walk->shape;
    const memoi_exchanged* x = &result->x;
    int64_t n = shape->n_batch * shape->key_sharding.local_tokens * shape->n_kv_heads * x->n;
    float* sums = i && shape->is_replicated ? walk->buffers.sums[i - 1] : NULL;
    if (shape->sharding.ulysses == 1) return;
    walk->ulysses.shape = &walk->groups[g % 2];
    memoi_ulysses_to_rows(&walk->ulysses, x, result->from, result->to, sums);
    if (sums && g == shape->n_groups - 1)
        memoi_target_cast(&walk->target, walk->ulysses.stream, result->to, shape->type, sums, n);
}

/* The results of a group leave.  With several groups they do behind the next one's attention. */
MEMOI void memoi_hybrid_leave(memoi_hybrid_walk* walk, int32_t g) {
    memoi_target* target = &walk->target;
    const int is_grouped = walk->shape->n_groups > 1, has_heads = walk->ring.shape->heads.n_q > 0;
    const int32_t n = walk->ring.is_backward ? 3 : 1;
    memoi_target_op casts = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    memoi_target_op returns = memoi_target_op_on(MEMOI_TARGET_ULYSSES);
    memoi_hybrid_result results[3];
    if (has_heads) memoi_target_touch(target, &casts, MEMOI_CELL_RESULTS, 1);
    if (has_heads && n > 1) memoi_target_touch(target, &casts, MEMOI_CELL_OWN_SUMS, 0);
    if (walk->shape->sharding.ulysses == 1 && n > 1)
        memoi_target_touch(target, &casts, walk->ring.keys_cell, 1);
    memoi_target_begin(target, &casts);
    for (int32_t i = 0; i < n; i++) {
        results[i] = memoi_hybrid_result_of(walk, i);
        if (!is_grouped) memoi_hybrid_return(walk, &results[i], i, g);
    }
    memoi_target_end(target, &casts);
    if (!is_grouped) return;

    if (has_heads) memoi_target_touch(target, &returns, MEMOI_CELL_RESULTS, 0);
    memoi_target_touch(target, &returns, MEMOI_CELL_ROWS, 1);
    memoi_target_begin(target, &returns);
    for (int32_t i = 0; i < n; i++) memoi_hybrid_return(walk, &results[i], i, g);
    memoi_target_end(target, &returns);
}

/* --- all groups, in the order of chapter 5 --- */

MEMOI void memoi_hybrid_open(memoi_hybrid_walk* walk) {
    const memoi_shape* shape = walk->shape;
    const memo_sp_attention_tensors* t = &walk->tensors;
    memoi_target* target = &walk->target;
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    if (walk->ring.is_backward) {
        memo_add_desc dots = MEMO_ZERO(memo_add_desc);
        /* Row dots are computed from rows, where out and d_out are, then exchanged with d_out. */
        dots.to = walk->buffers.dots_rows;
        dots.a = t->out;
        dots.b = t->d_out;
        dots.a_type = dots.b_type = shape->type;
        dots.n_rows = shape->n_batch * shape->sharding.local_tokens * shape->n_q_heads;
        dots.n_columns = shape->v_head_size;
        memoi_target_touch(target, &op, MEMOI_CELL_ROWS, 1);
        memoi_target_begin(target, &op);
        memoi_target_kernel(target, MEMOI_TARGET_COMPUTE, MEMO_ROW_SUMS, &dots);
        memoi_target_end(target, &op);
    }
    if (walk->ring.is_backward && t->sinks)
        memoi_target_fill(target, MEMOI_TARGET_COMPUTE, t->d_sinks, (int64_t)shape->n_q_heads * 4);
    memoi_hybrid_arrive(walk, 0);
}

/* After all steps of a group's ring, so that a sink counts once; before the result leaves. */
MEMOI void memoi_hybrid_sinks(memoi_hybrid_walk* walk) {
    const memoi_ring* ring = &walk->ring;
    const memo_ulysses_heads* heads = &ring->shape->heads;
    memo_sinks_desc sinks = MEMO_ZERO(memo_sinks_desc);
    memoi_target_op op = memoi_target_op_on(MEMOI_TARGET_COMPUTE);
    if (!walk->tensors.sinks || !heads->n_q) return;
    sinks.lse = ring->lse;
    sinks.sinks = walk->tensors.sinks + heads->first_q;
    sinks.n_rows = ring->shape->n_batch * ring->shape->sharding.ring_tokens;
    sinks.n_heads = heads->n_q;
    sinks.n_columns = ring->shape->v_head_size;
    sinks.out = ring->out;
    sinks.row_dots = ring->row_dots;
    if (ring->is_backward) sinks.d_sinks = walk->tensors.d_sinks + heads->first_q;
    if (ring->is_backward) memoi_target_touch(&walk->target, &op, ring->heads_cell, 0);
    memoi_target_begin(&walk->target, &op);
    memoi_target_kernel(&walk->target, MEMOI_TARGET_COMPUTE,
                        ring->is_backward ? MEMO_ROW_SINK_SUMS : MEMO_ROW_SINKS, &sinks);
    memoi_target_end(&walk->target, &op);
}

MEMOI memo_status memoi_hybrid_walk_through(memoi_hybrid_walk* walk) {
    const int32_t n_groups = walk->shape->n_groups;
    if (walk->target.order) memoi_ring_clear_rooms(walk->ring.rooms);
    memoi_target_fence(&walk->target, walk->ring.rooms->first_cell + 1);
    memoi_hybrid_open(walk);
    for (int32_t g = 0; g < n_groups; g++) {
        if (g + 1 < n_groups) memoi_hybrid_arrive(walk, g + 1); /* during the attention of g */
        memoi_hybrid_enter(walk, g);
        memoi_ring_run(&walk->ring);
        memoi_hybrid_sinks(walk);
        memoi_hybrid_leave(walk, g);
    }
    memoi_target_fence(&walk->target, 0);
    return walk->target.status;
}

/* The tensors that a pass of this attention needs. */
MEMOI memo_status memoi_hybrid_check_tensors(const memo_sp_attention* a,
                                             const memo_sp_attention_tensors* t, int is_backward,
                                             memo_error* error) {
    static const char name[] = "memo_sp_attention_tensors";
    const int has_ulysses = a->shape.sharding.ulysses > 1, sends = a->shape.sends_again;
    const int needs_saved = has_ulysses && !sends && a->shape.heads.n_q;
    const int needs_qkv = !is_backward || !has_ulysses || sends;
    const int has_v = !a->shape.latent.size;
    if (needs_qkv &&
        (MEMOI_GIVEN(name, t, q) || MEMOI_GIVEN(name, t, k) || (has_v && MEMOI_GIVEN(name, t, v))))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (MEMOI_GIVEN(name, t, out) || (a->shape.heads.n_q && MEMOI_GIVEN(name, t, lse)) ||
        (needs_saved && MEMOI_GIVEN(name, t, saved)))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (is_backward &&
        (MEMOI_GIVEN(name, t, d_out) || MEMOI_GIVEN(name, t, d_q) || MEMOI_GIVEN(name, t, d_k) ||
         (has_v && MEMOI_GIVEN(name, t, d_v)) || (t->sinks && MEMOI_GIVEN(name, t, d_sinks))))
        return MEMO_STATUS_INVALID_ARGUMENT;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_hybrid_run(memo_sp_attention* a, const memo_exchange* plan,
                                   const memo_sp_attention_tensors* tensors, int is_backward,
                                   int32_t layer, memo_error* error) {
    const char* call = is_backward ? "memo_sp_attention_backward" : "memo_sp_attention_forward";
    memoi_hybrid_walk walk;
    memo_label agreed;
    if (memob_check_given(call, "attention", a, error) ||
        memob_check_given(call, "exchange", plan, error) ||
        memob_check_given(call, "tensors", tensors, error) ||
        memoi_hybrid_check_tensors(a, tensors, is_backward, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (plan->has_ended)
        return MEMOI_FAIL(INVALID_STATE, "%s: exchange: destroyed; create another", call);

    /* An exchange belongs to one attention; ranks agreed on its sinks. */
    if (plan->attention != a)
        return MEMOI_REFUSE("exchange: made for another attention; make one for each");
    if (!tensors->sinks != !plan->has_sinks)
        return MEMOI_REFUSE("memo_sp_attention_tensors.sinks: %s, but the exchange was made with "
                            "has_sinks %d; ranks compare has_sinks, so make another exchange",
                            tensors->sinks ? "not NULL" : "NULL", (int)plan->has_sinks);
    if (tensors->sinks && memoi_check_row_kernels(a->target.device, error))
        return MEMO_STATUS_UNSUPPORTED;

    agreed = plan->agreed;
    memoi_hybrid_walk_init(&walk, plan, tensors, is_backward, error);
    memoi_label_add_number(&agreed, MEMOI_AGREED_PASS, is_backward);
    memoi_label_add_number(&agreed, MEMOI_AGREED_ORDER, layer);
    walk.target.agreed = &agreed;
    return memoi_hybrid_walk_through(&walk);
}

memo_status memo_sp_attention_forward(memo_sp_attention* attention, const memo_exchange* exchange,
                                      const memo_sp_attention_tensors* tensors, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "attention", attention);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    return memoi_hybrid_run(attention, exchange, tensors, 0, 0, error);
}
memo_status memo_sp_attention_backward(memo_sp_attention* attention, const memo_exchange* exchange,
                                       const memo_sp_attention_tensors* tensors,
                                       memo_error* error) {
    MEMOB_REFUSE_NULL(error, "attention", attention);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    return memoi_hybrid_run(attention, exchange, tensors, 1, 0, error);
}

/* ---- >>sequence ---------------------------------------------------------------------------------
 * Knows: the public functions of meshes, shardings, attention and exchanges, and the checks whose
 * errors name what the caller filled.  Knows nothing of how these work. */

struct memo_sequence {
    memo_sequence_desc desc; /* complete */
    memo_mesh* mesh;         /* NULL: one rank */
    int32_t rank;
    memo_sharding sharding; /* of one document, which has all rows */
    int64_t begins[2];
    memo_sp_attention* attention;
    memo_sp_attention_sizes sizes; /* of a layer, rounded up */
    char* memory;                  /* of n_in_flight batches, (n_layers) each */
    /* (n_in_flight): which batch has a place of the memory; NULL: free. */
    const struct memo_sequence_batch** holders;
};

/* A layer's lse is that of its latest forward, which waits for its backward. */
enum { MEMOI_LAYER_NEW = 0, MEMOI_LAYER_FORWARD, MEMOI_LAYER_BACKWARD };
typedef struct memoi_batch_layer {
    int32_t state;
    const float* lse;
} memoi_batch_layer;

struct memo_sequence_batch {
    memo_exchange exchange; /* first: both are freed as one; its arrays are the batch's, too */
    memo_sequence* sequence;
    memo_sharding sharding;
    memoi_batch_layer* layers;
    char* kept; /* its place of the sequence's memory; NULL: none */
};

/* Fields that both descs have. */
/* clang-format off */
#define MEMOI_SEQUENCE_SAME(K)                                                                     \
    K(device) K(stream) K(n_batch) K(n_q_heads) K(n_kv_heads) K(head_size) K(v_head_size)          \
    K(latent) K(type) K(scale) K(softcap) K(sends_again) K(rounds_gradients) K(ulysses_groups)     \
    K(attention)
/* clang-format on */
#define MEMOI_SEQUENCE_COPY(field) attention.field = desc->field;

/* Checks the fields that the caller filled, in the desc that they were copied to. */
MEMOI memo_status memoi_sequence_check(const memo_sp_attention_desc* attention, memo_error* error) {
    static const char name[] = "memo_sequence_desc";
    const memo_status status = memoi_desc_heads_check(name, attention, error);
    return status ? status : memoi_hybrid_device_check(name, attention, error);
}

/* Of all layers of a batch. */
MEMOI int64_t memoi_sequence_kept_bytes(const memo_sequence* s) {
    return s->desc.n_layers * (s->sizes.lse_bytes + s->sizes.saved_bytes);
}

/* Batches that have ended, but not on the stream. */
enum { MEMOI_ENDED_BATCHES = 8 };

/* What passes would allocate otherwise. */
MEMOI memo_status memoi_sequence_reserve(memo_sequence* s, memo_error* error) {
    const int32_t n = s->desc.n_in_flight;
    memo_status status = MEMO_STATUS_OK;
    for (int32_t i = 0; i < n + MEMOI_ENDED_BATCHES && !status; i++)
        status = memoi_flights_add(&s->attention->flights, s->desc.device, NULL, error);
    s->sizes.lse_bytes = memob_align_up(s->sizes.lse_bytes, MEMOB_DEVICE_ALIGNMENT);
    s->sizes.saved_bytes = memob_align_up(s->sizes.saved_bytes, MEMOB_DEVICE_ALIGNMENT);
    if (status || !n || !memoi_sequence_kept_bytes(s)) return status;
    if ((double)memoi_sequence_kept_bytes(s) * n > (double)MEMOB_BYTES_MAX)
        return MEMOI_REFUSE("memo_sequence_desc.n_in_flight: %d batches of %lld bytes are too "
                            "large; fewer, or -1",
                            (int)n, (long long)memoi_sequence_kept_bytes(s));
    s->holders = (const memo_sequence_batch**)memob_calloc(n, sizeof *s->holders);
    if (!s->holders) return memob_no_memory(error, "a sequence");
    return memo_device_alloc(s->desc.device, n * memoi_sequence_kept_bytes(s), (void**)&s->memory,
                             error);
}

MEMOI memo_status memoi_sequence_prepare(memo_sequence* s, const memo_sequence_desc* desc,
                                         memo_error* error) {
    const int32_t size = desc->comm ? desc->comm->size : 1;
    const int32_t ulysses = desc->ulysses ? desc->ulysses : 1;
    memo_sharding_desc sharding = MEMO_ZERO(memo_sharding_desc);
    memo_mesh_desc mesh = MEMO_ZERO(memo_mesh_desc);
    memo_sp_attention_desc attention = MEMO_ZERO(memo_sp_attention_desc);
    memo_status status = MEMO_STATUS_OK;
    if (MEMOI_INTEGER("memo_sequence_desc", desc, n_layers, 0, 1 << 20) ||
        MEMOI_INTEGER("memo_sequence_desc", desc, n_tokens, 1, MEMOB_BYTES_MAX / 2) ||
        MEMOI_INTEGER("memo_sequence_desc", desc, window, 0, INT64_MAX) ||
        MEMOI_INTEGER("memo_sequence_desc", desc, n_in_flight, -1, 1 << 20) ||
        MEMOI_GIVEN("memo_sequence_desc", desc, device))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (ulysses < 1 || size % ulysses)
        return MEMOI_REFUSE("memo_sequence_desc.ulysses: %d, which does not divide the ranks of "
                            "comm (%d); 1, or a divisor",
                            (int)ulysses, (int)size);
    if (desc->nodes < 0 || size / ulysses % (desc->nodes ? desc->nodes : 1))
        return MEMOI_REFUSE(
            "memo_sequence_desc.nodes: %d, which does not divide the ring (%d); 1, or a divisor",
            (int)desc->nodes, (int)(size / ulysses));
    s->desc = *desc;
    s->desc.n_layers = desc->n_layers ? desc->n_layers : 1;
    s->desc.n_in_flight = desc->n_in_flight ? (int32_t)memob_max(desc->n_in_flight, 0) : 1;
    s->rank = desc->comm ? desc->comm->rank : 0;

    /* The ranks, and one document. */
    mesh.ulysses = ulysses;
    mesh.ring = size / ulysses;
    mesh.nodes = desc->nodes;
    if (size > 1) status = memo_mesh_create(desc->comm, &mesh, &s->mesh, error);
    s->begins[1] = desc->n_tokens;
    sharding.kind = MEMO_SHARDING_DOCUMENTS;
    sharding.ring = mesh.ring;
    sharding.ulysses = ulysses;
    sharding.n_tokens = desc->n_tokens;
    sharding.document_begins = s->begins;
    sharding.n_documents = 1;
    if (!status) status = memo_sharding_make(&sharding, &s->sharding, error);
    if (status) return status;

    attention.ring = s->mesh ? s->mesh->ring : NULL;
    attention.ulysses = s->mesh ? s->mesh->ulysses : NULL;
    attention.nodes = s->mesh ? s->mesh->nodes : NULL;
    attention.sharding = s->sharding;
    MEMOI_SEQUENCE_SAME(MEMOI_SEQUENCE_COPY)
    attention.has_levels = desc->has_trees;
    status = memoi_sequence_check(&attention, error);
    if (!status) status = memo_sp_attention_desc_get_sizes(&attention, &s->sizes, error);
    if (!status) status = memo_sp_attention_create(&attention, &s->attention, error);
    return status ? status : memoi_sequence_reserve(s, error);
}

memo_status memo_sequence_create(const memo_sequence_desc* desc, memo_sequence** sequence,
                                 memo_error* error) {
    MEMOB_REFUSE_NULL(error, "sequence", sequence);
    *sequence = NULL;
    MEMOB_REFUSE_NULL(error, "desc", desc);
    memo_sequence* s = (memo_sequence*)memob_calloc(1, sizeof *s);
    memo_status status =
        s ? memoi_sequence_prepare(s, desc, error) : memob_no_memory(error, "a sequence");
    if (status) memo_sequence_destroy(s);
    *sequence = status ? NULL : s;
    return status;
}

void memo_sequence_destroy(memo_sequence* s) {
    if (!s) return;
    memo_sp_attention_destroy(s->attention);
    if (s->memory) memo_device_free(s->desc.device, s->memory, NULL);
    memo_sharding_free(&s->sharding);
    memo_mesh_destroy(s->mesh);
    MEMO_FREE(s->holders);
    MEMO_FREE(s);
}

memo_sp_attention_sizes memo_sequence_get_sizes(const memo_sequence* s) {
    return s ? s->sizes : MEMO_ZERO(memo_sp_attention_sizes);
}

void memo_sequence_get_items(const memo_sequence* s, memo_item items[2]) {
    const memo_item none = MEMO_ZERO(memo_item);
    int64_t n_rows;
    if (!items) return;
    items[0] = items[1] = none;
    items[0].name = "lse";
    items[1].name = "q_k_v_by_heads";
    items[0].away = items[1].away = MEMO_MOVE;
    if (!s) return;
    n_rows = memob_max(s->desc.n_batch, 1) * s->sharding.local_tokens;
    items[0].row_bytes = (s->sizes.lse_bytes + n_rows - 1) / n_rows;
    items[1].row_bytes = (s->sizes.saved_bytes + n_rows - 1) / n_rows;
}

/* --- batches --- */

MEMOI memo_status memoi_batch_check(const memo_sequence* s, const memo_sequence_batch_desc* desc,
                                    int64_t n_tokens, memo_error* error) {
    static const char name[] = "memo_sequence_batch_desc";
    const char* also = NULL;
    if (MEMOI_INTEGER(name, desc, n_tokens, 0, s->desc.n_tokens))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (desc->document_begins &&
        (memoi_sharding_check_documents("memo_sequence_batch_desc.document_begins",
                                        desc->document_begins, desc->n_documents, n_tokens,
                                        error) ||
         memoi_sharding_check_parents("memo_sequence_batch_desc.document_parents",
                                      desc->document_parents, desc->n_documents, error)))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (desc->document_parents && s->desc.window) also = "beside memo_sequence_desc.window";
    if (desc->document_parents && !s->desc.has_trees)
        also = "but memo_sequence_desc.has_trees is 0";
    if (desc->document_parents && !desc->document_begins) also = "without document_begins";
    if (also)
        return MEMOI_REFUSE("%s.document_parents: not NULL %s; pass NULL, or documents to a "
                            "sequence with trees and without a window",
                            name, also);
    return MEMO_STATUS_OK;
}

/* Copies the documents, and shares them out.  *windows: what they see, if the sequence has a
 * window; the caller frees its segments. */
MEMOI memo_status memoi_batch_shard(memo_sequence_batch* b, const memo_sequence_batch_desc* from,
                                    memo_mask* windows, memo_error* error) {
    const memo_sequence* s = b->sequence;
    const int64_t n = from->document_begins ? from->n_documents : 1;
    memob_arrays* arrays = &b->exchange.arrays;
    int64_t* begins = MEMOB_ARRAY(arrays, int64_t, n + 1);
    int64_t* parents = from->document_parents ? MEMOB_ARRAY(arrays, int64_t, n) : NULL;
    memo_sharding_piece* pieces;
    memo_segment* segments;
    memo_sharding_desc desc = MEMO_ZERO(memo_sharding_desc);
    memo_mask_desc mask = MEMO_ZERO(memo_mask_desc);
    memo_status status;
    b->layers = MEMOB_ARRAY(arrays, memoi_batch_layer, s->desc.n_layers);
    if (arrays->failed) return memob_no_memory(error, "a batch");

    desc.kind = MEMO_SHARDING_DOCUMENTS;
    desc.ring = s->sharding.ring;
    desc.ulysses = s->sharding.ulysses;
    desc.capacity = s->desc.n_tokens;
    desc.n_tokens = from->n_tokens ? from->n_tokens : desc.capacity;
    begins[n] = desc.n_tokens;
    if (from->document_begins) memcpy(begins, from->document_begins, (size_t)n * sizeof *begins);
    if (parents) memcpy(parents, from->document_parents, (size_t)n * sizeof *parents);
    desc.document_begins = begins;
    desc.n_documents = n;
    desc.document_parents = parents;

    /* Ranks have as many scores under a window, too. */
    mask.n_tokens = desc.n_tokens;
    mask.document_begins = begins;
    mask.n_documents = n;
    mask.window_before = s->desc.window;
    if (s->desc.window) {
        windows->n_segments = desc.n_segments = memoi_mask_fill(&mask, NULL);
        windows->segments = desc.segments = segments =
            (memo_segment*)memob_calloc(desc.n_segments + 1, sizeof *segments);
        if (!segments) return memob_no_memory(error, "a batch");
        (void)memoi_mask_fill(&mask, segments);
    }
    status = memo_sharding_make(&desc, &b->sharding, error);
    if (status) return status;

    /* Its memory goes with the other arrays. */
    pieces = MEMOB_ARRAY(arrays, memo_sharding_piece, b->sharding.n_pieces + 1);
    if (pieces)
        memcpy(pieces, b->sharding.pieces, (size_t)(b->sharding.n_pieces + 1) * sizeof *pieces);
    memo_sharding_free(&b->sharding);
    b->sharding.pieces = pieces;
    return pieces ? MEMO_STATUS_OK : memob_no_memory(error, "a batch");
}

memo_status memo_sequence_batch_create(memo_sequence* s, const memo_sequence_batch_desc* desc,
                                       memo_sequence_batch** result, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "batch", result);
    *result = NULL;
    MEMOB_REFUSE_NULL(error, "sequence", s);
    MEMOB_REFUSE_NULL(error, "desc", desc);
    memo_exchange_desc exchange = MEMO_ZERO(memo_exchange_desc);
    memo_mask windows = MEMO_ZERO(memo_mask);
    memo_sequence_batch* b;
    memo_status status =
        memoi_batch_check(s, desc, desc->n_tokens ? desc->n_tokens : s->desc.n_tokens, error);
    if (status) return status;

    memoi_flights_free_passed(&s->attention->flights);
    b = (memo_sequence_batch*)memob_calloc(1, sizeof *b);
    if (!b) return memob_no_memory(error, "a batch");
    b->sequence = s;
    exchange.sharding = &b->sharding;
    if (s->desc.window) exchange.masks = &windows; /* else causal within the documents */
    status = memoi_batch_shard(b, desc, &windows, error);
    if (!status) status = memoi_hybrid_plan(&b->exchange, s->attention, &exchange, error);
    MEMO_FREE((void*)(uintptr_t)windows.segments);
    if (status)
        memoi_exchange_free(&b->exchange);
    else
        *result = b;
    return status;
}

void memo_sequence_batch_destroy(memo_sequence_batch* b) {
    if (!b || b->exchange.has_ended) return;
    for (int32_t i = 0; i < b->sequence->desc.n_in_flight && b->kept; i++)
        if (b->sequence->holders[i] == b) b->sequence->holders[i] = NULL;
    memo_exchange_destroy(&b->exchange);
}

const memo_sharding* memo_sequence_batch_get_sharding(const memo_sequence_batch* b) {
    return b ? &b->sharding : NULL;
}

void memo_sequence_batch_get_positions(const memo_sequence_batch* b, int64_t* positions) {
    if (b && positions) memoi_sharding_positions(&b->sharding, b->sequence->rank, positions);
}

/* --- passes --- */

/* Gives a batch a place of the sequence's memory.  The stream orders who uses it. */
MEMOI memo_status memoi_batch_keep(memo_sequence_batch* b, memo_error* error) {
    memo_sequence* s = b->sequence;
    int32_t i = 0;
    while (i < s->desc.n_in_flight && s->holders[i]) i++;
    if (i == s->desc.n_in_flight)
        return MEMOI_FAIL(INVALID_STATE,
                          "memo_sequence_batch_attend: %d batches are in flight, and "
                          "memo_sequence_desc.n_in_flight is %d; destroy one first, set more, or "
                          "pass tensors.lse and saved",
                          (int)i, (int)i);
    s->holders[i] = b;
    b->kept = s->memory + i * memoi_sequence_kept_bytes(s);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_batch_pass(memo_sequence_batch* b, int32_t layer,
                                   const memo_sp_attention_tensors* tensors, int is_backward,
                                   memo_error* error) {
    memo_sequence* s = b->sequence;
    memo_sp_attention_tensors t = *tensors;
    memoi_batch_layer* l;
    memo_status status;
    if (b->exchange.has_ended)
        return MEMOI_FAIL(INVALID_STATE, "memo_sequence_batch: destroyed; create another");
    if (memob_check_integer("memo_sequence_batch", "layer", layer, 0, s->desc.n_layers - 1, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    l = &b->layers[layer];
    if (is_backward && l->state != MEMOI_LAYER_FORWARD)
        return MEMOI_FAIL(INVALID_STATE,
                          "memo_sequence_batch_attend_backward: layer %d of this batch %s; call "
                          "memo_sequence_batch_attend first",
                          (int)layer, l->state ? "has had its backward" : "has had no forward");

    /* What the layer keeps. */
    if (!t.lse && !t.saved && s->memory) {
        if (!b->kept && memoi_batch_keep(b, error)) return MEMO_STATUS_INVALID_STATE;
        t.lse = (float*)(void*)(b->kept + layer * (s->sizes.lse_bytes + s->sizes.saved_bytes));
        t.saved = (char*)t.lse + s->sizes.lse_bytes;
    }
    if (is_backward && l->lse != t.lse)
        return MEMOI_FAIL(INVALID_STATE,
                          "memo_sequence_batch_attend_backward: tensors.lse: not the address of "
                          "this batch's forward of layer %d; pass the same",
                          (int)layer);

    status = b->exchange.has_begun ? MEMO_STATUS_OK : memoi_exchange_begin(&b->exchange, error);
    if (!status)
        status = memoi_hybrid_run(s->attention, &b->exchange, &t, is_backward, layer, error);
    l->lse = t.lse;
    if (!is_backward) l->state = status ? MEMOI_LAYER_NEW : MEMOI_LAYER_FORWARD;
    if (is_backward && !status) l->state = MEMOI_LAYER_BACKWARD;
    return status;
}

memo_status memo_sequence_batch_attend(memo_sequence_batch* b, int32_t layer,
                                       const memo_sp_attention_tensors* tensors,
                                       memo_error* error) {
    MEMOB_REFUSE_NULL(error, "batch", b);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    return memoi_batch_pass(b, layer, tensors, 0, error);
}
memo_status memo_sequence_batch_attend_backward(memo_sequence_batch* b, int32_t layer,
                                                const memo_sp_attention_tensors* tensors,
                                                memo_error* error) {
    MEMOB_REFUSE_NULL(error, "batch", b);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    return memoi_batch_pass(b, layer, tensors, 1, error);
}

/* ---- >>block orders -----------------------------------------------------------------------------
 * Knows: blocks, parts, two streams, a target, and the trainer's functions.  Knows nothing of
 * attention or of how a pass is called.
 *
 * 1. Operations are of blocks and parts that the schedule has. */

const char* memo_blocks_order_name(memo_blocks_order order) {
    static const char* const names[] = {"default", "pipelined", "cross", "fine"};
    MEMOB_TABLE_OF(MEMO_N_BLOCKS_ORDERS, names);
    return MEMOI_NAME(names, order, "no order");
}

#define MEMOI_BLOCKS_MAX (1 << 20) /* n_blocks x n_parts: each makes about 10 operations */

typedef enum memoi_blocks_kind {
    MEMOI_BLOCKS_FORWARD = 0,
    MEMOI_BLOCKS_RECOMPUTE,
    MEMOI_BLOCKS_BACKWARD,
    MEMOI_BLOCKS_WEIGHTS,
    MEMOI_BLOCKS_END,
    MEMOI_BLOCKS_REDUCE_FORWARD,   /* from here on: on the comm stream */
    MEMOI_BLOCKS_REDUCE_RECOMPUTE, /* of a layer's last block: unread; the published order has it */
    MEMOI_BLOCKS_REDUCE_BACKWARD,
    MEMOI_N_BLOCKS_KINDS
} memoi_blocks_kind;

struct memo_blocks {
    memo_blocks_desc desc; /* with defaults filled in */
    memoi_target target;   /* events: n_parts each: ready, reduced, returned */
    int32_t n_layers;
    memo_label agreed;                   /* digests of the desc; text is not used */
    int32_t is_backward;                 /* the pass that runs */
    int32_t has_met;                     /* its first collective is enqueued */
    int64_t n_ops;                       /* collectives enqueued in this pass */
    int32_t next_forward, next_backward; /* the layer that may come next; -1: none */
    int64_t n_ahead;                     /* forward passes whose backward has not begun */
};

enum { MEMOI_BLOCKS_READY, MEMOI_BLOCKS_REDUCED, MEMOI_BLOCKS_RETURNED, MEMOI_BLOCKS_EVENTS };

/* --- one op after another --- */

MEMOI int memoi_blocks_is_last(const memo_blocks_schedule_desc* desc, int32_t block) {
    return block % desc->blocks_per_layer == desc->blocks_per_layer - 1;
}

/* Returns 1 if forward saves the input of a block for its recomputation. */
MEMOI int memoi_blocks_is_saved(const memo_blocks_schedule_desc* desc, int32_t block) {
    return desc->order == MEMO_BLOCKS_FINE || block % desc->blocks_per_layer == 0;
}

/* Returns 1 if recomputation must compute the output: in the fine order never, in the cross order
 * not for a layer's last block. */
MEMOI int memoi_blocks_has_output(const memo_blocks_schedule_desc* desc, int32_t block) {
    if (desc->order == MEMO_BLOCKS_FINE) return 0;
    return desc->order != MEMO_BLOCKS_CROSS || !memoi_blocks_is_last(desc, block);
}

MEMOI void memoi_blocks_name(char name[40], memoi_blocks_kind kind, int32_t n, int32_t part) {
    static const char* const kinds[] = {"F", "R", "B", "W", "end-", "cF", "cR", "cB"};
    MEMOB_TABLE_OF(MEMOI_N_BLOCKS_KINDS, kinds);
    char block[16] = "";
    if (kind != MEMOI_BLOCKS_END) snprintf(block, sizeof block, "%d", (int)n + 1);
    if (part < 26)
        snprintf(name, 40, "%s%s%c", kinds[kind], block, 'a' + (int)part);
    else
        snprintf(name, 40, "%s%s.%d", kinds[kind], block, (int)part + 1);
}

MEMOI int memoi_blocks_is_comm(memoi_blocks_kind kind) {
    return kind >= MEMOI_BLOCKS_REDUCE_FORWARD;
}

/* Tells a recorder what a step does with y and g.  All else stays on the compute stream. */
MEMOI void memoi_blocks_announce(memo_blocks* b, memoi_blocks_kind kind,
                                 const memo_block_call* call) {
    const memo_block_buffers* buffers = &b->desc.buffers[call->part];
    const int is_reduced = memoi_blocks_is_comm(kind), is_end = kind == MEMOI_BLOCKS_END;
    const int has_gradient = kind == MEMOI_BLOCKS_BACKWARD ||
                             kind == MEMOI_BLOCKS_REDUCE_BACKWARD || (is_end && b->is_backward);
    const memo_range range = memob_range_at(has_gradient ? buffers->gradient : buffers->output,
                                            buffers->count * memo_type_bytes(b->desc.type));
    int n_reads = is_reduced || is_end ||
                  (kind == MEMOI_BLOCKS_BACKWARD ? call->block < b->desc.schedule.n_blocks - 1
                                                 : !call->is_input_saved);
    int n_writes = is_reduced || (!is_end && call->has_output);
    char name[40];
    memoi_blocks_name(name, kind, call->block, call->part);
    if (kind == MEMOI_BLOCKS_WEIGHTS) n_reads = n_writes = 0;
    memoi_target_announce(&b->target, is_reduced ? MEMOI_TARGET_COMM : MEMOI_TARGET_COMPUTE, name,
                          &range, n_reads, &range, n_writes, 0);
}

/* Calls the trainer's function for an op of the compute stream. */
MEMOI memo_status memoi_blocks_compute(const memo_blocks* b, memoi_blocks_kind kind,
                                       const memo_block_call* call) {
    const memo_block_functions* f = &b->desc.functions;
    const memo_block_function by_kind[] = {f->forward, f->recompute, f->backward, f->weights,
                                           b->is_backward ? f->backward_end : f->forward_end};
    MEMOB_TABLE_OF(MEMOI_BLOCKS_END + 1, by_kind);
    return by_kind[kind] ? by_kind[kind](f->context, call, b->target.error) : MEMO_STATUS_OK;
}

/* Fields of digests, in the order of memo_label.digests. */
enum { MEMOI_BLOCKS_PASS, MEMOI_BLOCKS_SCHEDULE, MEMOI_BLOCKS_SIZES };
static const char* const memoi_blocks_fields[MEMO_LABEL_FIELDS] = {
    "memo_blocks_forward on one rank, memo_blocks_backward on another", "memo_blocks_desc.schedule",
    "memo_blocks_desc: type or buffers.count"};

/* What all ranks must agree on. */
MEMOI void memoi_blocks_agree(memo_blocks* b) {
    const memo_blocks_schedule_desc* d = &b->desc.schedule;
    const int64_t schedule[] = {d->order, d->n_blocks, d->blocks_per_layer, d->n_parts,
                                d->splits_sequence != 0};
    b->agreed.fields = memoi_blocks_fields;
    memoi_label_add(&b->agreed, MEMOI_BLOCKS_SCHEDULE, schedule, sizeof schedule);
    memoi_label_add_number(&b->agreed, MEMOI_BLOCKS_SIZES, b->desc.type);
    for (int32_t s = 0; s < d->n_parts; s++)
        memoi_label_add_number(&b->agreed, MEMOI_BLOCKS_SIZES, b->desc.buffers[s].count);
}

/* Collectives of both passes may have the same counts; the label distinguishes them. */
MEMOI memo_status memoi_blocks_reduce(memo_blocks* b, memoi_blocks_kind kind, int32_t part) {
    const memo_block_buffers* buffers = &b->desc.buffers[part];
    memo_comm* comm = b->desc.comm;
    void* buffer = kind == MEMOI_BLOCKS_REDUCE_BACKWARD ? buffers->gradient : buffers->output;
    memoi_comm_label(comm, &b->agreed, !b->has_met,
                     b->is_backward ? "blocks backward" : "blocks forward", b->n_ops);
    b->has_met = 1;
    return memo_all_reduce(comm, b->target.streams[MEMOI_TARGET_COMM], buffer, buffer,
                           buffers->count, b->desc.type, MEMO_REDUCTION_SUM, b->target.error);
}

MEMOI void memoi_blocks_run_op(memo_blocks* b, memoi_blocks_kind kind, int32_t block,
                               int32_t part) {
    const memo_blocks_schedule_desc* desc = &b->desc.schedule;
    const int is_again = kind == MEMOI_BLOCKS_RECOMPUTE;
    memo_block_call call;
    MEMO_ASSERT(block >= 0 && block < desc->n_blocks && part >= 0 && part < desc->n_parts); /* 1 */
    call.block = block;
    call.part = part;
    call.stream = b->desc.compute_stream;
    call.keeps_input = memoi_blocks_is_saved(desc, block);
    call.is_input_saved = is_again ? call.keeps_input : block == 0;
    call.has_output = !is_again || memoi_blocks_has_output(desc, block);
    if (memoi_target_is_heard(&b->target)) memoi_blocks_announce(b, kind, &call);
    if (!b->target.status)
        b->target.status = memoi_blocks_is_comm(kind) ? memoi_blocks_reduce(b, kind, part)
                                                      : memoi_blocks_compute(b, kind, &call);
    b->n_ops++;
}

/* A record or a wait. */
MEMOI void memoi_blocks_sync(memo_blocks* b, int is_wait, int event, int32_t part, int stream) {
    (is_wait ? memoi_target_wait
             : memoi_target_record)(&b->target, event * b->desc.schedule.n_parts + part, stream);
    b->n_ops++;
}

/* In the default order the collective itself has been waited for. */
MEMOI void memoi_blocks_need(memo_blocks* b, int event, int32_t part) {
    if (b->desc.schedule.order != MEMO_BLOCKS_DEFAULT)
        memoi_blocks_sync(b, 1, event, part, MEMOI_TARGET_COMPUTE);
}

/* A collective after everything that compute has so far. */
MEMOI void memoi_blocks_collective(memo_blocks* b, memoi_blocks_kind kind, int event, int32_t block,
                                   int32_t part) {
    memoi_blocks_sync(b, 0, MEMOI_BLOCKS_READY, part, MEMOI_TARGET_COMPUTE);
    memoi_blocks_sync(b, 1, MEMOI_BLOCKS_READY, part, MEMOI_TARGET_COMM);
    memoi_blocks_run_op(b, kind, block, part);
    memoi_blocks_sync(b, 0, event, part, MEMOI_TARGET_COMM);
    if (b->desc.schedule.order == MEMO_BLOCKS_DEFAULT)
        memoi_blocks_sync(b, 1, event, part, MEMOI_TARGET_COMPUTE);
}

/* --- backward --- */

MEMOI void memoi_blocks_recompute(memo_blocks* b, int32_t block, int32_t part) {
    if (!memoi_blocks_is_saved(&b->desc.schedule, block))
        memoi_blocks_need(b, MEMOI_BLOCKS_REDUCED, part);
    memoi_blocks_run_op(b, MEMOI_BLOCKS_RECOMPUTE, block, part);
    if (memoi_blocks_has_output(&b->desc.schedule, block))
        memoi_blocks_collective(b, MEMOI_BLOCKS_REDUCE_RECOMPUTE, MEMOI_BLOCKS_REDUCED, block,
                                part);
}
MEMOI void memoi_blocks_recompute_all(memo_blocks* b, int32_t block) {
    for (int32_t k = 0; k < b->desc.schedule.n_parts; k++) memoi_blocks_recompute(b, block, k);
}

/* Runs a block's backward, part by part; recomputes: each part is recomputed just before. */
MEMOI void memoi_blocks_backward_of(memo_blocks* b, int32_t block, int recomputes) {
    /* At the end of a layer the gradient has been waited for: in the pipelined order by the
     * barrier; in the cross order by its recomputation, which waits for a later collective on the
     * comm stream. */
    const int is_there =
        block == b->desc.schedule.n_blocks - 1 ||
        (memoi_blocks_is_last(&b->desc.schedule, block) &&
         (b->desc.schedule.order == MEMO_BLOCKS_PIPELINED ||
          (b->desc.schedule.order == MEMO_BLOCKS_CROSS && b->desc.schedule.blocks_per_layer > 1)));
    for (int32_t k = 0; k < b->desc.schedule.n_parts; k++) {
        int32_t part = b->desc.schedule.splits_sequence ? b->desc.schedule.n_parts - 1 - k : k;
        if (recomputes) memoi_blocks_recompute(b, block, part);
        if (!is_there) memoi_blocks_need(b, MEMOI_BLOCKS_RETURNED, part);
        memoi_blocks_run_op(b, MEMOI_BLOCKS_BACKWARD, block, part);
        memoi_blocks_collective(b, MEMOI_BLOCKS_REDUCE_BACKWARD, MEMOI_BLOCKS_RETURNED, block,
                                part);
        if (b->desc.functions.weights) memoi_blocks_run_op(b, MEMOI_BLOCKS_WEIGHTS, block, part);
    }
}

MEMOI void memoi_blocks_barrier(memo_blocks* b, int event) {
    for (int32_t s = 0; s < b->desc.schedule.n_parts; s++) memoi_blocks_need(b, event, s);
}

/* The first blocks of the layer are recomputed before its backward: in the fine order none, in the
 * cross order all but the last.  Other blocks are recomputed just before their own backward, part
 * by part; attention over parts of a sequence is recomputed for all parts. */
MEMOI void memoi_blocks_backward_layer(memo_blocks* b, int32_t layer) {
    const memo_blocks_schedule_desc* desc = &b->desc.schedule;
    const int32_t first = layer * desc->blocks_per_layer, end = first + desc->blocks_per_layer;
    int32_t recomputed = end;
    if (desc->order == MEMO_BLOCKS_FINE) recomputed = first;
    if (desc->order == MEMO_BLOCKS_CROSS) recomputed = end - 1;
    for (int32_t i = first; i < recomputed; i++) memoi_blocks_recompute_all(b, i);
    if (recomputed == end) memoi_blocks_barrier(b, MEMOI_BLOCKS_REDUCED);
    for (int32_t i = end - 1; i >= first; i--) {
        const int couples = i >= recomputed && desc->splits_sequence && i == first;
        if (couples) memoi_blocks_recompute_all(b, i);
        memoi_blocks_backward_of(b, i, i >= recomputed && !couples);
    }
    if (desc->order == MEMO_BLOCKS_PIPELINED && first > 0)
        memoi_blocks_barrier(b, MEMOI_BLOCKS_RETURNED);
}

/* One layer; after the last one of the pass the trainer takes over. */
MEMOI void memoi_blocks_layer(memo_blocks* b, int32_t layer) {
    const int32_t end = b->is_backward ? 0 : b->n_layers - 1;
    const int32_t first = layer * b->desc.schedule.blocks_per_layer, n = b->desc.schedule.n_parts;
    if (b->is_backward) memoi_blocks_backward_layer(b, layer);
    for (int32_t k = 0; k < b->desc.schedule.blocks_per_layer * n && !b->is_backward; k++) {
        const int32_t i = first + k / n, s = k % n;
        if (i > 0) memoi_blocks_need(b, MEMOI_BLOCKS_REDUCED, s);
        memoi_blocks_run_op(b, MEMOI_BLOCKS_FORWARD, i, s);
        memoi_blocks_collective(b, MEMOI_BLOCKS_REDUCE_FORWARD, MEMOI_BLOCKS_REDUCED, i, s);
    }
    for (int32_t s = 0; s < n && layer == end; s++) {
        memoi_blocks_need(b, b->is_backward ? MEMOI_BLOCKS_RETURNED : MEMOI_BLOCKS_REDUCED, s);
        memoi_blocks_run_op(b, MEMOI_BLOCKS_END, b->is_backward ? 0 : b->desc.schedule.n_blocks - 1,
                            s);
    }
}

/* ---- >>block runs -------------------------------------------------------------------------------
 * Knows: creation, passes and layers.  Knows nothing of the order of operations. */

/* Fills in the defaults of desc->schedule. */
MEMOI memo_status memoi_blocks_check_desc(memo_blocks_desc* desc, memo_error* error) {
    static const char name[] = "memo_blocks_desc", schedule_name[] = "memo_blocks_schedule_desc";
    memo_blocks_schedule_desc* schedule = &desc->schedule;
    if (schedule->blocks_per_layer == 0) schedule->blocks_per_layer = 2;
    if (schedule->n_parts == 0) schedule->n_parts = 2;
    if (MEMOI_INTEGER(schedule_name, schedule, order, 0, MEMO_N_BLOCKS_ORDERS - 1) ||
        MEMOI_INTEGER(schedule_name, schedule, n_parts, 1, MEMOI_BLOCKS_MAX))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (schedule->n_blocks < 1 || schedule->blocks_per_layer < 1 ||
        schedule->n_blocks % schedule->blocks_per_layer)
        return MEMOI_REFUSE("memo_blocks_schedule_desc.n_blocks: not whole layers (%d blocks, %d "
                            "per layer); use a positive multiple of blocks_per_layer",
                            (int)schedule->n_blocks, (int)schedule->blocks_per_layer);
    if (MEMOI_INTEGER(schedule_name, schedule, n_blocks, 1, MEMOI_BLOCKS_MAX / schedule->n_parts) ||
        MEMOI_GIVEN(name, desc, device) || MEMOI_GIVEN(name, desc, comm) ||
        MEMOI_GIVEN(name, desc, buffers) || MEMOI_GIVEN(name, desc, functions.forward) ||
        MEMOI_GIVEN(name, desc, functions.recompute) ||
        MEMOI_GIVEN(name, desc, functions.backward) ||
        MEMOI_INTEGER(name, desc, type, 0, MEMO_N_TYPES - 1))
        return MEMO_STATUS_INVALID_ARGUMENT;

    /* Parts run side by side, each in its own buffers. */
    for (int32_t s = 0; s < schedule->n_parts; s++) {
        const memo_block_buffers* buffers = &desc->buffers[s];
        if (MEMOI_GIVEN("memo_block_buffers", buffers, output) ||
            MEMOI_GIVEN("memo_block_buffers", buffers, gradient) ||
            MEMOI_INTEGER("memo_block_buffers", buffers, count, 0, INT64_MAX))
            return MEMO_STATUS_INVALID_ARGUMENT;
    }
    return MEMO_STATUS_OK;
}

/* Streams, events and copies.  Both passes use the same events. */
MEMOI memo_status memoi_blocks_prepare(memo_blocks* blocks, const memo_blocks_desc* desc,
                                       memo_error* error) {
    const memo_blocks_schedule_desc* schedule = &blocks->desc.schedule;
    memo_block_buffers* buffers;
    memoi_target* target = &blocks->target;
    memo_status status;
    blocks->desc = *desc;
    blocks->next_forward = blocks->next_backward = -1;
    status = memoi_blocks_check_desc(&blocks->desc, error);
    if (status) return status;
    buffers = MEMOB_ARRAY(&target->arrays, memo_block_buffers, schedule->n_parts);
    target->n_events = MEMOI_BLOCKS_EVENTS * schedule->n_parts;
    target->events = MEMOB_ARRAY(&target->arrays, memo_event, target->n_events);
    if (target->arrays.failed) return memob_no_memory(error, "overlapped blocks");

    memcpy(buffers, blocks->desc.buffers, (size_t)schedule->n_parts * sizeof *buffers);
    blocks->desc.buffers = buffers;
    blocks->n_layers = schedule->n_blocks / schedule->blocks_per_layer;
    target->device = blocks->desc.device;
    target->streams[MEMOI_TARGET_COMPUTE] = blocks->desc.compute_stream;
    for (int32_t k = 0; k < target->n_events && !status; k++)
        status = memo_event_create_untimed(target->device, &target->events[k], error);
    if (!status)
        status = memo_stream_create(target->device, "comm", 1, &target->streams[MEMOI_TARGET_COMM],
                                    error);
    memoi_blocks_agree(blocks);
    return status;
}

MEMOI_TARGET_OBJECT(blocks, "overlapped blocks")

/* A layer that may come next, or all. */
MEMOI memo_status memoi_blocks_run(memo_blocks* blocks, int is_backward, int32_t layer,
                                   memo_error* error) {
    const int32_t top = blocks->n_layers - 1, step = is_backward ? -1 : 1;
    const int32_t next = is_backward ? blocks->next_backward : blocks->next_forward;
    const int is_all = layer == MEMO_ALL_LAYERS;
    const int32_t first = is_all ? is_backward * top : layer;
    const int32_t last = is_all ? !is_backward * top : layer;
    const char* hint =
        next < 0 ? "run forward for all layers first" : "run layers in descending order";
    if (!is_backward) hint = "layer 0 is valid, or the next one";
    if (first < 0 || first > top || (first != next && (first || is_backward)))
        return MEMOI_FAIL(INVALID_STATE, "memo_blocks_%s: out of order (layer %d); %s",
                          is_backward ? "backward" : "forward", (int)first, hint);
    for (layer = first; layer != last + step; layer += step) {
        if (layer == (is_backward ? top : 0)) {
            blocks->n_ops = blocks->has_met = 0;
            blocks->n_ahead -= is_backward;
        }
        blocks->is_backward = is_backward;
        blocks->agreed.digests[MEMOI_BLOCKS_PASS] = (uint32_t)is_backward;
        blocks->target.status = MEMO_STATUS_OK;
        blocks->target.error = error;
        blocks->next_forward = blocks->next_backward = -1;
        memoi_blocks_layer(blocks, layer);
        if (blocks->target.status) return blocks->target.status;

        /* What may come next. */
        if (!is_backward) blocks->next_forward = layer + 1;
        if (!is_backward && layer == top) blocks->n_ahead++;
        if (is_backward && layer)
            blocks->next_backward = layer - 1;
        else if (is_backward ? blocks->n_ahead > 0 : layer == top)
            blocks->next_backward = top;
    }
    return MEMO_STATUS_OK;
}

memo_status memo_blocks_forward(memo_blocks* blocks, int32_t layer, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "blocks", blocks);
    return memoi_blocks_run(blocks, 0, layer, error);
}
memo_status memo_blocks_backward(memo_blocks* blocks, int32_t layer, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "blocks", blocks);
    return memoi_blocks_run(blocks, 1, layer, error);
}

/* ---- >>loss -------------------------------------------------------------------------------------
 * Knows: shares, row kernels, one all-gather.  Knows nothing of attention or of matrix products.
 *
 * 1. A tile has rows, and its buffers hold them. */

#define MEMOI_LOSS_TILE_BYTES ((int64_t)64 << 20)

struct memo_loss {
    memo_loss_desc desc;
    memo_loss_sizes sizes;
    memoi_target target;
    char* logits;
    float *parts, *losses;
};

/* Buffers of one tile.  Returns their bytes. */
MEMOI int64_t memoi_loss_carve(memo_loss* loss, char* base) {
    const int64_t n_ranks = loss->desc.tensor ? loss->desc.tensor->size : 1;
    const int64_t rows = loss->sizes.tile_rows, n_parts = rows * n_ranks * MEMO_LOSS_NUMBERS;
    memoi_carver carver = {base, 0};
    loss->logits =
        memoi_carve(&carver, rows * loss->sizes.n_columns * memo_type_bytes(loss->desc.type));
    loss->parts = (float*)memoi_carve(&carver, n_parts * 4);
    loss->losses = (float*)memoi_carve(&carver, rows * 4);
    return carver.n_bytes;
}

memo_status memo_loss_desc_get_sizes(const memo_loss_desc* desc, memo_loss_sizes* sizes,
                                     memo_error* error) {
    MEMOB_REFUSE_NULL(error, "desc", desc);
    MEMOB_REFUSE_NULL(error, "sizes", sizes);
    static const char name[] = "memo_loss_desc";
    int32_t n_ranks = desc->tensor ? desc->tensor->size : 1;
    int32_t rank = desc->tensor ? desc->tensor->rank : 0;
    int64_t row_bytes;
    memo_share share;
    memo_loss loss;
    memset(sizes, 0, sizeof *sizes);
    if (MEMOI_INTEGER(name, desc, vocabulary, 1, INT32_MAX) ||
        MEMOI_INTEGER(name, desc, tile_rows, 0, 1 << 28) ||
        MEMOI_REAL(name, desc, softcap, 0, 3e38) ||
        memoi_check_row_type(name, "type", desc->type, error))
        return MEMO_STATUS_INVALID_ARGUMENT;

    /* Rank 0 has the largest share, so all ranks find the same tile. */
    row_bytes = memo_share_of(desc->vocabulary, n_ranks, 0).count * memo_type_bytes(desc->type);
    row_bytes = memob_max(row_bytes, (int64_t)n_ranks * MEMO_LOSS_NUMBERS * 4);
    sizes->tile_rows = desc->tile_rows;
    if (!sizes->tile_rows) sizes->tile_rows = memob_max(MEMOI_LOSS_TILE_BYTES / row_bytes, 1);
    share = memo_share_of(desc->vocabulary, n_ranks, rank);
    sizes->first_column = share.begin;
    sizes->n_columns = share.count;
    sizes->sent_bytes_per_row = MEMO_LOSS_NUMBERS * 4 * ((int64_t)n_ranks - 1);
    loss.desc = *desc;
    loss.sizes = *sizes;
    sizes->device_bytes = memoi_loss_carve(&loss, NULL);
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_loss_prepare(memo_loss* loss, const memo_loss_desc* desc,
                                     memo_error* error) {
    static const char name[] = "memo_loss_desc";
    memo_status status = memo_loss_desc_get_sizes(desc, &loss->sizes, error);
    if (status || MEMOI_GIVEN(name, desc, device) || MEMOI_GIVEN(name, desc, stream) ||
        MEMOI_GIVEN(name, desc, functions.logits) ||
        memoi_check_memory(name, desc->device_memory, error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    status = memoi_check_row_kernels(desc->device, error);
    if (status) return status;
    loss->desc = *desc;
    loss->target.device = desc->device;
    loss->target.streams[MEMOI_TARGET_COMPUTE] = desc->stream;
    if (!desc->device_memory)
        status =
            memo_device_alloc(desc->device, loss->sizes.device_bytes, &loss->target.memory, error);
    memoi_loss_carve(loss,
                     (char*)(loss->target.memory ? loss->target.memory : desc->device_memory));
    return status;
}

MEMOI_TARGET_OBJECT(loss, "a loss in tiles")

/* What tensor ranks must agree on. */
static const char* const memoi_loss_fields[MEMO_LABEL_FIELDS] = {
    "memo_loss_run on one rank, another pass on another",
    "memo_loss_desc: vocabulary, type, tile_rows or softcap", "memo_loss_tensors: n_rows or scale"};

MEMOI memo_status memoi_loss_tile_run(memo_loss* loss, const memo_loss_tensors* tensors,
                                      const memo_loss_tile* tile, const memo_label* agreed,
                                      memo_error* error) {
    const memo_loss_functions* functions = &loss->desc.functions;
    const memo_device* device = loss->desc.device;
    memo_comm* tensor = loss->desc.tensor;
    memo_cross_entropy_desc entropy = MEMO_ZERO(memo_cross_entropy_desc);
    memo_status status = functions->logits(functions->context, tile, error);
    entropy.logits = tile->logits;
    entropy.d_logits = tensors->scale != 0 ? tile->logits : NULL;
    entropy.labels = tensors->labels + tile->first_row;
    entropy.parts = loss->parts;
    entropy.losses = tensors->losses ? tensors->losses + tile->first_row : loss->losses;
    entropy.sums = tensors->sums;
    entropy.type = loss->desc.type;
    entropy.n_parts = tensor ? tensor->size : 1;
    entropy.part = tensor ? tensor->rank : 0;
    entropy.scale = tensors->scale;
    entropy.softcap = loss->desc.softcap;
    entropy.vocabulary = loss->desc.vocabulary;
    entropy.n_rows = tile->n_rows;
    entropy.n_columns = tile->n_columns;
    entropy.first_column = tile->first_column;
    if (!status) status = memo_row_softmax_parts(device, tile->stream, &entropy, error);

    /* In place: this rank's part is where the gather puts it. */
    if (!status && entropy.n_parts > 1) {
        int64_t count = tile->n_rows * MEMO_LOSS_NUMBERS;
        memoi_comm_label(tensor, agreed, !tile->first_row, "loss", tile->first_row);
        status = memo_all_gather(tensor, tile->stream, loss->parts + entropy.part * count,
                                 loss->parts, count, MEMO_TYPE_F32, error);
    }
    if (!status) status = memo_row_cross_entropy(device, tile->stream, &entropy, error);
    if (!status && tensors->sums)
        status = memo_row_loss_sums(device, tile->stream, &entropy, error);
    if (!status && tensors->scale != 0)
        status = functions->gradients(functions->context, tile, error);
    return status;
}

memo_status memo_loss_run(memo_loss* loss, const memo_loss_tensors* tensors, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "loss", loss);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    const memo_loss_desc* d = &loss->desc;
    const int64_t sizes[] = {d->vocabulary, d->type, loss->sizes.tile_rows};
    memo_label agreed = MEMO_ZERO(memo_label);
    memo_status status = MEMO_STATUS_OK;
    memo_loss_tile tile;
    if (MEMOI_INTEGER("memo_loss_tensors", tensors, n_rows, 0, MEMOB_BYTES_MAX) ||
        (tensors->n_rows && MEMOI_GIVEN("memo_loss_tensors", tensors, labels)) ||
        (tensors->scale != 0 && MEMOI_GIVEN("memo_loss_desc", d, functions.gradients)))
        return MEMO_STATUS_INVALID_ARGUMENT;
    agreed.fields = memoi_loss_fields;
    memoi_label_add(&agreed, 0, "loss", 4);
    memoi_label_add(&agreed, 1, sizes, sizeof sizes);
    memoi_label_add(&agreed, 1, &d->softcap, sizeof d->softcap);
    memoi_label_add_number(&agreed, 2, tensors->n_rows);
    memoi_label_add(&agreed, 2, &tensors->scale, sizeof tensors->scale);

    tile.stream = d->stream;
    tile.first_column = loss->sizes.first_column;
    tile.n_columns = loss->sizes.n_columns;
    tile.logits = loss->logits;
    for (tile.first_row = 0; tile.first_row < tensors->n_rows && !status;
         tile.first_row += tile.n_rows) {
        tile.n_rows = memob_min(tensors->n_rows - tile.first_row, loss->sizes.tile_rows);
        MEMO_ASSERT(tile.n_rows > 0 && tile.n_rows <= loss->sizes.tile_rows); /* 1 */
        status = memoi_loss_tile_run(loss, tensors, &tile, &agreed, error);
    }
    return status;
}

memo_status memo_loss_read(const memo_loss* loss, const double* sums, double* mean,
                           memo_error* error) {
    MEMOB_REFUSE_NULL(error, "loss", loss);
    MEMOB_REFUSE_NULL(error, "sums", sums);
    MEMOB_REFUSE_NULL(error, "mean", mean);
    const memo_device* device = loss->desc.device;
    double numbers[3] = {0, 0, 0};
    memo_status status = memo_copy(device, loss->desc.stream, MEMO_COPY_TO_HOST, numbers, sums,
                                   sizeof numbers, error);
    if (!status) status = memo_stream_synchronize(device, loss->desc.stream, error);
    *mean = numbers[1] > 0 ? numbers[0] / numbers[1] : 0;
    if (status || numbers[2] == 0) return status;
    return MEMOI_REFUSE("memo_loss_tensors.labels: %.0f at or beyond the vocabulary; 0 to %lld are "
                        "valid, and below 0 for no loss",
                        numbers[2], (long long)loss->desc.vocabulary - 1);
}

/* ---- >>scan -------------------------------------------------------------------------------------
 * Knows: who has which rows, where documents begin, which summaries travel.  Knows nothing of what
 * a state means.
 *
 * Places: the ranks that have rows, in the order of the scan: ascending in forward, descending in
 * backward.  The state before the rows of a place depends on rows of earlier places; the reach of a
 * place is the number of these.  All ranks know all reaches, so each rank knows what its peers send
 * and need.
 *
 * 1. A place reaches back to earlier places at most.
 * 2. Gradients of halo rows that arrive fit their buffer. */

typedef struct memoi_scan_summary {
    float *m, *b;
} memoi_scan_summary;
typedef struct memoi_scan_summaries {
    memoi_scan_summary own, before, in, spare; /* before: of the places before this one */
} memoi_scan_summaries;

struct memo_scan {
    memo_scan_desc desc;
    memoi_target target;
    int32_t n_ranks, rank;
    memoi_scan_summaries summaries;
    char* halo; /* gradients of halo rows, from the ranks that read them */
    /* The rows of a batch. */
    int64_t *row_begins, *borders; /* (n_ranks + 1); the last border at or before each begin */
    int32_t* reach[2];             /* (n_places), of forward and backward */
    int32_t* has_border;           /* (n_ranks): after the first row */
    int32_t n_places, place;       /* of this rank in forward; -1: it has no rows */
    int32_t is_joined[2];          /* no document begins before the first place, of each pass */
    memo_label agreed;
    int32_t has_rows;
};

static const char* const memoi_scan_fields[MEMO_LABEL_FIELDS] = {
    "memo_scan: a pass on one rank, another pass on another",
    "memo_scan_desc: m_count, b_count, halo_rows, halo_columns or halo_type",
    "memo_scan_set_rows: row_begins", "memo_scan_set_rows: document_begins or n_documents"};

/* --- creation --- */

/* Row p is read by the ranks whose first row is one of the next halo_rows, so by as many at most;
 * the k-th of them reads k - 1 rows less. */
MEMOI int64_t memoi_scan_halo_bytes(const memo_scan_desc* desc) {
    const int64_t w = desc->halo_rows, n_ranks = desc->comm ? desc->comm->size : 1;
    return memob_min(w * (w + 1) / 2, w * (n_ranks - 1)) * desc->halo_columns *
           memo_type_bytes(desc->halo_type);
}

/* Returns the device bytes. */
MEMOI int64_t memoi_scan_carve(memo_scan* scan, char* base) {
    const memo_scan_desc* desc = &scan->desc;
    memoi_carver carver = {base, 0};
    memoi_scan_summary* const all[] = {&scan->summaries.own, &scan->summaries.before,
                                       &scan->summaries.in, &scan->summaries.spare};
    for (int i = 0; i < 4; i++) {
        all[i]->m = (float*)memoi_carve(&carver, desc->m_count * 4);
        all[i]->b = (float*)memoi_carve(&carver, desc->b_count * 4);
    }
    scan->halo = memoi_carve(&carver, memoi_scan_halo_bytes(desc));
    return carver.n_bytes;
}

MEMOI memo_status memoi_scan_prepare(memo_scan* scan, const memo_scan_desc* desc,
                                     memo_error* error) {
    const int64_t sizes[] = {desc->m_count, desc->b_count, desc->halo_rows, desc->halo_columns,
                             desc->halo_type};
    const int32_t n = desc->comm ? desc->comm->size : 1;
    static const char name[] = "memo_scan_desc";
    const int64_t most = (int64_t)1 << 48;
    memo_status status;
    if (MEMOI_INTEGER(name, desc, m_count, 0, most) ||
        MEMOI_INTEGER(name, desc, b_count, 1, most) ||
        MEMOI_INTEGER(name, desc, halo_rows, 0, 1 << 15) ||
        MEMOI_INTEGER(name, desc, halo_columns, desc->halo_rows != 0, 1 << 30) ||
        MEMOI_GIVEN(name, desc, device) || MEMOI_GIVEN(name, desc, stream) ||
        MEMOI_GIVEN(name, desc, functions.summarize) ||
        MEMOI_GIVEN(name, desc, functions.compose) || MEMOI_GIVEN(name, desc, functions.run) ||
        (desc->halo_rows && memoi_check_row_type(name, "halo_type", desc->halo_type, error)))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (desc->halo_rows && memoi_check_row_kernels(desc->device, error))
        return MEMO_STATUS_UNSUPPORTED;

    /* What each rank keeps of the others. */
    scan->desc = *desc;
    scan->n_ranks = n;
    scan->rank = desc->comm ? desc->comm->rank : 0;
    scan->row_begins = MEMOB_ARRAY(&scan->target.arrays, int64_t, (int64_t)n + 1);
    scan->borders = MEMOB_ARRAY(&scan->target.arrays, int64_t, (int64_t)n + 1);
    scan->has_border = MEMOB_ARRAY(&scan->target.arrays, int32_t, n);
    scan->reach[0] = MEMOB_ARRAY(&scan->target.arrays, int32_t, n);
    scan->reach[1] = MEMOB_ARRAY(&scan->target.arrays, int32_t, n);
    if (scan->target.arrays.failed) return memob_no_memory(error, "a scan");

    scan->target.device = desc->device;
    scan->target.streams[MEMOI_TARGET_COMPUTE] = desc->stream;
    scan->agreed.fields = memoi_scan_fields;
    memoi_label_add(&scan->agreed, 1, sizes, sizeof sizes);
    status =
        memo_device_alloc(desc->device, memoi_scan_carve(scan, NULL), &scan->target.memory, error);
    if (!status) memoi_scan_carve(scan, (char*)scan->target.memory);
    return status;
}

MEMOI_TARGET_OBJECT(scan, "a scan")

/* --- the rows of a batch --- */

/* The reaches of all places.  A rank without rows is no place. */
MEMOI void memoi_scan_find_reaches(memo_scan* scan, int is_backward) {
    const int64_t* begins = scan->row_begins;
    int32_t *reach = scan->reach[is_backward], n = 0, before = 0;
    for (int32_t k = 0; k < scan->n_ranks; k++) {
        const int32_t r = is_backward ? scan->n_ranks - 1 - k : k;
        const int32_t border = is_backward ? r + 1 : r; /* between this place and the one before */
        const int is_joined = scan->borders[border] < begins[border];
        if (begins[r] == begins[r + 1]) continue;
        if (!n) scan->is_joined[is_backward] = is_joined;
        if (r == scan->rank && !is_backward) scan->place = n;
        reach[n] = n && is_joined ? before + 1 : 0;
        MEMO_ASSERT(reach[n] <= n); /* 1 */
        before = scan->has_border[r] ? 0 : reach[n];
        n++;
    }
    scan->n_places = n;
}

memo_status memo_scan_set_rows(memo_scan* scan, const int64_t* row_begins,
                               const int64_t* document_begins, int64_t n_documents,
                               memo_error* error) {
    MEMOB_REFUSE_NULL(error, "scan", scan);
    MEMOB_REFUSE_NULL(error, "row_begins", row_begins);
    static const char name[] = "memo_scan_set_rows";
    int64_t n_borders; /* positions where a document begins, or where the last one ends */
    scan->has_rows = 0;
    for (int32_t r = 0; r < scan->n_ranks; r++)
        if (row_begins[0] < 0 || row_begins[r] > row_begins[r + 1] ||
            row_begins[r + 1] > MEMOB_BYTES_MAX / 2)
            return MEMOI_REFUSE("%s.row_begins[%d]: %lld and then %lld; begins that do not "
                                "descend, from 0 on, are valid",
                                name, (int)r, (long long)row_begins[r],
                                (long long)row_begins[r + 1]);
    if (document_begins && memoi_sharding_check_documents("memo_scan_set_rows.document_begins",
                                                          document_begins, n_documents, -1, error))
        return MEMO_STATUS_INVALID_ARGUMENT;

    /* The last position where a document begins, at or before each rank's first row.  Documents
     * without tokens at the end begin none; others begin where the next one does. */
    memcpy(scan->row_begins, row_begins, ((size_t)scan->n_ranks + 1) * sizeof *row_begins);
    n_borders = n_documents;
    while (document_begins && n_borders &&
           document_begins[n_borders - 1] == document_begins[n_documents])
        n_borders--;
    n_borders += document_begins && document_begins[n_documents] < row_begins[scan->n_ranks];
    for (int32_t r = 0; r <= scan->n_ranks; r++)
        scan->borders[r] =
            document_begins ? *memoi_sharding_document_of(document_begins, n_borders, row_begins[r])
                            : -1;
    for (int32_t r = 0; r < scan->n_ranks; r++) {
        const int64_t last = row_begins[r + 1] - 1;
        scan->has_border[r] =
            document_begins && last > row_begins[r] &&
            *memoi_sharding_document_of(document_begins, n_borders, last) > row_begins[r];
    }
    scan->place = -1;
    memoi_scan_find_reaches(scan, 0);
    memoi_scan_find_reaches(scan, 1);
    scan->has_rows = 1;

    /* Ranks that differ might not meet later. */
    scan->agreed.digests[2] = scan->agreed.digests[3] = 0;
    memoi_label_add_array(&scan->agreed, 2, row_begins, (int64_t)scan->n_ranks + 1);
    memoi_label_add_array(&scan->agreed, 3, document_begins, n_documents + 1);
    return memoi_comm_meet(scan->desc.comm, scan->desc.stream, &scan->agreed, "scan", error);
}

/* --- a pass --- */

typedef struct memoi_scan_walk {
    memo_scan* scan;
    memoi_target target;
    memo_label agreed;
    int32_t is_backward, place;
    const int32_t* reach;
    memoi_scan_summaries s;
    memo_scan_call call;
} memoi_scan_walk;

MEMOI memo_status memoi_scan_begin(memoi_scan_walk* walk, memo_scan* scan, int pass,
                                   memo_error* error) {
    memset(walk, 0, sizeof *walk);
    walk->scan = scan;
    walk->target = scan->target;
    walk->target.error = error;
    walk->target.agreed = &walk->agreed;
    walk->agreed = scan->agreed;
    memoi_label_add_number(&walk->agreed, 0, pass);
    if (scan->has_rows) return MEMO_STATUS_OK;
    return MEMOI_FAIL(INVALID_STATE, "memo_scan: no rows are set; call memo_scan_set_rows first");
}

MEMOI void memoi_scan_call_function(memoi_scan_walk* walk, memo_scan_function function,
                                    const memo_scan_call* call) {
    if (!walk->target.status)
        walk->target.status =
            function(walk->scan->desc.functions.context, call, walk->target.error);
}

/* *then = *then after first. */
MEMOI void memoi_scan_compose(memoi_scan_walk* walk, memoi_scan_summary* then, const float* first_m,
                              const float* first_b, int needs_m) {
    const memoi_scan_summary made = walk->s.spare;
    memo_scan_call call = walk->call;
    call.m = needs_m ? made.m : NULL;
    call.b = made.b;
    call.first_m = needs_m ? first_m : NULL;
    call.first_b = first_b;
    call.then_m = then->m;
    call.then_b = then->b;
    memoi_scan_call_function(walk, walk->scan->desc.functions.compose, &call);
    walk->s.spare = *then;
    *then = made;
}

/* A summary goes to a rank, or comes from it. */
MEMOI void memoi_scan_move(memoi_scan_walk* walk, const memoi_scan_summary* s, int has_m,
                           int is_send, int32_t peer) {
    const memo_scan_desc* desc = &walk->scan->desc;
    const int stream = MEMOI_TARGET_COMPUTE;
    memoi_target* target = &walk->target;
    memoi_target_message(target, stream, desc->comm, is_send, s->b, desc->b_count, MEMO_TYPE_F32,
                         peer);
    if (has_m)
        memoi_target_message(target, stream, desc->comm, is_send, s->m, desc->m_count,
                             MEMO_TYPE_F32, peer);
}

/* The rank of a place in the order of the pass. */
MEMOI int32_t memoi_scan_rank_at(const memoi_scan_walk* walk, int32_t place) {
    const int64_t* begins = walk->scan->row_begins;
    int32_t r = walk->is_backward ? walk->scan->n_ranks - 1 : 0;
    for (;; r += walk->is_backward ? -1 : 1)
        if (begins[r] != begins[r + 1] && !place--) return r;
}

/* The exchange with places at a distance of d, a power of two: a summary goes d places on.  own
 * then covers the last 2 d places, and before the 2 d - 1 places before this one. */
MEMOI void memoi_scan_exchange(memoi_scan_walk* walk, int32_t d) {
    const memo_scan* scan = walk->scan;
    const memo_scan_desc* desc = &scan->desc;
    const int32_t p = walk->place, n = scan->n_places, *reach = walk->reach;
    const int sends = p >= 0 && p + d < n && reach[p + d] >= d, receives = p >= d && reach[p] >= d;
    const int sends_m = sends && reach[p + d] >= 2 * d, receives_m = receives && reach[p] >= 2 * d;
    const int64_t with_m = desc->m_count * 4, b_bytes = desc->b_count * 4;
    memoi_target* target = &walk->target;
    const memo_range reads[] = {memob_range_at(walk->s.own.b, b_bytes),
                                memob_range_at(walk->s.own.m, with_m)};
    const memo_range writes[] = {memob_range_at(walk->s.in.b, b_bytes),
                                 memob_range_at(walk->s.in.m, with_m)};
    memoi_target_group_begin(target, MEMOI_TARGET_COMPUTE, desc->comm, "scan exchange", d, reads,
                             sends + sends_m, writes, receives + receives_m,
                             sends * b_bytes + sends_m * with_m);
    if (sends) memoi_scan_move(walk, &walk->s.own, sends_m, 1, memoi_scan_rank_at(walk, p + d));
    if (receives)
        memoi_scan_move(walk, &walk->s.in, receives_m, 0, memoi_scan_rank_at(walk, p - d));
    memoi_target_group_end(target, MEMOI_TARGET_COMPUTE, desc->comm);
    if (!receives) return;

    /* own must cover more only for a place that reads beyond what it covers. */
    if (p + 2 * d < n && reach[p + 2 * d] > 2 * d)
        memoi_scan_compose(walk, &walk->s.own, walk->s.in.m, walk->s.in.b,
                           reach[p + 2 * d] >= 4 * d);
    if (d > 1) {
        memoi_scan_compose(walk, &walk->s.before, walk->s.in.m, walk->s.in.b, receives_m);
    } else {
        const memoi_scan_summary in = walk->s.in;
        walk->s.in = walk->s.before;
        walk->s.before = in;
    }
}

MEMOI memo_status memoi_scan_pass(memo_scan* scan, const memo_scan_tensors* tensors,
                                  int is_backward, memo_error* error) {
    const int64_t n_bytes = scan->desc.b_count * 4;
    const float* initial = tensors->initial;
    int32_t next = 0, begins; /* what the next place reaches; with a state of the caller's */
    memoi_scan_walk walk;
    memoi_target* target = &walk.target;
    memo_status status = memoi_scan_begin(&walk, scan, is_backward, error);
    if (status) return status;
    if (MEMOI_GIVEN("memo_scan_tensors", tensors, state)) return MEMO_STATUS_INVALID_ARGUMENT;
    walk.is_backward = is_backward;
    walk.reach = scan->reach[is_backward];
    walk.place = scan->place >= 0 && is_backward ? scan->n_places - 1 - scan->place : scan->place;
    walk.s = scan->summaries;
    walk.call.stream = scan->desc.stream;
    walk.call.is_backward = is_backward;
    walk.call.user = tensors->user;
    if (walk.place || !scan->is_joined[is_backward]) initial = NULL;

    /* What the rows do, if anybody needs it; of the first place, which may begin with a state, the
     * state after its rows. */
    if (walk.place >= 0 && walk.place + 1 < scan->n_places) next = walk.reach[walk.place + 1];
    begins = initial && next && !scan->has_border[scan->rank];
    walk.call.m = next > 1 || begins ? walk.s.own.m : NULL;
    walk.call.b = walk.s.own.b;
    if (next) memoi_scan_call_function(&walk, scan->desc.functions.summarize, &walk.call);
    walk.call.m = walk.call.b = NULL;
    if (begins) memoi_scan_compose(&walk, &walk.s.own, NULL, initial, 0);

    /* The state before them, and the rows from there. */
    for (int32_t d = 1; d < scan->n_places; d *= 2) memoi_scan_exchange(&walk, d);
    if (walk.place < 0) return walk.target.status;
    if (walk.reach[walk.place]) initial = walk.s.before.b;
    if (!initial)
        memoi_target_fill(target, MEMOI_TARGET_COMPUTE, tensors->state, n_bytes);
    else if (!target->status)
        target->status = memo_copy(target->device, scan->desc.stream, MEMO_COPY_ON_DEVICE,
                                   tensors->state, initial, n_bytes, error);
    walk.call.state = tensors->state;
    memoi_scan_call_function(&walk, scan->desc.functions.run, &walk.call);
    return walk.target.status;
}

memo_status memo_scan_forward(memo_scan* scan, const memo_scan_tensors* tensors,
                              memo_error* error) {
    MEMOB_REFUSE_NULL(error, "scan", scan);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    return memoi_scan_pass(scan, tensors, 0, error);
}
memo_status memo_scan_backward(memo_scan* scan, const memo_scan_tensors* tensors,
                               memo_error* error) {
    MEMOB_REFUSE_NULL(error, "scan", scan);
    MEMOB_REFUSE_NULL(error, "tensors", tensors);
    return memoi_scan_pass(scan, tensors, 1, error);
}

/* --- the halo --- */

/* The rows [*begin, *end) of rank `owner` that rank `reader` has in its halo. */
MEMOI int memoi_scan_halo_rows(const memo_scan* scan, int32_t owner, int32_t reader, int64_t* begin,
                               int64_t* end) {
    const int64_t* begins = scan->row_begins;
    const int64_t first = begins[reader];
    *begin =
        memob_max(memob_max(first - scan->desc.halo_rows, scan->borders[reader]), begins[owner]);
    *end = begins[owner + 1];
    return owner < reader && first < begins[reader + 1] && *begin < *end;
}

/* Rows in forward, gradients in backward, which go the other way. */
MEMOI memo_status memoi_scan_halo(memo_scan* scan, char* rows, char* halo, int is_backward,
                                  memo_error* error) {
    const memo_scan_desc* desc = &scan->desc;
    const int64_t columns = desc->halo_columns, *begins = scan->row_begins;
    const int64_t row_bytes = columns * memo_type_bytes(desc->halo_type);
    const int64_t first = begins[scan->rank], halo_first = first - desc->halo_rows;
    const int stream = MEMOI_TARGET_COMPUTE;
    memoi_scan_walk walk;
    memoi_target* target = &walk.target;
    memo_range own = memob_range_at(rows, (begins[scan->rank + 1] - first) * row_bytes);
    memo_range others = memob_range_at(halo, halo ? desc->halo_rows * row_bytes : 0);
    memo_status status = memoi_scan_begin(&walk, scan, 2 + is_backward, error);
    int64_t begin, end, received = 0;
    int32_t r;
    if (status) return status;
    if (!desc->halo_rows)
        return MEMOI_FAIL(INVALID_STATE, "memo_scan_desc.halo_rows: 0; set it for a halo");
    if (first < begins[scan->rank + 1] && (!rows || !halo))
        return MEMOI_REFUSE("memo_scan: rows or halo is NULL; both are required");
    if (!is_backward) memoi_target_fill(target, stream, halo, (int64_t)(others.end - others.begin));
    if (scan->n_places < 2) return target->status;
    if (is_backward) {
        own = others;
        others = memob_range_at(scan->halo, memoi_scan_halo_bytes(desc));
    }

    memoi_target_group_begin(target, stream, desc->comm, "scan halo", -1, &own, 1, &others, 1, 0);
    for (r = 0; r < scan->n_ranks; r++) {
        if (memoi_scan_halo_rows(scan, r, scan->rank, &begin, &end))
            memoi_target_message(target, stream, desc->comm, is_backward,
                                 halo + (begin - halo_first) * row_bytes, (end - begin) * columns,
                                 desc->halo_type, r);
        if (!memoi_scan_halo_rows(scan, scan->rank, r, &begin, &end)) continue;
        memoi_target_message(target, stream, desc->comm, !is_backward,
                             is_backward ? scan->halo + received
                                         : rows + (begin - first) * row_bytes,
                             (end - begin) * columns, desc->halo_type, r);
        received += (end - begin) * row_bytes;
        MEMO_ASSERT(received <= memoi_scan_halo_bytes(desc)); /* 2 */
    }
    memoi_target_group_end(target, stream, desc->comm);

    /* In the order of ranks. */
    for (r = 0, received = 0; r < scan->n_ranks && is_backward; r++)
        if (memoi_scan_halo_rows(scan, scan->rank, r, &begin, &end)) {
            memoi_target_add(target, stream, desc->halo_type, rows + (begin - first) * row_bytes, 0,
                             scan->halo + received, 0, columns, end - begin);
            received += (end - begin) * row_bytes;
        }
    return target->status;
}

memo_status memo_scan_halo_forward(memo_scan* scan, const void* rows, void* halo,
                                   memo_error* error) {
    MEMOB_REFUSE_NULL(error, "scan", scan);
    return memoi_scan_halo(scan, (char*)(uintptr_t)rows, (char*)halo, 0, error);
}
memo_status memo_scan_halo_backward(memo_scan* scan, const void* d_halo, void* d_rows,
                                    memo_error* error) {
    MEMOB_REFUSE_NULL(error, "scan", scan);
    return memoi_scan_halo(scan, (char*)d_rows, (char*)(uintptr_t)d_halo, 1, error);
}

/* ---- >>experts ----------------------------------------------------------------------------------
 * Knows: who has which experts, and how many rows each rank sends to each.  Knows nothing of what
 * the rows are.
 *
 * 1. A pass moves each row that this rank sends, and each that it receives, once. */

struct memo_experts {
    memo_experts_desc desc;
    memoi_target target; /* its memories: (n_ranks, n_experts), counts on their way */
    memo_label agreed;
    int32_t n_ranks, rank;
};

static const char* const memoi_experts_fields[MEMO_LABEL_FIELDS] = {
    "memo_experts_desc: n_experts or max_received",
    "row_elements or type of a dispatch or combine"};

MEMOI memo_status memoi_experts_prepare(memo_experts* x, const memo_experts_desc* desc,
                                        memo_error* error) {
    static const char name[] = "memo_experts_desc";
    const int64_t n = desc->n_experts;
    int64_t n_bytes;
    memo_status status;
    x->desc = *desc;
    x->n_ranks = desc->comm ? desc->comm->size : 1;
    x->rank = desc->comm ? desc->comm->rank : 0;
    if (MEMOI_GIVEN(name, desc, device) || MEMOI_GIVEN(name, desc, stream) ||
        MEMOI_INTEGER(name, desc, n_experts, 1, 1 << 20) ||
        MEMOI_INTEGER(name, desc, max_received, 0, MEMOB_BYTES_MAX))
        return MEMO_STATUS_INVALID_ARGUMENT;

    x->target.device = desc->device;
    x->target.streams[MEMOI_TARGET_COMPUTE] = desc->stream;
    n_bytes = x->n_ranks * n * 8;
    status = memo_device_alloc(desc->device, n_bytes, &x->target.memory, error);
    if (!status) status = memo_host_alloc(desc->device, n_bytes, &x->target.host_memory, error);
    if (status) return status;

    x->agreed.fields = memoi_experts_fields;
    memoi_label_add_number(&x->agreed, 0, n);
    memoi_label_add_number(&x->agreed, 0, desc->max_received);
    return memoi_comm_meet(desc->comm, desc->stream, &x->agreed, "experts", error);
}

MEMOI_TARGET_OBJECT(experts, "experts")

/* --- counts --- */

memo_status memo_experts_route(memo_experts* x, const int64_t* counts, memo_routing* routing,
                               memo_error* error) {
    MEMOB_REFUSE_NULL(error, "experts", x);
    MEMOB_REFUSE_NULL(error, "counts", counts);
    MEMOB_REFUSE_NULL(error, "routing", routing);
    const int64_t n = x->desc.n_experts, n_bytes = x->n_ranks * n * 8;
    const int64_t most = MEMOB_BYTES_MAX / (n * x->n_ranks);
    const int64_t limit = x->desc.max_received ? x->desc.max_received : MEMOB_BYTES_MAX;
    const memo_device* device = x->desc.device;
    const memo_stream stream = x->desc.stream;
    const void* all = counts;
    memo_status status = MEMO_STATUS_OK;
    if (!counts || !routing->counts)
        return MEMOI_REFUSE(
            "memo_experts_route: counts or memo_routing.counts is NULL; both are required");
    if (x->n_ranks > 1) {
        memoi_comm_label(x->desc.comm, &x->agreed, 0, "routing", 0);
        status = memo_all_gather(x->desc.comm, stream, counts, x->target.memory, n, MEMO_TYPE_I64,
                                 error);
        all = x->target.memory;
    }

    if (!status)
        status = memo_copy(device, stream, MEMO_COPY_TO_HOST, x->target.host_memory, all, n_bytes,
                           error);
    if (!status) status = memo_stream_synchronize(device, stream, error);
    if (!status && x->n_ranks > 1) status = memo_comm_status(x->desc.comm, error);
    if (status) return status;
    memcpy(routing->counts, x->target.host_memory, (size_t)n_bytes);

    /* All ranks see all counts alike. */
    routing->n_sent = routing->n_received = 0;
    for (int64_t i = 0; i < x->n_ranks * n; i++)
        if (routing->counts[i] < 0 || routing->counts[i] > most)
            return MEMOI_REFUSE("memo_routing.counts: rank %d sends %lld rows to expert %d; 0 to "
                                "%lld are valid",
                                (int)(i / n), (long long)routing->counts[i], (int)(i % n),
                                (long long)most);

    /* What this rank sends, and what each rank would receive. */
    for (int64_t e = 0; e < n; e++) routing->n_sent += routing->counts[x->rank * n + e];
    for (int32_t r = 0; r < x->n_ranks; r++) {
        const memo_share share = memo_share_of(n, x->n_ranks, r);
        int64_t n_received = 0;
        for (int64_t i = 0; i < x->n_ranks * share.count; i++)
            n_received += routing->counts[i / share.count * n + share.begin + i % share.count];
        if (n_received > limit)
            return MEMOI_FAIL(INFEASIBLE,
                              "memo_experts_desc.max_received: rank %d would receive %lld rows "
                              "(%lld); raise it, or send fewer rows",
                              (int)r, (long long)n_received, (long long)limit);
        if (r == x->rank) routing->n_received = n_received;
    }
    return MEMO_STATUS_OK;
}

/* --- rows --- */

/* A block of rows that one rank sends to one expert: sorted is in the sender's order, placed in the
 * expert's. */
typedef struct memoi_experts_move {
    memo_experts* x;
    memoi_target target;
    int is_back;
    char *sorted, *placed;
    int64_t row_elements, row_bytes;
    memo_type type;
} memoi_experts_move;

/* --- groups of messages ---
 *
 * NCCL is known to hang with larger groups.  At a distance each rank sends to one rank and receives
 * from one.  A group has distances, or some experts of a distance, the same on all ranks, so no
 * rank waits for a message of a later group. */

enum { MEMOI_EXPERTS_MESSAGES = 256 };

/* The group of a rank's local expert, at a distance from 1 on. */
MEMOI int32_t memoi_experts_group(const memo_experts* x, int32_t distance, int64_t local) {
    const int64_t most =
        memob_max(memob_min(x->desc.comm->max_waiting, MEMOI_EXPERTS_MESSAGES) / 2, 1);
    const int64_t n = memo_share_of(x->desc.n_experts, x->n_ranks, 0).count; /* at most */
    const int64_t n_groups = (n + most - 1) / most, n_distances = memob_max(most / n, 1);
    return (int32_t)((distance - 1) / n_distances * n_groups + local / most);
}

/* The rows of this rank's messages, in the order of experts and then of ranks, so that both sides
 * of a pair agree.  Sends and receives those of a group; -1: copies the rows that stay.  Returns
 * the bytes that leave; counts: does nothing else. */
MEMOI int64_t memoi_experts_run(memoi_experts_move* move, const memo_routing* routing,
                                int32_t group, int counts) {
    const memo_experts* x = move->x;
    const int64_t n = x->desc.n_experts;
    char *sorted_at = move->sorted, *placed_at = move->placed;
    int64_t n_left = 0;
    for (int32_t owner = 0; owner < x->n_ranks; owner++) {
        const memo_share share = memo_share_of(n, x->n_ranks, owner);
        const int is_owner = owner == x->rank; /* it gets rows of all senders */
        const int32_t end = is_owner ? x->n_ranks : x->rank + 1;
        for (int64_t e = share.begin; e < share.begin + share.count; e++)
            for (int32_t sender = is_owner ? 0 : x->rank; sender < end; sender++) {
                const int64_t n_rows = routing->counts[sender * n + e];
                const int64_t n_bytes = n_rows * move->row_bytes;
                const int is_sender = sender == x->rank, sends = is_sender != move->is_back;
                const int32_t distance = (owner - sender + x->n_ranks) % x->n_ranks;
                char *sorted = sorted_at, *placed = placed_at;
                if (is_sender) sorted_at += n_bytes;
                if (is_owner) placed_at += n_bytes;

                /* Rows that stay are copied; other rows go to a rank, or come from it. */
                if (!distance && group < 0)
                    memoi_target_copy_rows(&move->target, MEMOI_TARGET_COMPUTE,
                                           move->is_back ? sorted : placed, n_bytes,
                                           move->is_back ? placed : sorted, n_bytes, n_bytes, 1);
                if (!distance || group != memoi_experts_group(x, distance, e - share.begin))
                    continue;
                if (sends) n_left += n_bytes;
                if (!counts)
                    memoi_target_message(&move->target, MEMOI_TARGET_COMPUTE, x->desc.comm, sends,
                                         is_sender ? sorted : placed, n_rows * move->row_elements,
                                         move->type, is_sender ? owner : sender);
            }
    }
    MEMO_ASSERT(sorted_at == move->sorted + routing->n_sent * move->row_bytes);     /* 1 */
    MEMO_ASSERT(placed_at == move->placed + routing->n_received * move->row_bytes); /* 1 */
    return n_left;
}

MEMOI memo_status memoi_experts_pass(memo_experts* x, const memo_routing* routing, void* sorted,
                                     void* placed, int64_t row_elements, memo_type type,
                                     int is_back, memo_error* error) {
    const char* name = is_back ? "combine" : "dispatch";
    const int64_t row_bytes = row_elements * memo_type_bytes(type);
    const int64_t most = memob_max(memob_max(routing->n_sent, routing->n_received), 1);
    const memo_range at_sender = memob_range_at(sorted, routing->n_sent * row_bytes);
    const memo_range at_expert = memob_range_at(placed, routing->n_received * row_bytes);
    memoi_experts_move move = {
        x, x->target, is_back, (char*)sorted, (char*)placed, row_elements, row_bytes, type};
    memo_label agreed = x->agreed;
    int32_t n_groups = 0;
    if (memob_check_integer(name, "type", (int)type, 0, MEMO_N_TYPES - 1, error) ||
        memob_check_integer(name, "row_elements", row_elements, 1, MEMOB_BYTES_MAX / 8 / most,
                            error))
        return MEMO_STATUS_INVALID_ARGUMENT;
    if (!routing->counts || (!sorted && routing->n_sent) || (!placed && routing->n_received))
        return MEMOI_REFUSE("%s: memo_routing.counts, rows or received is NULL; all are required",
                            name);

    /* Ranks must agree on a row, whatever the counts. */
    memoi_label_add_number(&agreed, 1, row_elements);
    memoi_label_add_number(&agreed, 1, type);
    move.target.agreed = &agreed;
    move.target.error = error;
    memoi_experts_run(&move, routing, -1, 0);
    if (x->n_ranks > 1)
        n_groups =
            1 + memoi_experts_group(x, x->n_ranks - 1,
                                    memo_share_of(x->desc.n_experts, x->n_ranks, 0).count - 1);
    for (int32_t g = 0; g < n_groups; g++) {
        const int64_t n_left = memoi_experts_run(&move, routing, g, 1);
        memoi_target_group_begin(&move.target, MEMOI_TARGET_COMPUTE, x->desc.comm, name,
                                 n_groups > 1 ? g : -1, is_back ? &at_expert : &at_sender, 1,
                                 is_back ? &at_sender : &at_expert, 1, n_left);
        memoi_experts_run(&move, routing, g, 0);
        memoi_target_group_end(&move.target, MEMOI_TARGET_COMPUTE, x->desc.comm);
    }
    return move.target.status;
}

memo_status memo_dispatch(memo_experts* experts, const memo_routing* routing, const void* rows,
                          void* received, int64_t row_elements, memo_type type, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "experts", experts);
    MEMOB_REFUSE_NULL(error, "routing", routing);
    return memoi_experts_pass(experts, routing, (void*)(uintptr_t)rows, received, row_elements,
                              type, 0, error);
}
memo_status memo_combine(memo_experts* experts, const memo_routing* routing, const void* received,
                         void* rows, int64_t row_elements, memo_type type, memo_error* error) {
    MEMOB_REFUSE_NULL(error, "experts", experts);
    MEMOB_REFUSE_NULL(error, "routing", routing);
    return memoi_experts_pass(experts, routing, rows, (void*)(uintptr_t)received, row_elements,
                              type, 1, error);
}

#endif /* MEMO_SP_IMPLEMENTATION */
