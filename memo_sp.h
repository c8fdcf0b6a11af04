/* memo_sp.h - parallelism along the sequence and across tensors: comm, layouts, Ulysses, ring, hybrid.
 *
 * Ranks talk through a small table of functions, memo_comm.  This header brings two: ranks as threads of one
 * process (no dependency), and NCCL (MEMO_SP_NCCL, CUDA).  examples/comm_mpi.c writes a third over MPI.
 *
 * In exactly one translation unit, the one with memo.h's implementation:
 *
 *     #define MEMO_IMPLEMENTATION
 *     #define MEMO_SP_IMPLEMENTATION
 *     #include "memo_sp.h"              // cc -std=c99 ... -lpthread -lm; with MEMO_SP_NCCL also -lnccl -lcudart
 *
 * CHAPTERS  1 comm | 2 mesh | 3 layouts | 4 local attention | 5 Ulysses | 6 ring | 7 hybrid
 *
 * OPTIONS (define before the implementation, and alike wherever memo_sp.h is included)
 *     MEMO_SP_NCCL             the NCCL back end; needs nccl.h and cuda_runtime_api.h
 *     MEMO_NO_HOST_DEVICE      leaves the threads back end out, as it does chapter 6 of memo.h
 *
 * Licence: MIT.  Language: C99 that is also C++11; with MEMO_SP_NCCL what the CUDA runtime's C headers take. */
#ifndef MEMO_SP_H
#define MEMO_SP_H

#include "memo.h"
#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1 comm: the second and last table of functions -------------------------------------------------
 *
 * A communicator is a set of ranks 0 .. size-1; each rank holds its own memo_comm and calls it from one thread.
 * Every function but split, abort, status and destroy enqueues on a stream of the rank's own device and returns
 * at once; buffers stay untouched until the stream has passed.  All ranks call the collectives in the same
 * order.  A communicator is used on one stream at a time: who moves to another lets that one wait for an event
 * first.  Different communicators may be under way at once.
 *
 * Between group_begin and group_end, sends and receives are collected and run as one operation that cannot
 * deadlock; outside of a group a send is done when its receive is.  Groups nest, the outermost counts; all of a
 * group is on one stream; collectives stay outside; a refused call gives the group up.  Between two ranks the
 * k-th send meets the k-th receive, and count and type must be the same.
 *
 * A rank that is lost, or does not come within the communicator's time-out, makes the operation fail on every
 * rank with MEMO_STATUS_COMM: the error is returned by the next call, by status, and by synchronisation of the
 * stream.  The communicator is of no use then, nor are those split from the same one.
 *
 * Errors of every enqueueing call: INVALID_ARGUMENT, INVALID_STATE (a collective inside a group, group_end
 * without group_begin), COMM, and the device's. */

typedef enum memo_type {
    MEMO_TYPE_F32 = 0,
    MEMO_TYPE_F64,
    MEMO_TYPE_BF16,
    MEMO_TYPE_F16,
    MEMO_TYPE_I32,
    MEMO_TYPE_I64,
    MEMO_TYPE_U8
} memo_type;
MEMO_API int64_t memo_type_bytes(memo_type type);    /* 0: no memo_type */
MEMO_API const char* memo_type_name(memo_type type); /* "bf16"; never NULL */

typedef enum memo_reduction { MEMO_REDUCTION_SUM = 0, MEMO_REDUCTION_MAX } memo_reduction;

