#pragma once
/* ---- 5 ranks over NCCL (MEMO_CUDA_NCCL) ---------------------------------------------------------
 *
 * A back end of memo_comm (memo_sp.h, chapter 1, which is included before memo_cuda.cuh).  Each
 * rank is a process or a thread.  The current CUDA device is the rank's device; streams are
 * cudaStream_t.  All ranks get the same sums, but not the bits of the threads back end.  The first
 * message between two ranks creates their connection, and waits for both.  NCCL compares nothing
 * but the digests of labels, which all objects of memo_sp.h have: if calls differ, it hangs or
 * moves the wrong bytes.  To find such an error, run the program over threads, or over MPI
 * (examples/comm_mpi.h, is_debug).
 *
 * FAILURE.  A world and its parts fail together.  A watchdog thread of the world aborts all
 * communicators after an asynchronous error, or if an operation has not ended timeout_s after the
 * latest call.  Any wait for a stream ends then.  Set failed and failed_user, so that the wait also
 * returns COMM:
 *
 *     desc.failed = memo_cuda_device_fail;  desc.failed_user = device;
 *
 * The watchdog does not time operations inside a replayed graph; memo_comm_nccl_synchronize does.
 * memo_comm_abort returns at once, and memo_comm_destroy waits for the watchdog.  NCCL ends an
 * abort only after all graphs with operations of the world are destroyed.  After an error, call
 * memo_comm_abort, destroy graphs, communicators and the device, then leave.
 *
 * ORDER.  NCCL may deadlock unless all ranks start the operations of all communicators in one
 * order.  Enqueue them so, from one thread.  The world sets NCCL_LAUNCH_ORDER_IMPLICIT=1, unless it
 * is set; with NCCL before 2.26, or another value, an event makes each operation wait for the
 * previous one of another communicator.  Operations captured in a graph need NCCL 2.26, or your own
 * events between them.  If a group has several messages for a rank, that rank must take them in a
 * group too (seen with NCCL 2.28: single calls that first receive all of them hang).
 *
 * GRAPHS.  Capture the same operations on all ranks, with cudaStreamCaptureModeThreadLocal because
 * NCCL has threads, and replay them on all ranks.  Send each message once before the capture, which
 * cannot create connections.  Destroy the graph before the communicators, or their destruction
 * hangs (examples/12_ring_nccl.cu).
 *
 * COST.  Calls do not block, which a safe abort requires; since 2.23 NCCL starts a thread for each
 * (about 0.1 ms).  A graph avoids it.  NCCL_COMM_BLOCKING=1 avoids it too, but then a call that
 * waits for a lost peer cannot be aborted. */
#ifdef MEMO_CUDA_NCCL

typedef struct memo_comm_nccl_desc {
    /* size 0: read the environment variables that torchrun and Slurm wrappers set: RANK and
     * WORLD_SIZE. */
    int32_t rank, size;
    /* An ncclUniqueId that the caller has distributed, for example by MPI_Bcast.  NULL: NCCL's own
     * meeting: its variable NCCL_COMM_ID (address:port of rank 0), which is
     * MASTER_ADDR:(MASTER_PORT + 1) unless it is set.  Each host needs an interface in the subnet
     * of that address. */
    const void* unique_id;
    const char* name;      /* copied; NULL: "nccl world" */
    const char* host;      /* of this process, for its errors; copied; NULL: none */
    double join_timeout_s; /* for joining, splits and connections; 0: 120 */
    double timeout_s;      /* for operations; must exceed the longest step; 0: 600 */
    /* Called once, from the watchdog or a failing call, before the communicators are aborted; must
     * not call any function of memo_comm.  Optional. */
    void (*failed)(void* failed_user, const memo_error* why);
    void* failed_user;
} memo_comm_nccl_desc;

/* All ranks must call this, and wait for each other.  Errors: INVALID_ARGUMENT, DEVICE, COMM,
 * OUT_OF_HOST_MEMORY. */
MEMO_TRY memo_status memo_comm_create_nccl(const memo_comm_nccl_desc* desc, memo_comm** comm,
                                           memo_error* error);
/* cudaStreamSynchronize with a time-out (0: the desc's), after which the world is aborted.  Leaves
 * an earlier error of the caller for cudaGetLastError.  Errors: COMM, DEVICE. */
MEMO_TRY memo_status memo_comm_nccl_synchronize(memo_comm* comm, memo_stream stream,
                                                double timeout_s, memo_error* error);

/* Device memory that the communicator holds, for a plan to leave room: as NCCL 2.30 reports it;
 * before, what creation took from free memory, without the channels of the first operation. */
MEMO_API int64_t memo_comm_nccl_get_device_bytes(memo_comm* comm);

#endif