typedef struct memo_comm {
    int64_t struct_bytes; /* sizeof(memo_comm) of the code that filled the table */
    const char* name;     /* of the back end and the group: "threads world", "nccl ring" */
    void* context;
    int32_t rank, size;
    /* By this rank so far, counted when enqueued; a rank's bytes to itself are not sent.  A collective counts
     * memo_comm_bytes, whatever the back end really does. */
    int64_t sent_bytes;

    /* All ranks call it, each from a thread of its own, and wait for each other.  Ranks of equal color (>= 0)
     * form a new communicator, ordered by key, then by rank; color < 0: none (*part = NULL). */
    memo_status (*split)(struct memo_comm* comm, int32_t color, int32_t key, const char* name,
                         struct memo_comm** part, memo_error* error);
    /* The caller has synchronised its streams.  Before the rank's device is destroyed; parts in any order. */
    void (*destroy)(struct memo_comm* comm);

    memo_status (*group_begin)(struct memo_comm* comm, memo_error* error);
    memo_status (*group_end)(struct memo_comm* comm, memo_stream stream, memo_error* error);
    memo_status (*send)(struct memo_comm* comm, memo_stream stream, const void* from, int64_t count,
                        memo_type type, int32_t to_rank, memo_error* error);
    memo_status (*receive)(struct memo_comm* comm, memo_stream stream, void* to, int64_t count,
                           memo_type type, int32_t from_rank, memo_error* error);

    /* In place where from == to; no other overlap.  Sums in the order of ranks, in fp32 for the 16-bit types
     * (rounded once, at the end), integers modulo 2^n; MAX of anything and NaN is NaN.  The result is bitwise
     * the same on all ranks and in every run (threads; NCCL and MPI promise less). */
    memo_status (*all_reduce)(struct memo_comm* comm, memo_stream stream, const void* from,
                              void* to, int64_t count, memo_type type, memo_reduction reduction,
                              memo_error* error);
    /* to holds size * count elements, those of rank r at r * count.  In place: from is that part of to. */
    memo_status (*all_gather)(struct memo_comm* comm, memo_stream stream, const void* from,
                              void* to, int64_t count, memo_type type, memo_error* error);
    /* from holds size * count elements; rank r gets the reduction of those at r * count.  In place: to is that
     * part of from, whose other parts keep their values. */
    memo_status (*reduce_scatter)(struct memo_comm* comm, memo_stream stream, const void* from,
                                  void* to, int64_t count, memo_type type, memo_reduction reduction,
                                  memo_error* error);
    memo_status (*broadcast)(struct memo_comm* comm, memo_stream stream, void* buffer,
                             int64_t count, memo_type type, int32_t root, memo_error* error);
    memo_status (*barrier)(struct memo_comm* comm, memo_stream stream, memo_error* error);

    /* Makes every operation under way and to come fail, on all ranks; from any thread. */
    void (*abort)(struct memo_comm* comm);
    /* The first asynchronous error so far, without waiting. */
    memo_status (*status)(struct memo_comm* comm, memo_error* error);
} memo_comm;

/* Rank r's count elements at from + p * count go to rank p, which finds them at to + r * count.  A group of sends
 * and receives; from and to do not overlap. */
MEMO_API memo_status memo_comm_all_to_all(memo_comm* comm, memo_stream stream, const void* from,
                                          void* to, int64_t count, memo_type type,
                                          memo_error* error);
/* The same with counts and offsets, in elements, of each rank's own: send_counts[p] elements at send_offsets[p] go
 * to p; what p sends, receive_counts[p] elements, arrives at receive_offsets[p].  Where a count is 0 nothing is
 * sent.  The arrays (size) are read before the call returns. */
MEMO_API memo_status memo_comm_all_to_all_v(memo_comm* comm, memo_stream stream, const void* from,
                                            const int64_t* send_counts, const int64_t* send_offsets,
                                            void* to, const int64_t* receive_counts,
                                            const int64_t* receive_offsets, memo_type type,
                                            memo_error* error);

/* Bytes a rank sends in a collective over n ranks by the ring algorithm, which no other undercuts on average; count
 * as in the table.  For those who write a memo_comm.  With b = count * bytes of the type:
 *   all_reduce 2 (n-1) b / n, rounded down | all_gather, reduce_scatter (n-1) b | barrier 0
 *   broadcast b, and 0 for rank root-1 (mod n), the end of the chain */
typedef enum memo_collective {
    MEMO_COLLECTIVE_ALL_REDUCE = 0,
    MEMO_COLLECTIVE_ALL_GATHER,
    MEMO_COLLECTIVE_REDUCE_SCATTER,
    MEMO_COLLECTIVE_BROADCAST,
    MEMO_COLLECTIVE_BARRIER
} memo_collective;
MEMO_API int64_t memo_comm_bytes(memo_collective kind, int32_t size, int32_t rank, int64_t count,
                                 memo_type type, int32_t root);

/* to = from[0] + from[1] + ... (or their maximum), count elements each, in that order, on the host and at once: with
 * the bits that the table promises.  to may be one of from.  For those who write a memo_comm. */
MEMO_API void memo_comm_reduce(void* to, const void* const* from, int32_t n_from, int64_t count,
                               memo_type type, memo_reduction reduction);

/* --- ranks as threads ---
 *
 * Each rank has a host device (memo.h, chapter 6).  Operations run on its streams and meet their peers there: a
 * receive copies from the sender's buffer, the sender's operation ends with it.  Two ranks are ordered, in the
 * eyes of a race detector, by what flows between them, those of a collective by it.  That kind, count, type,
 * reduction and root are the same on all ranks is always checked; the error names two ranks and what they call.
 *
 * A failed device, a destroyed communicator and an abort are noticed by those who wait within some 20 ms, a rank
 * that does not come after timeout_s.  All communicators split from one world fail together.
 *
 *     memo_comm_threads_desc desc = memo_comm_threads_desc_default();
 *     desc.n_ranks = 4;
 *     desc.devices = devices;                               // four of memo_host_device_create
 *     memo_comm_create_threads(&desc, comms, &error);
 *     ... in the thread of rank r, with comm = comms[r]:
 *     comm->all_reduce(comm, stream, x, x, n, MEMO_TYPE_F32, MEMO_REDUCTION_SUM, &error);
 *     device->stream_synchronize(device->context, stream, &error);
 *     comm->destroy(comm); */
#ifndef MEMO_NO_HOST_DEVICE

typedef struct memo_comm_threads_desc {
    int32_t n_ranks;
    memo_device* const* devices; /* of each rank; memo_host_device_create made them */
    const char* name;            /* copied; NULL: "threads world" */
    double timeout_s;            /* longer than any transfer; 0: 30 */

    /* Links, for trying a schedule: a rank receives latency_s after the send and its receive have met, and at
     * bytes_per_s (0: as fast as memory is); what arrives at the same time takes turns, over all
     * communicators.  A collective takes memo_comm_bytes / bytes_per_s. */
    double bytes_per_s, latency_s;
    /* Ranks of different nodes have links of their own.  0: all ranks on one node. */
    int32_t ranks_per_node;
    double outer_bytes_per_s, outer_latency_s;
} memo_comm_threads_desc;

MEMO_API memo_comm_threads_desc memo_comm_threads_desc_default(void);
/* Called once; comms[n_ranks] are handed to the threads of the ranks, each of which destroys its own. */
MEMO_API memo_status memo_comm_create_threads(const memo_comm_threads_desc* desc, memo_comm** comms,
                                              memo_error* error);

#endif

/* --- NCCL ---
 *
 * One process a rank, or one thread a rank; the current CUDA device is the rank's.  Streams are cudaStream_t.
 * Sums are NCCL's: the same bits on all ranks, but not those of the threads back end.  Calls that differ between
 * ranks are not compared, and parts fail on their own.  The first message between two ranks makes their
 * connection: the call that enqueues it waits for both. */
#ifdef MEMO_SP_NCCL

typedef struct memo_comm_nccl_desc {
    /* size 0: from the environment that torchrun and Slurm wrappers set, RANK, WORLD_SIZE, MASTER_ADDR,
     * MASTER_PORT; rank 0 listens there until all have come. */
    int32_t rank, size;
    /* Where rank 0 leaves NCCL's unique id, a file that all ranks see; deleted once all have joined.  A new name for
     * each run.  NULL: MASTER_ADDR and MASTER_PORT. */
    const char* id_path;
    const char* name; /* copied; NULL: "nccl world" */
    double timeout_s; /* of joining, splits and connections; 0: 30 */
} memo_comm_nccl_desc;

MEMO_API memo_comm_nccl_desc memo_comm_nccl_desc_default(void);
/* All ranks call it and wait for each other.  Errors: INVALID_ARGUMENT, IO (the file, the connection), COMM. */
MEMO_API memo_status memo_comm_create_nccl(const memo_comm_nccl_desc* desc, memo_comm** comm,
                                           memo_error* error);
/* Synchronises stream, looking at the communicator meanwhile: a lost peer or the time-out (0: the desc's) aborts it
 * and is returned, where cudaStreamSynchronize would hang. */
MEMO_API memo_status memo_comm_nccl_synchronize(memo_comm* comm, memo_stream stream,
                                                double timeout_s, memo_error* error);

#endif

/* ---- 2 mesh: who belongs to which group ---------------------------------------------------------------
 *
 * The ranks of a world as a box of pipeline x data x ring x ulysses x tensor ranks, tensor varying fastest (unified
 * SP paper, tip 7: tensor needs the fastest links, then ulysses, ring, data and pipeline). */

typedef struct memo_mesh_desc {
    int32_t data, pipeline, tensor, ring,
        ulysses; /* degrees; 0: 1; their product is the world's size */
    int32_t
        ring_is_inner; /* ring varies faster than ulysses, for fast links that suit the ring better */
} memo_mesh_desc;

/* Every group is there, of one rank where its degree is 1, so that no caller needs a branch. */
typedef struct memo_mesh {
    memo_mesh_desc degrees;                        /* none is 0 */
    int32_t rank, size;                            /* in the world */
    int32_t data_rank, pipeline_rank, tensor_rank; /* = rank in that group */
    int32_t ring_rank, ulysses_rank;
    int32_t sequence_rank; /* ring_rank * ulysses + ulysses_rank, whichever is inner */
    int32_t gradient_rank; /* data_rank * ring * ulysses + sequence_rank */
    memo_comm* world;      /* borrowed */
    memo_comm *data, *pipeline, *tensor, *ring, *ulysses;
    memo_comm* sequence; /* ring x ulysses: the ranks that share a sequence */
    memo_comm* gradient; /* data x sequence: gradients are summed and ZeRO shards over it (tip 3) */
} memo_mesh;

MEMO_API memo_mesh_desc memo_mesh_desc_default(void);
/* The coordinates alone, without communicators (world and groups are NULL): to plan and to print.  Errors:
 * INVALID_ARGUMENT, which says what would work. */
MEMO_API memo_status memo_mesh_place(const memo_mesh_desc* desc, int32_t size, int32_t rank,
                                     memo_mesh* mesh, memo_error* error);
/* All ranks of world call it, each from its own thread, with equal descs.  Errors: as above, and those of split. */
MEMO_API memo_status memo_mesh_create(memo_comm* world, const memo_mesh_desc* desc,
                                      memo_mesh** mesh, memo_error* error);
MEMO_API void memo_mesh_destroy(memo_mesh* mesh);
/* A line a rank, its coordinates in all groups, into text (capacity_bytes with the final zero; cut where it does not
 * fit).  Returns the bytes of the whole, without the zero; text may be NULL where capacity_bytes is 0. */
MEMO_API int64_t memo_mesh_print(const memo_mesh_desc* desc, int32_t size, char* text,
                                 int64_t capacity_bytes);

#include "sp_parts/3_layout.h"
#include "sp_parts/4_attention.h"
#include "sp_parts/5_ulysses.h"
#include "sp_parts/6_ring.h"
#include "sp_parts/7_hybrid.h"

#ifdef __cplusplus
}
#endif

#endif /* MEMO_SP_H */

/* ==== implementation =============================================================================== */
#if defined(MEMO_SP_IMPLEMENTATION) && !defined(MEMO_SP_IMPLEMENTATION_DONE)
#define MEMO_SP_IMPLEMENTATION_DONE
#ifndef MEMO_IMPLEMENTATION_DONE
#error "memo_sp.h: define MEMO_IMPLEMENTATION too, in the same file: it needs memo.h's"
#endif
#include "sp_parts/1_comm.inc"
#ifdef MEMO_SP_NCCL
#include "sp_parts/1_comm_nccl.inc"
#endif
#include "sp_parts/2_mesh.inc"
#include "sp_parts/3_layout.inc"
#include "sp_parts/0_queue.inc"
#include "sp_parts/4_attention.inc"
#include "sp_parts/5_ulysses.inc"
#include "sp_parts/6_ring.inc"
#include "sp_parts/7_hybrid.inc"
#endif /* MEMO_SP_IMPLEMENTATION */
