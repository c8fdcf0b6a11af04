/* memo_cuda.cuh: made from src/ by scripts/amalgamate; edit there. */
/* memo_cuda.cuh - memo on a GPU: the CUDA device, pinned memory, row kernels, phantom memory, NCCL.
 *
 * NOT FOR: other accelerators (write the table memo_device, examples/04_custom_device.c), unified
 * memory, or storage that a GPU reads by itself.
 *
 * STEP BY STEP, in the order of calls: memo_cuda_device_create; memo_stream_create; an arena, swap
 * engine or session with this device; kernels on memo_cuda_stream(stream); then
 * memo_cuda_device_destroy.
 *
 * In exactly one .cu file (memo.h's implementation may be there too, or in a C file):
 *
 *     #define MEMO_CUDA_IMPLEMENTATION
 *     #include "memo_cuda.cuh"          // nvcc -arch=native ...; links with the CUDA runtime only
 *
 * All other files may be C, those that call NCCL's ranks (chapter 5) too: the declarations are C.
 * The implementation is one file of CUDA C++ because it has kernels.
 *
 * EXAMPLE: memory, a kernel and a copy on a GPU.  An arena, swap engine or session takes this
 * device as it takes the host device (examples/06_cuda_arena.cu, 19_gpt.cu).
 *
 *     #define MEMO_IMPLEMENTATION
 *     #define MEMO_CUDA_IMPLEMENTATION
 *     #include "memo_cuda.cuh"
 *
 *     __global__ void add_one(float* x, int n) {
 *         for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] += 1;
 *     }
 *
 *     int main(void) {
 *         memo_cuda_device_desc desc = {};
 *         memo_device* device = NULL;
 *         memo_stream stream = NULL;
 *         void *x = NULL, *copy = NULL;
 *         memo_error error;
 *         memo_status status = memo_cuda_device_create(&desc, &device, &error);
 *         if (!status) status = memo_stream_create(device, "compute", 0, &stream, &error);
 *         if (!status) status = memo_device_alloc(device, 4096, &x, &error);
 *         if (!status) status = memo_host_alloc(device, 4096, &copy, &error);     // pinned
 *         if (!status) status = memo_fill(device, stream, x, 0, 4096, &error);
 *         if (!status) add_one<<<1, 256, 0, memo_cuda_stream(stream)>>>((float*)x, 1024);
 *         if (!status)
 *             status = memo_copy(device, stream, MEMO_COPY_TO_HOST, copy, x, 4096, &error);
 *         if (!status) status = memo_stream_synchronize(device, stream, &error);
 *         if (status) fprintf(stderr, "%s\n", error.message);
 *         if (!status) printf("%g\n", ((float*)copy)[1023]);                      // 1
 *         if (stream) memo_stream_destroy(device, stream, NULL);
 *         memo_cuda_device_destroy(device);                        // and what it allocated
 *         return status != MEMO_STATUS_OK;
 *     }
 *
 * RULES.  As in memo.h.  Every error of CUDA names the call, CUDA's name of the error and the
 * place: "cudaMemcpyAsync: cudaErrorInvalidValue (invalid argument), memo_cuda.cuh:512".  A failed
 * call removes its own error from cudaGetLastError and leaves any other error there.  Errors that
 * CUDA keeps, such as an illegal address, are returned by every later call.
 *
 * CONTEXT.  Each call works in the primary context of the desc's GPU, and restores the thread's
 * context at the end: another GPU's, a context of the driver, a green context, or none.  No call
 * creates a context on another GPU.
 *
 * GRAPHS.  Nothing enqueued allocates or synchronizes, so a step can be captured, the swap engine's
 * copies included: cudaStreamBeginCapture on the compute stream, a step, cudaStreamEndCapture.
 * CUDA does not capture the legacy default stream.  The engine forks streams by events and joins
 * all before the step ends.  Capture a whole micro-batch with memo_swap_desc.is_timed 0: events
 * inside a graph cannot be read.  Run one step without capture first: CUDA loads a kernel, and
 * cuBLAS allocates, at the first use.  If other threads use CUDA meanwhile, capture with
 * cudaStreamCaptureModeThreadLocal.  After a failed capture, end it and call memo_swap_abandon
 * before the next step.
 *
 * OPTIONS, defined before the implementation:
 *     MEMO_CUDA_NCCL           chapter 5 (nccl.h of NCCL 2.18 or later, -lnccl); define it
 *                              identically in every file that includes memo_cuda.cuh
 *     MEMO_CUDA_NVTX           NVTX ranges for copies and waits (header-only NVTX 3, part of CUDA)
 *     MEMO_MALLOC, MEMO_FREE   replace malloc and free
 *
 * CHAPTERS  1 device | 2 pinned memory | 3 row kernels | 4 phantom memory | 5 ranks over NCCL
 *
 * License: MIT, see LICENSE.  Language: CUDA C++11.  Requires memo.h, CUDA 12 or later, Linux. */
#ifndef MEMO_CUDA_CUH
#define MEMO_CUDA_CUH

#include "memo.h"

#include <cuda_runtime.h>

#if MEMO_VERSION_MAJOR != 0 || MEMO_VERSION_MINOR != 5
#error "memo_cuda.cuh: memo.h is of another release; use the memo.h of the same release"
#endif
#if defined(MEMO_CUDA_NCCL) && !defined(MEMO_SP_H)
#error "memo_cuda.cuh: MEMO_CUDA_NCCL needs memo_comm; include memo_sp.h first"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1 device -----------------------------------------------------------------------------------
 *
 * What memo.h leaves to the device:
 *   streams      do not synchronize with CUDA's default stream; NULL is that stream: compile the
 *                implementation and the trainer with the same --default-stream of nvcc.  Priority 0
 *                is CUDA's lowest, 1 the next; a number above CUDA's highest means the highest
 *   events       time to about half a microsecond.  memo_event_create_untimed makes events without
 *                timing; they are cheaper to record
 *   copies       of pinned memory are asynchronous; for other host memory CUDA decides
 *   row kernels  of chapter 3
 *   launch_host  runs the functions of all streams on a thread of this device, one by one.  CUDA's
 *                own thread for host functions, which NCCL needs too, only hands them over.  The
 *                first launch of a call on a stream allocates.  If a trial of
 *                cuStreamWaitValue32 fails, CUDA's thread runs the function, and the log says so.
 *                If a function fails, the device fails as if by memo_cuda_device_fail
 *   status       returns errors that CUDA keeps and failures of the device.  Ignores an error
 *                that another call left for cudaGetLastError
 *
 * A device serves a single thread at a time; several devices may serve several threads.
 *
 * Hardware queues: a stream that waits stops the streams that share its queue.  CUDA has as many
 * queues as CUDA_DEVICE_MAX_CONNECTIONS says, 8 by default and at most 32, and reads the variable
 * once, when the process first uses CUDA.  1, which some trainers set, makes copies overlap less;
 * creation logs this.  A stream that waits for launch_host, for a file or for an update on the
 * host, waits longest.  If the caller's streams of this device are more than the queues, the device
 * logs this at the first launch_host.  It cannot see streams of others, such as a framework: set 32
 * in a process that has more than 8 streams in all.
 *
 * After fork, the child must not use CUDA.  Registered memory is not copied to the child
 * (MADV_DONTFORK).
 *
 * Coherent memory (Grace Hopper): copies each way run at different rates, by a factor above 2.
 * bench/cuda_memory.cu measures each way alone and both at once.  Not measured on such a
 * machine. */

/* What host_alloc does with a request that exceeds this process's share of host memory. */
typedef enum memo_cuda_host_limit {
    MEMO_CUDA_HOST_REFUSE = 0, /* return OUT_OF_HOST_MEMORY before a page is touched */
    MEMO_CUDA_HOST_WARN,       /* log and try: for machines whose memory grows with use */
    MEMO_CUDA_HOST_IGNORE,     /* do not look */
    MEMO_N_CUDA_HOST_LIMITS
} memo_cuda_host_limit;

typedef struct memo_cuda_device_desc {
    int32_t ordinal; /* CUDA's number of the GPU */
    /* Capacity of device_alloc, also in memory_info; 0: the GPU's memory. */
    int64_t device_memory_bytes;
    int64_t host_memory_bytes; /* capacity of host_alloc; 0: host_limit alone */
    /* A device to record a step that does not fit: device_alloc returns phantom addresses
     * (chapter 4) out of this many bytes, and memory_info counts them.  0: device memory. */
    int64_t phantom_bytes;
    int64_t phantom_chunk_bytes; /* memory behind these; 0: 1 GiB, or less if less is free */
    /* Pinned memory (chapter 2). */
    memo_cuda_host_limit host_limit;
    int32_t local_ranks;        /* processes that share this host; 0: from the environment, or 1 */
    int32_t host_threads;       /* that touch pages; 0: the number of processors, at most 16 */
    int32_t without_huge_pages; /* 1: pages of the usual size */
    memo_log log;
} memo_cuda_device_desc;

/* Where the latest pinned memory came from. */
typedef enum memo_cuda_host_kind {
    MEMO_CUDA_HOST_NONE = 0,
    MEMO_CUDA_HOST_HUGETLB,     /* the system's pool of huge pages, registered */
    MEMO_CUDA_HOST_TRANSPARENT, /* transparent huge pages, registered */
    MEMO_CUDA_HOST_PAGES,       /* usual pages, registered */
    MEMO_CUDA_HOST_CUDA         /* cudaHostAlloc: below 2 MiB, or if registering failed */
} memo_cuda_host_kind;

typedef struct memo_cuda_device_stats {
    int64_t device_bytes, device_peak_bytes; /* allocated now; at most so far */
    int64_t host_bytes, host_peak_bytes;
    /* The latest host_alloc. */
    memo_cuda_host_kind host_kind;
    double host_alloc_s;
} memo_cuda_device_stats;

/* Errors: UNSUPPORTED (no GPU, no driver, no such ordinal; phantom memory on a GPU without virtual
 * memory management), INVALID_ARGUMENT, OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, DEVICE. */
MEMO_TRY memo_status memo_cuda_device_create(const memo_cuda_device_desc* desc,
                                             memo_device** device, memo_error* error);
/* Waits for the GPU and frees all memory allocated through the table.  Does not return while an
 * NCCL kernel waits for a lost peer: call memo_comm_abort first.  Streams and events are CUDA's;
 * destroy them first.  device may be NULL. */
MEMO_API void memo_cuda_device_destroy(memo_device* device);
/* Makes every later call that enqueues or waits, but for row kernels, and status, return why.  A
 * call that waits now returns why when its wait ends.  The first failure counts.  Work already
 * enqueued still runs; drop its results.  Any thread may call it; device is a memo_device*, or one
 * around it.  Its type is that of memo_comm_nccl_desc.failed, so that a lost peer fails the device
 * too. */
MEMO_API void memo_cuda_device_fail(void* device, const memo_error* why);
MEMO_API memo_cuda_device_stats memo_cuda_device_get_stats(const memo_device* device);

MEMO_FUNCTION cudaStream_t memo_cuda_stream(memo_stream stream) { return (cudaStream_t)stream; }
MEMO_FUNCTION cudaEvent_t memo_cuda_event(memo_event event) { return (cudaEvent_t)event; }

/* For your own CUDA calls: the status and message of a cudaError_t.
 *     status = memo_cuda_check(cudaGraphLaunch(exec, stream), "cudaGraphLaunch", &error); */
#define memo_cuda_check(code, call, error) memo_cuda_check_at(code, call, __FILE__, __LINE__, error)
MEMO_API memo_status memo_cuda_check_at(cudaError_t code, const char* call, const char* file,
                                        int line, memo_error* error);

/* ---- 2 pinned memory ----------------------------------------------------------------------------
 *
 * host_alloc is meant for an arena at start.  From 2 MiB on the call reserves addresses, takes huge
 * pages if possible (from the system's pool, then by advice), touches them by several threads near
 * the GPU, and registers them with CUDA.  It logs its progress once a second.  If registering
 * fails, the memory is freed, the reason is logged and cudaHostAlloc is used instead.
 * cudaHostAlloc is also used if kernels cannot reach registered memory by the host's addresses.
 *
 * A process's share of host memory, which host_limit guards:
 *   all it holds  must not exceed the host's memory / local_ranks
 *   a request     must not exceed the memory available now, for which processes race
 * Both numbers are the least of /proc/meminfo and of each control group (v1 or v2) from the
 * process's own up to the root.  A group's cached files count as available.  If local_ranks is 0,
 * the first of LOCAL_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE, MPI_LOCALNRANKS and
 * SLURM_NTASKS_PER_NODE that is set counts. */

/* ---- 3 row kernels ------------------------------------------------------------------------------
 *
 * The device has the row kernels of memo_sp.h (memo_row_add(device, stream, ...) and others), if
 * memo_sp.h is included before this file's implementation.  Otherwise it has none. */

/* ---- 4 phantom memory: addresses that share a chunk of memory ---------------------------------
 *
 * A device with phantom_bytes has terabytes of addresses that kernels can use.  A chunk of the
 * GPU's memory is mapped behind all addresses, so the contents are garbage.  Use this device to
 * record a length that does not fit: the trainer runs a step unchanged, and the requests become a
 * trace.  A kernel sees what an earlier kernel wrote through another address; within one kernel
 * nothing is promised.  Pages can be exported as file descriptors and used by GPUDirect RDMA if the
 * GPU supports it, so that NCCL accepts the addresses. */

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

#ifdef __cplusplus
}
#endif

#endif /* MEMO_CUDA_CUH */

/* ==== implementation ========================================================================== */
/* ROOMS, each with the words to search for.  A room uses public functions, those of memo.h's
 * >>base, and the rooms above it.
 *
 *     >>cuda errors      messages
 *     >>cuda driver      the driver's functions, found once
 *     >>cuda state       the device's struct; the context of a call
 *     >>pinned memory    pages, processors, registration
 *     >>phantom memory   one chunk mapped many times
 *     >>device table     memory, streams, events, copies: a CUDA call each
 *     >>host functions   functions on streams, run by a thread of the device
 *     >>row lanes        what a thread does of a row: groups of numbers in few accesses
 *     >>row kernels      grids
 *     >>inspect          rows of bytes, for checked sessions
 *     >>device life      create, fail, destroy
 *     >>nccl back end    ranks over NCCL: the meeting, the watchdog, time-outs, order */
#if defined(MEMO_CUDA_IMPLEMENTATION) && !defined(MEMO_CUDA_IMPLEMENTATION_DONE)
#define MEMO_CUDA_IMPLEMENTATION_DONE

#include "memo.h" /* its room >>base, if the file did not have it yet */

#include <cuda.h> /* types only: the driver's functions are found at run time */
#include <sched.h>
#include <sys/mman.h>

#ifdef MEMO_CUDA_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

/* ---- >>cuda errors ------------------------------------------------------------------------------
 * Knows: how CUDA reports errors, and ranges for profilers.  Knows nothing of a device's state. */

/* Removes code from cudaGetLastError, where the failed call left it.  An error of another call
 * stays there. */
MEMOI void memoi_cuda_forget(cudaError_t code) {
    if (cudaPeekAtLastError() == code) (void)cudaGetLastError();
}

memo_status memo_cuda_check_at(cudaError_t code, const char* call, const char* file, int line,
                               memo_error* error) {
    const char* slash = strrchr(file, '/');
    memo_status status = MEMO_STATUS_DEVICE;
    if (code == cudaSuccess) return MEMO_STATUS_OK;
    memoi_cuda_forget(code);
    if (code == cudaErrorMemoryAllocation) status = MEMO_STATUS_OUT_OF_DEVICE_MEMORY;
    if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
        code == cudaErrorStubLibrary || code == cudaErrorSystemDriverMismatch ||
        code == cudaErrorInvalidDevice || code == cudaErrorNotSupported)
        status = MEMO_STATUS_UNSUPPORTED;
    return memo_error_set(error, status, "%s: %s (%s), %s:%d", call, cudaGetErrorName(code),
                          cudaGetErrorString(code), slash ? slash + 1 : file, line);
}

/* At the end of a message: ", memo_cuda.cuh:512". */
#define MEMOI_CUDA_TEXT_OF(line) #line
#define MEMOI_CUDA_TEXT(line)    MEMOI_CUDA_TEXT_OF(line)
#define MEMOI_CUDA_PLACE         ", memo_cuda.cuh:" MEMOI_CUDA_TEXT(__LINE__)

/* MEMOI_CUDA_CALL(cudaFree, (address), error) */
#define MEMOI_CUDA_CALL(function, arguments, error)                                                \
    memo_cuda_check_at(function arguments, #function, __FILE__, __LINE__, error)

MEMOI void memoi_cuda_log(const memo_log* log, const char* message) {
    if (log->write) log->write(log->user, message);
}

/* A range for profilers, until the end of the block. */
struct memoi_cuda_range {
#ifdef MEMO_CUDA_NVTX
    explicit memoi_cuda_range(const char* name) { (void)nvtxRangePushA(name); }
    ~memoi_cuda_range() { (void)nvtxRangePop(); }
#else
    explicit memoi_cuda_range(const char*) {}
#endif
};

/* ---- >>cuda driver ------------------------------------------------------------------------------
 * Knows: names and errors of the driver's functions.  Knows nothing of what they are used for.
 *
 * The runtime finds them in the driver, so that programs do not link with libcuda.  The runtime 12
 * requires a driver of CUDA 12.0, which has all of them. */

/* F(member of memoi_cuda_driver, function) */
#define MEMOI_CUDA_DRIVER_FUNCTIONS(F)                                                             \
    F(error_name, cuGetErrorName)                                                                  \
    F(get_attribute, cuDeviceGetAttribute)                                                         \
    F(retain, cuDevicePrimaryCtxRetain)                                                            \
    F(release_context, cuDevicePrimaryCtxRelease)                                                  \
    F(get_current, cuCtxGetCurrent)                                                                \
    F(set_current, cuCtxSetCurrent)                                                                \
    F(query_stream, cuStreamQuery)                                                                 \
    F(query_event, cuEventQuery)                                                                   \
    F(wait_value, cuStreamWaitValue32)                                                             \
    F(granularity, cuMemGetAllocationGranularity)                                                  \
    F(create, cuMemCreate)                                                                         \
    F(release, cuMemRelease)                                                                       \
    F(reserve, cuMemAddressReserve)                                                                \
    F(free_addresses, cuMemAddressFree)                                                            \
    F(map, cuMemMap)                                                                               \
    F(unmap, cuMemUnmap)                                                                           \
    F(set_access, cuMemSetAccess)

typedef struct memoi_cuda_driver {
#define MEMOI_CUDA_DRIVER_MEMBER(member, function) decltype(&function) member;
    MEMOI_CUDA_DRIVER_FUNCTIONS(MEMOI_CUDA_DRIVER_MEMBER)
} memoi_cuda_driver;

MEMOI memo_status memoi_cuda_driver_check(const memoi_cuda_driver* driver, CUresult code,
                                          const char* call, int line, memo_error* error) {
    const char* name = NULL;
    memo_status status = MEMO_STATUS_DEVICE;
    if (code == CUDA_SUCCESS) return MEMO_STATUS_OK;
    if (driver->error_name) (void)driver->error_name(code, &name);
    if (code == CUDA_ERROR_OUT_OF_MEMORY) status = MEMO_STATUS_OUT_OF_DEVICE_MEMORY;
    if (code == CUDA_ERROR_NOT_SUPPORTED) status = MEMO_STATUS_UNSUPPORTED;
    return memo_error_set(error, status, "%s: %s (%d), memo_cuda.cuh:%d", call,
                          name ? name : "an error without a name", (int)code, line);
}
#define MEMOI_CUDA_DRIVER(driver, member, call, arguments, error)                                  \
    memoi_cuda_driver_check(driver, (driver)->member arguments, #call, __LINE__, error)

MEMOI memo_status memoi_cuda_find(const char* symbol, void** function, memo_error* error) {
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    memo_status status;
    *function = NULL;
#if CUDART_VERSION >= 12050
    status = MEMOI_CUDA_CALL(cudaGetDriverEntryPointByVersion,
                             (symbol, function, 12000, cudaEnableDefault, &found), error);
#else
    status = MEMOI_CUDA_CALL(cudaGetDriverEntryPoint, (symbol, function, cudaEnableDefault, &found),
                             error);
#endif
    if (status) return status;
    if (found == cudaDriverEntryPointSuccess && *function) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                          "the driver has no %s; memo needs a driver of CUDA 12.0 or later",
                          symbol);
}

MEMOI memo_status memoi_cuda_driver_open(memoi_cuda_driver* driver, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
#define MEMOI_CUDA_DRIVER_FIND(member, function)                                                   \
    if (!status) status = memoi_cuda_find(#function, (void**)&driver->member, error);
    MEMOI_CUDA_DRIVER_FUNCTIONS(MEMOI_CUDA_DRIVER_FIND)
    return status;
}

/* ---- >>cuda state -------------------------------------------------------------------------------
 * Knows: what a device owns, and the context that its calls need.  Knows nothing of what calls do.
 *
 * 1. Calls are made of a device that has its context.
 * 2. Addresses are multiples of MEMOB_DEVICE_ALIGNMENT.
 * 3. Bytes that are counted are at least 0, at most their peak. */

#define MEMOI_CUDA_MAGIC 0x6d656d6f63756461u /* "memocuda" */

/* Drivers of the 580 series refuse to register 512 GiB and more in one call as out of memory: their
 * table of pages would have 2 GiB (NVIDIA/open-gpu-kernel-modules#1234).  So larger blocks are
 * registered in pieces, and a copy ends where a piece does, because CUDA may refuse a copy over two
 * registrations. */
#ifndef MEMOI_CUDA_PIECE_BYTES
#define MEMOI_CUDA_PIECE_BYTES ((int64_t)64 << 30) /* a multiple of 2 MiB */
#endif

/* Allocated memory. */
typedef struct memoi_cuda_block {
    struct memoi_cuda_block* next;
    char* address;
    int64_t size_bytes;
    void* base;               /* what CUDA returned; address is it, aligned */
    memo_cuda_host_kind kind; /* of pinned memory */
    int64_t mapped_bytes;     /* of registered memory; 0: of cudaHostAlloc */
} memoi_cuda_block;

typedef struct memoi_cuda_phantom memoi_cuda_phantom; /* >>phantom memory */
typedef struct memoi_cuda_lane memoi_cuda_lane;       /* >>host functions */

typedef struct memoi_cuda {
    uint64_t magic;
    memo_device table;
    memo_cuda_device_desc desc;
    memoi_cuda_driver driver;
    CUcontext context;      /* the primary one of desc.ordinal, retained */
    size_t max_pitch_bytes; /* of copies of rows in one call */
    int can_register;       /* kernels reach registered memory by the host's addresses */
    cudaStream_t probe;     /* never used for work: queried for asynchronous errors */
    memoi_cuda_block *device_blocks, *host_blocks;
    int32_t n_cut_blocks;        /* host_blocks of several pieces */
    memoi_cuda_phantom* phantom; /* device_blocks are in it, in the order of their addresses */
    memo_cuda_device_stats stats;

    memob_failure failure;

    /* Host functions: lanes that wait for the worker. */
    int32_t has_worker; /* 0: they run on CUDA's thread */
    int32_t is_worker_started, is_worker_ending;
    int32_t n_streams, n_queues; /* the caller's streams; hardware queues that all streams share */
    int32_t is_crowd_logged;
    pthread_t worker;
    pthread_mutex_t mutex;
    pthread_cond_t has_work;
    memoi_cuda_lane *first, *last; /* the queue */
    memoi_cuda_lane* lanes;        /* all */
    uint32_t* words;               /* the chunk that new lanes take theirs from */
    int32_t n_words;               /* left in it */
} memoi_cuda;

/* Makes the device's primary context current, and restores the previous one at the end.  By the
 * driver: cudaSetDevice would replace a driver or green context, and, to restore "none", create a
 * context on GPU 0. */
struct memoi_cuda_on {
    const memoi_cuda* cuda;
    CUcontext before;
    memo_status status;
    memoi_cuda_on(const memoi_cuda* device, memo_error* error) : cuda(device), before(NULL) {
        const memoi_cuda_driver* driver = &cuda->driver;
        MEMO_ASSERT(cuda->context); /* 1 */
        status = MEMOI_CUDA_DRIVER(driver, get_current, cuCtxGetCurrent, (&before), error);
        if (status)
            before = cuda->context; /* nothing to restore */
        else if (before != cuda->context)
            status =
                MEMOI_CUDA_DRIVER(driver, set_current, cuCtxSetCurrent, (cuda->context), error);
    }
    ~memoi_cuda_on() {
        if (before != cuda->context) (void)cuda->driver.set_current(before);
    }
};

/* Inside it the thread's calls neither join nor invalidate a capture on another thread. */
struct memoi_cuda_relaxed {
    cudaStreamCaptureMode mode;
    memoi_cuda_relaxed() : mode(cudaStreamCaptureModeRelaxed) {
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    }
    ~memoi_cuda_relaxed() { (void)cudaThreadExchangeStreamCaptureMode(&mode); }
};

/* The first address from base on that memo.h's table may return. */
MEMOI char* memoi_cuda_aligned(void* base) {
    return (char*)base + (MEMOB_DEVICE_ALIGNMENT - (uintptr_t)base % MEMOB_DEVICE_ALIGNMENT) %
                             MEMOB_DEVICE_ALIGNMENT;
}

/* Unlinks and releases the block that begins at address.  memory: its kind, for the message. */
MEMOI memo_status memoi_cuda_free(
    memoi_cuda* cuda, memoi_cuda_block** list, const char* memory, const void* address,
    memo_status (*release)(memoi_cuda*, memoi_cuda_block*, memo_error*), memo_error* error) {
    memoi_cuda_on on(cuda, error);
    memoi_cuda_block* block;
    if (!address || on.status) return on.status;
    for (; (block = *list) != NULL; list = &block->next) {
        if (block->address != address) continue;
        MEMO_ASSERT((uintptr_t)address % MEMOB_DEVICE_ALIGNMENT == 0); /* 2 */
        *list = block->next;
        return release(cuda, block, error);
    }
    return MEMOB_INVALID(error,
                         "%s memory: %p was not allocated by this device, or is free already",
                         memory, address);
}

/* Is a request valid, and does it fit into a capacity of the desc (0: none)? */
MEMOI memo_status memoi_cuda_check_request(memo_status status_when_full, const char* memory,
                                           int64_t size_bytes, int64_t used_bytes,
                                           int64_t capacity_bytes, memo_error* error) {
    if (size_bytes < 0 || size_bytes > MEMOB_BYTES_MAX)
        return MEMOB_INVALID(error, "%s memory: invalid size (%lld bytes); 0 to 2^62 are valid",
                             memory, (long long)size_bytes);
    if (!capacity_bytes || size_bytes <= capacity_bytes - used_bytes) return MEMO_STATUS_OK;
    return memo_error_set(error, status_when_full,
                          "%s memory: %lld bytes requested, %lld available; raise "
                          "memo_cuda_device_desc.%s_memory_bytes above %lld",
                          memory, (long long)size_bytes, (long long)(capacity_bytes - used_bytes),
                          memory, (long long)capacity_bytes);
}

/* Counts an allocation (or, negative, its end) in a pair of stats. */
MEMOI void memoi_cuda_count(int64_t size_bytes, int64_t* bytes, int64_t* peak_bytes) {
    *bytes += size_bytes;
    MEMO_ASSERT(*bytes >= 0); /* 3 */
    if (*bytes > *peak_bytes) *peak_bytes = *bytes;
}

/* A stream that waits for the worker stops the streams that share its hardware queue. */
MEMOI void memoi_cuda_log_crowd(memoi_cuda* cuda) {
    char message[300];
    if (cuda->n_streams <= cuda->n_queues || cuda->is_crowd_logged) return;
    cuda->is_crowd_logged = 1;
    snprintf(message, sizeof message,
             "%d streams share %d hardware queues, so a wait for a host function (a file, an "
             "update on the host) may stop computation; set CUDA_DEVICE_MAX_CONNECTIONS to 32 "
             "before the process first uses CUDA",
             (int)cuda->n_streams, (int)cuda->n_queues);
    memoi_cuda_log(&cuda->desc.log, message);
}

/* ---- >>pinned memory ----------------------------------------------------------------------------
 * Knows: pages, processors, control groups, registration.  Knows nothing of copies, but that freed
 * memory must not be under way.
 *
 * 1. Pinned memory is either CUDA's, with a base, or mapped and registered as whole huge pages.
 * 2. Pieces follow each other from the block's address on and cover it; all are registered or none.
 * 3. Threads touch each byte once: together no more than there are, and all unless one is refused.
 * 4. n_cut_blocks counts the listed blocks of several pieces. */

#define MEMOI_CUDA_HUGE_BYTES  ((int64_t)2 << 20)
#define MEMOI_CUDA_TOUCH_BYTES ((int64_t)32 << 20) /* that a thread takes at a time */

/* --- touching: several threads, each takes the next bytes --- */

typedef struct memoi_cuda_touch {
    char* address;
    int64_t size_bytes;
    int64_t next, touched_bytes; /* atomic; next: where the next thread begins */
    int32_t is_refused;          /* atomic */
    cpu_set_t near_gpu;
    int32_t has_near_gpu;
} memoi_cuda_touch;

/* 0: the system has no page left.  A container may reserve more huge pages than its limit allows.
 * A write would then end the program by SIGBUS; madvise returns instead. */
MEMOI int memoi_cuda_touch_pages(char* address, int64_t size_bytes) {
    const int64_t page_bytes = 4096; /* the smallest */
    const int populate_write = 23;   /* MADV_POPULATE_WRITE, Linux 5.14 */
    if (madvise(address, (size_t)size_bytes, populate_write) == 0) return 1;
    if (errno == EFAULT || errno == ENOMEM) return 0;
    for (int64_t at = 0; at < size_bytes; at += page_bytes) *(volatile char*)(address + at) = 0;
    return 1;
}

MEMOI void* memoi_cuda_touch_run(void* argument) {
    memoi_cuda_touch* touch = (memoi_cuda_touch*)argument;
    for (;;) {
        int64_t begin = __atomic_fetch_add(&touch->next, MEMOI_CUDA_TOUCH_BYTES, __ATOMIC_RELAXED);
        int64_t end = begin + MEMOI_CUDA_TOUCH_BYTES;
        if (begin >= touch->size_bytes || __atomic_load_n(&touch->is_refused, __ATOMIC_RELAXED))
            return NULL;
        if (end > touch->size_bytes) end = touch->size_bytes;
        MEMO_ASSERT(begin >= 0 && begin < end); /* 3 */
        if (!memoi_cuda_touch_pages(touch->address + begin, end - begin)) {
            __atomic_store_n(&touch->is_refused, 1, __ATOMIC_RELAXED);
            return NULL;
        }
        __atomic_fetch_add(&touch->touched_bytes, end - begin, __ATOMIC_RELEASE);
    }
}

MEMOI void* memoi_cuda_touch_thread(void* argument) {
    memoi_cuda_touch* touch = (memoi_cuda_touch*)argument;
    /* Pages come from the node of the thread that touches them first. */
    if (touch->has_near_gpu) (void)sched_setaffinity(0, sizeof touch->near_gpu, &touch->near_gpu);
    return memoi_cuda_touch_run(touch);
}

/* Parses "0-7,16,20-23". */
MEMOI void memoi_cuda_parse_processors(const char* text, cpu_set_t* set) {
    CPU_ZERO(set);
    while (*text >= '0' && *text <= '9') {
        char* end;
        long first = strtol(text, &end, 10), last = first;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        for (; first <= last && first < CPU_SETSIZE; first++) CPU_SET((size_t)first, set);
        if (*end != ',') return;
        text = end + 1;
    }
}

/* The processors of the GPU's node that this process may use; 0: unknown, or none. */
MEMOI int32_t memoi_cuda_near_processors(int ordinal, cpu_set_t* near_gpu) {
    char bus[32], path[96], text[1024] = "";
    cpu_set_t allowed;
    FILE* file;
    char* p;
    if (MEMOI_CUDA_CALL(cudaDeviceGetPCIBusId, (bus, (int)sizeof bus, ordinal), NULL)) return 0;
    for (p = bus; *p; p++)
        if (*p >= 'A' && *p <= 'F') *p = (char)(*p - 'A' + 'a');
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/local_cpulist", bus);
    file = fopen(path, "r");
    if (!file) return 0;
    if (!fgets(text, (int)sizeof text, file)) text[0] = 0;
    fclose(file);
    memoi_cuda_parse_processors(text, near_gpu);
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return 0;
    (void)CPU_AND(near_gpu, near_gpu, &allowed);
    return CPU_COUNT(near_gpu) > 0;
}

/* --- the process's share --- */

/* The number behind key in a file, times unit_bytes; -1: none, or not a size ("max"). */
MEMOI int64_t memoi_cuda_read_number(const char* path, const char* key, int64_t unit_bytes) {
    char line[160];
    int64_t result = -1;
    FILE* file = fopen(path, "r");
    if (!file) return -1;
    while (result < 0 && fgets(line, (int)sizeof line, file)) {
        const char* number = line + strlen(key);
        if (strncmp(line, key, strlen(key))) continue;
        number += strspn(number, " ");
        if (*number >= '0' && *number <= '9') result = (int64_t)strtoll(number, NULL, 10);
    }
    fclose(file);
    return result >= 0 && result < MEMOB_BYTES_MAX / unit_bytes ? result * unit_bytes : -1;
}

/* Bytes, of the host or of one control group; negative: no limit, or unknown. */
typedef struct memoi_cuda_room {
    int64_t total_bytes, available_bytes;
} memoi_cuda_room;

/* Lowers room to the limits of the control group in folder; without its files nothing happens.
 * Cached files count as available: the system drops them when memory is short. */
MEMOI void memoi_cuda_group_room(const char* folder, int is_v2, memoi_cuda_room* room) {
    static const char* const files[2][2] = {{"memory.limit_in_bytes", "memory.usage_in_bytes"},
                                            {"memory.max", "memory.current"}};
    static const char* const keys[2][2] = {{"total_inactive_file", "total_active_file"},
                                           {"inactive_file", "active_file"}};
    char path[400];
    int64_t limit_bytes, used_bytes, cached_bytes;

    snprintf(path, sizeof path, "%s/%s", folder, files[is_v2][0]);
    limit_bytes = memoi_cuda_read_number(path, "", 1);
    if (limit_bytes < 0) return;
    snprintf(path, sizeof path, "%s/%s", folder, files[is_v2][1]);
    used_bytes = memoi_cuda_read_number(path, "", 1);
    if (used_bytes < 0) used_bytes = 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    for (int k = 0; k < 2; k++) {
        cached_bytes = memoi_cuda_read_number(path, keys[is_v2][k], 1);
        if (cached_bytes > 0) used_bytes -= cached_bytes;
    }

    used_bytes = memob_min(memob_max(used_bytes, 0), limit_bytes);
    if (room->total_bytes < 0 || limit_bytes < room->total_bytes) room->total_bytes = limit_bytes;
    if (room->available_bytes < 0 || limit_bytes - used_bytes < room->available_bytes)
        room->available_bytes = limit_bytes - used_bytes;
}

/* Lowers room to the limits of a group and all groups around it.  Inside a container the path may
 * be the host's: its folders are then missing and only the mount's root counts. */
MEMOI void memoi_cuda_nested_room(const char* mount, const char* group, int is_v2,
                                  memoi_cuda_room* room) {
    char folder[360];
    size_t root = strlen(mount);
    snprintf(folder, sizeof folder, "%s%s", mount, group);
    for (;;) {
        char* slash;
        memoi_cuda_group_room(folder, is_v2, room);
        slash = strrchr(folder, '/');
        if (strlen(folder) <= root || !slash) return;
        *slash = 0;
    }
}

/* Reads the groups of a process from lines such as "0::/user/job" (v2) and "4:memory:/job" (v1). */
MEMOI void memoi_cuda_groups_room(const char* groups_path, const char* mount,
                                  memoi_cuda_room* room) {
    char line[300], folder[320];
    FILE* file = fopen(groups_path, "r");
    while (file && fgets(line, (int)sizeof line, file)) {
        char *controllers = strchr(line, ':'), *group;
        line[strcspn(line, "\n")] = 0;
        group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        controllers++;
        if (!*controllers) {
            memoi_cuda_nested_room(mount, group, 1, room);
        } else if (strcmp(controllers, "memory") == 0 || strstr(controllers, ",memory") ||
                   strncmp(controllers, "memory,", 7) == 0) {
            snprintf(folder, sizeof folder, "%s/memory", mount);
            memoi_cuda_nested_room(folder, group, 0, room);
        }
    }
    if (file) fclose(file);
}

/* Usual pages, or the pool of huge ones if that is more. */
MEMOI memoi_cuda_room memoi_cuda_host_room(void) {
    int64_t n_huge = memoi_cuda_read_number("/proc/meminfo", "HugePages_Free:", 1);
    int64_t huge_bytes = memoi_cuda_read_number("/proc/meminfo", "Hugepagesize:", 1024);
    memoi_cuda_room room;
    room.total_bytes = memoi_cuda_read_number("/proc/meminfo", "MemTotal:", 1024);
    room.available_bytes = memoi_cuda_read_number("/proc/meminfo", "MemAvailable:", 1024);
    if (room.available_bytes >= 0 && huge_bytes == MEMOI_CUDA_HUGE_BYTES &&
        n_huge > room.available_bytes / huge_bytes)
        room.available_bytes = n_huge * huge_bytes;
    memoi_cuda_groups_room("/proc/self/cgroup", "/sys/fs/cgroup", &room);
    return room;
}

MEMOI int32_t memoi_cuda_local_ranks(const memo_cuda_device_desc* desc) {
    static const char* const names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"};
    if (desc->local_ranks) return desc->local_ranks;
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        const char* text = getenv(names[k]);
        int n = text ? atoi(text) : 0;
        if (n > 0) return n;
    }
    return 1;
}

/* Does a request fit?  If not, error says what does.  Available memory alone would not do: ranks
 * that start together all see the same free bytes. */
MEMOI memo_status memoi_cuda_check_room(const memoi_cuda* cuda, memoi_cuda_room room,
                                        int64_t size_bytes, memo_error* error) {
    int32_t n_ranks = memoi_cuda_local_ranks(&cuda->desc);
    int64_t share_bytes = room.total_bytes < 0 ? MEMOB_BYTES_MAX : room.total_bytes / n_ranks;
    int64_t left_bytes = share_bytes - cuda->stats.host_bytes;
    char asked[32], left[32], share[32];
    if (size_bytes > left_bytes)
        return memo_error_set(
            error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
            "host memory: %s (%lld bytes) requested, %s available of this process's share, %s (1 "
            "of %d); memo_cuda_device_desc.local_ranks and host_limit change the limit",
            memob_bytes_text(asked, (double)size_bytes), (long long)size_bytes,
            memob_bytes_text(left, (double)(left_bytes > 0 ? left_bytes : 0)),
            memob_bytes_text(share, (double)share_bytes), (int)n_ranks);
    if (room.available_bytes >= 0 && size_bytes > room.available_bytes)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "host memory: %s (%lld bytes) requested, %s (%lld bytes) available; "
                              "if memory grows with use, set memo_cuda_device_desc.host_limit",
                              memob_bytes_text(asked, (double)size_bytes), (long long)size_bytes,
                              memob_bytes_text(left, (double)room.available_bytes),
                              (long long)room.available_bytes);
    return MEMO_STATUS_OK;
}

/* --- address space --- */

/* size_bytes is a multiple of 2 MiB, and so is the address.  NULL: the system refuses. */
MEMOI char* memoi_cuda_map(int64_t size_bytes, int without_huge_pages, int without_pool,
                           memo_cuda_host_kind* kind) {
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    size_t wanted = (size_t)size_bytes, slack = (size_t)MEMOI_CUDA_HUGE_BYTES, before;
    char* address;

    /* The pool reserves all pages at once or refuses.  Pages have 2 MiB, even if the system's
     * default huge page is larger, because munmap needs multiples of the page. */
#ifdef MAP_HUGETLB
    if (!without_huge_pages && !without_pool) {
        const int huge_2mb = 21 << 26; /* MAP_HUGE_2MB */
        address = (char*)mmap(NULL, wanted, protection, flags | MAP_HUGETLB | huge_2mb, -1, 0);
        if (address != (char*)MAP_FAILED) {
            if ((uintptr_t)address % slack == 0) {
                *kind = MEMO_CUDA_HOST_HUGETLB;
                return address;
            }
            munmap(address, wanted);
        }
    }
#endif

    /* Usual pages, aligned for transparent huge ones. */
    address = (char*)mmap(NULL, wanted + slack, protection, flags, -1, 0);
    if (address == (char*)MAP_FAILED) return NULL;
    before = (slack - (uintptr_t)address % slack) % slack;
    if (before) munmap(address, before);
    address += before;
    if (slack > before) munmap(address + wanted, slack - before);
    MEMO_ASSERT((uintptr_t)address % slack == 0 && wanted % slack == 0); /* 1 */
    *kind = MEMO_CUDA_HOST_PAGES;
#ifdef MADV_HUGEPAGE
    if (!without_huge_pages && madvise(address, wanted, MADV_HUGEPAGE) == 0)
        *kind = MEMO_CUDA_HOST_TRANSPARENT;
#endif
    return address;
}

/* --- registration --- */

/* Threads that touch pages; 0: none could be started. */
MEMOI int32_t memoi_cuda_start_touching(const memoi_cuda* cuda, memoi_cuda_touch* touch,
                                        pthread_t* threads, int32_t n_most) {
    long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t n_parts = touch->size_bytes / MEMOI_CUDA_TOUCH_BYTES + 1;
    int32_t n_wanted = cuda->desc.host_threads, n = 0;
    if (n_wanted == 0) n_wanted = (int32_t)memob_min(memob_max(n_processors, 1), 16);
    n_wanted = (int32_t)memob_min(memob_min(n_wanted, n_most), n_parts);
    touch->has_near_gpu = memoi_cuda_near_processors(cuda->desc.ordinal, &touch->near_gpu);
    while (n < n_wanted && !memob_thread_create(&threads[n], 0, memoi_cuda_touch_thread, touch))
        n++;
    return n;
}

/* Ends the registration of the block's first n_bytes. */
MEMOI void memoi_cuda_unregister(const memoi_cuda_block* block, int64_t n_bytes) {
    MEMO_ASSERT(n_bytes >= 0 && n_bytes <= block->mapped_bytes); /* 2 */
    for (int64_t at = 0; at < n_bytes; at += MEMOI_CUDA_PIECE_BYTES)
        (void)MEMOI_CUDA_CALL(cudaHostUnregister, (block->address + at), NULL);
}

/* All pieces, or none. */
MEMOI memo_status memoi_cuda_register(const memoi_cuda_block* block, memo_error* error) {
    int64_t at;
    memo_status status = MEMO_STATUS_OK;
    for (at = 0; at < block->mapped_bytes && !status; at += MEMOI_CUDA_PIECE_BYTES) {
        const int64_t n_bytes = memob_min(block->mapped_bytes - at, MEMOI_CUDA_PIECE_BYTES);
        status = MEMOI_CUDA_CALL(cudaHostRegister,
                                 (block->address + at, (size_t)n_bytes,
                                  cudaHostRegisterPortable | cudaHostRegisterMapped),
                                 error);
    }
    MEMO_ASSERT(status || at - block->mapped_bytes < MEMOI_CUDA_PIECE_BYTES); /* 2 */
    if (status) memoi_cuda_unregister(block, at - MEMOI_CUDA_PIECE_BYTES);
    return status;
}

/* Touches the pages of block and registers them.  Logs the progress once a second.  On failure the
 * mapping is undone. */
MEMOI memo_status memoi_cuda_pin(const memoi_cuda* cuda, const memoi_cuda_block* block,
                                 memo_error* error) {
    enum { THREADS_MAX = 64 };
    const double begin_s = memob_now_s();
    const memo_log* log = &cuda->desc.log;
    double told_s = begin_s, now_s;
    pthread_t threads[THREADS_MAX];
    int32_t n_threads;
    memoi_cuda_touch touch;
    char all[32], touched[32], message[160];
    memo_status status;

    memset(&touch, 0, sizeof touch);
    touch.address = block->address;
    touch.size_bytes = block->mapped_bytes;
    n_threads = memoi_cuda_start_touching(cuda, &touch, threads, THREADS_MAX);
    if (n_threads == 0) (void)memoi_cuda_touch_run(&touch);
    while (__atomic_load_n(&touch.touched_bytes, __ATOMIC_ACQUIRE) < touch.size_bytes &&
           !__atomic_load_n(&touch.is_refused, __ATOMIC_RELAXED)) {
        struct timespec nap = {0, 200000};
        nanosleep(&nap, NULL);
        if (!log->write || (now_s = memob_now_s()) - told_s < 1) continue;
        told_s = now_s;
        snprintf(message, sizeof message, "pinning %s: %s touched after %.1f s",
                 memob_bytes_text(all, (double)touch.size_bytes),
                 memob_bytes_text(touched,
                                  (double)__atomic_load_n(&touch.touched_bytes, __ATOMIC_RELAXED)),
                 now_s - begin_s);
        memoi_cuda_log(log, message);
    }
    for (int32_t k = 0; k < n_threads; k++) pthread_join(threads[k], NULL);
    MEMO_ASSERT(touch.is_refused || touch.touched_bytes == touch.size_bytes); /* 3 */

    status = touch.is_refused
                 ? memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                                  "%lld bytes were mapped, but the system has no pages for them",
                                  (long long)block->mapped_bytes)
                 : memoi_cuda_register(block, error);
    if (status) munmap(block->address, (size_t)block->mapped_bytes);
    return status;
}

/* Fills block with registered memory; size_bytes is at least 2 MiB. */
MEMOI memo_status memoi_cuda_register_memory(const memoi_cuda* cuda, memoi_cuda_block* block,
                                             memo_error* error) {
    memo_status status;
    int without_pool = 0;
    block->mapped_bytes = memob_align_up(block->size_bytes, MEMOI_CUDA_HUGE_BYTES);
    do {
        block->address = memoi_cuda_map(block->mapped_bytes, cuda->desc.without_huge_pages,
                                        without_pool++, &block->kind);
        if (!block->address)
            return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "mmap of %lld bytes: %s",
                                  (long long)block->mapped_bytes, strerror(errno));
        /* A child of fork would have to copy the pages at once, since CUDA has pinned them. */
        (void)madvise(block->address, (size_t)block->mapped_bytes, MADV_DONTFORK);
        status = memoi_cuda_pin(cuda, block, error);
    } while (status == MEMO_STATUS_OUT_OF_HOST_MEMORY && block->kind == MEMO_CUDA_HOST_HUGETLB);
    return status;
}

/* cudaHostAlloc, for small requests and as a way out.  first: why registering failed. */
MEMOI memo_status memoi_cuda_host_by_cuda(memoi_cuda_block* block, const char* first,
                                          memo_error* error) {
    memo_status status =
        MEMOI_CUDA_CALL(cudaHostAlloc,
                        (&block->base, (size_t)block->size_bytes + MEMOB_DEVICE_ALIGNMENT,
                         (unsigned)cudaHostAllocPortable),
                        error);
    if (status == MEMO_STATUS_OUT_OF_DEVICE_MEMORY)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "cudaHostAlloc: cudaErrorMemoryAllocation, %lld bytes of pinned "
                              "memory" MEMOI_CUDA_PLACE "%s%.300s",
                              (long long)block->size_bytes, first[0] ? "; before that " : "",
                              first);
    if (status) return status;
    block->mapped_bytes = 0;
    block->address = memoi_cuda_aligned(block->base); /* CUDA promises no alignment */
    block->kind = MEMO_CUDA_HOST_CUDA;
    return MEMO_STATUS_OK;
}

/* Lists a new block of pinned memory.  From least_bytes on CUDA registers it, if it can. */
MEMOI memo_status memoi_cuda_host_block(memoi_cuda* cuda, int64_t size_bytes, int64_t least_bytes,
                                        memoi_cuda_block** result, memo_error* error) {
    memoi_cuda_block* block = (memoi_cuda_block*)memob_calloc(1, sizeof *block);
    memo_error first;
    memo_status status = MEMO_STATUS_UNSUPPORTED;
    if (!block) return memob_no_memory(error, "the list of pinned memory");
    block->size_bytes = size_bytes;
    first.message[0] = 0;
    if (size_bytes >= least_bytes && cuda->can_register)
        status = memoi_cuda_register_memory(cuda, block, &first);
    if (status && first.message[0]) {
        char message[600];
        snprintf(message, sizeof message, "pinned memory: %s; using cudaHostAlloc instead",
                 first.message);
        memoi_cuda_log(&cuda->desc.log, message);
    }
    if (status) status = memoi_cuda_host_by_cuda(block, first.message, error);
    if (status) {
        MEMO_FREE(block);
        return status;
    }
    MEMO_ASSERT(!block->base == (block->mapped_bytes > 0));               /* 1 */
    MEMO_ASSERT(block->base || block->size_bytes <= block->mapped_bytes); /* 1 */
    block->next = cuda->host_blocks;
    cuda->host_blocks = *result = block;
    cuda->n_cut_blocks += block->mapped_bytes > MEMOI_CUDA_PIECE_BYTES;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_cuda_host_alloc(void* context, int64_t size_bytes, void** address,
                                        memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memoi_cuda_block* block;
    double begin_s = memob_now_s();
    memo_error first;
    memo_status status = on.status;
    *address = NULL;
    if (!status)
        status =
            memoi_cuda_check_request(MEMO_STATUS_OUT_OF_HOST_MEMORY, "host", size_bytes,
                                     cuda->stats.host_bytes, cuda->desc.host_memory_bytes, error);
    if (status) return status;

    /* This process's share of the host. */
    if (cuda->desc.host_limit != MEMO_CUDA_HOST_IGNORE) {
        status = memoi_cuda_check_room(cuda, memoi_cuda_host_room(), size_bytes, &first);
        if (status && cuda->desc.host_limit == MEMO_CUDA_HOST_REFUSE)
            return memo_error_set(error, status, "%s", first.message);
        if (status) memoi_cuda_log(&cuda->desc.log, first.message);
    }

    /* Registered memory, or CUDA's. */
    status = memoi_cuda_host_block(cuda, size_bytes, MEMOI_CUDA_HUGE_BYTES, &block, error);
    if (status) return status;
    memoi_cuda_count(size_bytes, &cuda->stats.host_bytes, &cuda->stats.host_peak_bytes);
    cuda->stats.host_kind = block->kind;
    cuda->stats.host_alloc_s = memob_now_s() - begin_s;
    *address = block->address;
    return MEMO_STATUS_OK;
}

/* block is in no list any more.  Memory of cudaHostAlloc is freed whether CUDA refuses or not.
 * Unregistering and unmapping do not wait for copies; if the device cannot be waited for, a copy
 * may still use the memory, so the block goes back to the list. */
MEMOI memo_status memoi_cuda_release_host(memoi_cuda* cuda, memoi_cuda_block* block,
                                          memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (block->base)
        status = MEMOI_CUDA_CALL(cudaFreeHost, (block->base), error);
    else {
        status = MEMOI_CUDA_CALL(cudaDeviceSynchronize, (), error);
        if (status) {
            block->next = cuda->host_blocks;
            cuda->host_blocks = block;
            return status;
        }
        memoi_cuda_unregister(block, block->mapped_bytes);
        munmap(block->address, (size_t)block->mapped_bytes);
        cuda->n_cut_blocks -= block->mapped_bytes > MEMOI_CUDA_PIECE_BYTES;
        MEMO_ASSERT(cuda->n_cut_blocks >= 0); /* 4 */
    }
    memoi_cuda_count(-block->size_bytes, &cuda->stats.host_bytes, &cuda->stats.host_peak_bytes);
    MEMO_FREE(block);
    return status;
}

MEMOI memo_status memoi_cuda_host_free(void* context, void* address, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    return memoi_cuda_free(cuda, &cuda->host_blocks, "host", address, memoi_cuda_release_host,
                           error);
}

/* ---- >>phantom memory ---------------------------------------------------------------------------
 * Knows: the driver's virtual memory management.  Knows nothing of who requested the addresses.
 *
 * 1. A chunk is whole pages, and the addresses are whole chunks.
 * 2. Each chunk of the addresses is mapped once. */

struct memoi_cuda_phantom {
    const memoi_cuda* cuda;
    CUmemAllocationProp properties;
    int64_t page_bytes; /* sizes of chunks are multiples of it */
    CUmemGenericAllocationHandle chunk;
    int64_t chunk_bytes; /* 0: none yet */
    CUdeviceptr address;
    int64_t size_bytes; /* of addresses: whole chunks */
    int64_t n_mapped;
};

MEMOI int memoi_cuda_has(const memoi_cuda* cuda, CUdevice_attribute attribute) {
    int value = 0;
    return cuda->driver.get_attribute(&value, attribute, cuda->desc.ordinal) == CUDA_SUCCESS &&
           value;
}

/* What the pages must be able to do.  A GPU that lacks something gets pages without it. */
MEMOI memo_status memoi_cuda_phantom_describe(memoi_cuda_phantom* phantom, memo_error* error) {
    const memoi_cuda* cuda = phantom->cuda;
    CUmemAllocationProp* properties = &phantom->properties;
    size_t page_bytes = 0;
    memo_status status;
    if (!memoi_cuda_has(cuda, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "memo_cuda_device_desc.phantom_bytes: GPU %d has no virtual memory "
                              "management; use 0",
                              cuda->desc.ordinal);
    properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties->location.id = cuda->desc.ordinal;
    if (memoi_cuda_has(cuda, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (memoi_cuda_has(cuda, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
        properties->allocFlags.gpuDirectRDMACapable = 1;
    status =
        MEMOI_CUDA_DRIVER(&cuda->driver, granularity, cuMemGetAllocationGranularity,
                          (&page_bytes, properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), error);
    phantom->page_bytes = (int64_t)page_bytes;
    return status;
}

/* The device's context is current. */
MEMOI void memoi_cuda_phantom_destroy(memoi_cuda_phantom* phantom) {
    const memoi_cuda_driver* driver;
    CUdeviceptr at;
    if (!phantom) return;
    driver = &phantom->cuda->driver;
    for (at = phantom->address; phantom->n_mapped > 0; phantom->n_mapped--) {
        (void)driver->unmap(at, (size_t)phantom->chunk_bytes);
        at += (CUdeviceptr)phantom->chunk_bytes;
    }
    if (phantom->address)
        (void)driver->free_addresses(phantom->address, (size_t)phantom->size_bytes);
    if (phantom->chunk_bytes) (void)driver->release(phantom->chunk);
    MEMO_FREE(phantom);
}

/* Fewer, larger mappings are faster to make.  Without a requested size, a chunk that does not fit
 * is halved. */
MEMOI memo_status memoi_cuda_take_chunk(memoi_cuda_phantom* phantom, memo_error* error) {
    const int64_t most_bytes = (int64_t)1 << 30, least_bytes = (int64_t)16 << 20;
    const memo_cuda_device_desc* desc = &phantom->cuda->desc;
    const memoi_cuda_driver* driver = &phantom->cuda->driver;
    int64_t chunk_bytes = desc->phantom_chunk_bytes;
    const int is_chosen = chunk_bytes != 0;
    memo_status status;
    if (!is_chosen) chunk_bytes = memob_min(desc->phantom_bytes, most_bytes);
    for (;;) {
        int64_t whole_bytes = memob_align_up(chunk_bytes, phantom->page_bytes);
        status = MEMOI_CUDA_DRIVER(driver, create, cuMemCreate,
                                   (&phantom->chunk, (size_t)whole_bytes, &phantom->properties, 0),
                                   error);
        if (!status) phantom->chunk_bytes = whole_bytes;
        MEMO_ASSERT(phantom->chunk_bytes % phantom->page_bytes == 0); /* 1 */
        if (status != MEMO_STATUS_OUT_OF_DEVICE_MEMORY || is_chosen || chunk_bytes <= least_bytes)
            return status;
        chunk_bytes /= 2;
    }
}

MEMOI memo_status memoi_cuda_map_chunk(memoi_cuda_phantom* phantom, memo_error* error) {
    const int64_t size_bytes = phantom->cuda->desc.phantom_bytes;
    const int64_t n_chunks = (size_bytes - 1) / phantom->chunk_bytes + 1;
    const memoi_cuda_driver* driver = &phantom->cuda->driver;
    CUmemAccessDesc access;
    CUdeviceptr at;
    memo_status status;
    phantom->size_bytes = n_chunks * phantom->chunk_bytes;
    MEMO_ASSERT(phantom->size_bytes >= size_bytes); /* 1 */
    status = MEMOI_CUDA_DRIVER(driver, reserve, cuMemAddressReserve,
                               (&phantom->address, (size_t)phantom->size_bytes, 0, 0, 0), error);
    for (at = phantom->address; phantom->n_mapped < n_chunks && !status;
         at += (CUdeviceptr)phantom->chunk_bytes) {
        status = MEMOI_CUDA_DRIVER(driver, map, cuMemMap,
                                   (at, (size_t)phantom->chunk_bytes, 0, phantom->chunk, 0), error);
        if (!status) phantom->n_mapped++;
    }
    MEMO_ASSERT(status || at == phantom->address + (CUdeviceptr)phantom->size_bytes); /* 2 */
    memset(&access, 0, sizeof access);
    access.location = phantom->properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return status ? status
                  : MEMOI_CUDA_DRIVER(driver, set_access, cuMemSetAccess,
                                      (phantom->address, (size_t)phantom->size_bytes, &access, 1),
                                      error);
}

/* The device's context is current.  After a failure the device's destruction gives back what was
 * taken. */
MEMOI memo_status memoi_cuda_phantom_make(memoi_cuda* cuda, memo_error* error) {
    memoi_cuda_phantom* phantom = (memoi_cuda_phantom*)memob_calloc(1, sizeof *phantom);
    memo_status status;
    if (!phantom) return memob_no_memory(error, "phantom memory");
    cuda->phantom = phantom;
    phantom->cuda = cuda;
    status = memoi_cuda_phantom_describe(phantom, error);
    if (!status) status = memoi_cuda_take_chunk(phantom, error);
    if (!status) status = memoi_cuda_map_chunk(phantom, error);
    return status;
}

/* ---- >>device table -----------------------------------------------------------------------------
 * Knows: the table of memo.h, a CUDA call per function.  Knows nothing of plans or layers.
 *
 * 1. Blocks of phantom memory are in the order of their addresses, and none shares a byte.
 * 2. No copy crosses the end of a piece of pinned memory, and the parts of a copy cover it.
 * 3. Rows of one call lie in one another's strides.
 * 4. A block of the device is aligned within what CUDA gave. */

/* --- device memory --- */

MEMOI memo_status memoi_cuda_out_of_memory(int64_t size_bytes, memo_error* error) {
    size_t free_bytes = 0, total_bytes = 0;
    char asked[32], left[32], all[32];
    (void)MEMOI_CUDA_CALL(cudaMemGetInfo, (&free_bytes, &total_bytes), NULL);
    return memo_error_set(
        error, MEMO_STATUS_OUT_OF_DEVICE_MEMORY,
        "cudaMalloc: cudaErrorMemoryAllocation, %s (%lld bytes) requested, %s (%lld bytes) free of "
        "%s%s" MEMOI_CUDA_PLACE,
        memob_bytes_text(asked, (double)size_bytes), (long long)size_bytes,
        memob_bytes_text(left, (double)free_bytes), (long long)free_bytes,
        memob_bytes_text(all, (double)total_bytes),
        size_bytes > (int64_t)free_bytes ? "" : ", the last of which CUDA does not give away");
}

/* CUDA promises an alignment of 256 bytes.  A block that had to be asked for again would have to be
 * given back, for which CUDA waits for all streams. */
enum { MEMOI_CUDA_ALIGNMENT = 256 };
MEMOI memo_status memoi_cuda_malloc(memoi_cuda_block* block, memo_error* error) {
    const size_t more = MEMOB_DEVICE_ALIGNMENT - MEMOI_CUDA_ALIGNMENT;
    const size_t wanted = (block->size_bytes ? (size_t)block->size_bytes : 1) + more;
    const memo_status status = MEMOI_CUDA_CALL(cudaMalloc, (&block->base, wanted), error);
    if (status == MEMO_STATUS_OUT_OF_DEVICE_MEMORY)
        return memoi_cuda_out_of_memory(block->size_bytes, error);
    if (status) return status;
    block->address = memoi_cuda_aligned(block->base);
    MEMO_ASSERT((size_t)(block->address - (char*)block->base) <= more); /* 4 */
    return MEMO_STATUS_OK;
}

/* The first gap between blocks that is large enough; *place is the link after it. */
MEMOI memo_status memoi_cuda_find_phantom(memoi_cuda* cuda, memoi_cuda_block* block,
                                          memoi_cuda_block*** place, memo_error* error) {
    char* at = (char*)(uintptr_t)cuda->phantom->address;
    char* end = at + cuda->phantom->size_bytes;
    int64_t needed =
        memob_align_up(block->size_bytes ? block->size_bytes : 1, MEMOB_DEVICE_ALIGNMENT);
    memoi_cuda_block** list = &cuda->device_blocks;
    for (; *list && (*list)->address - at < needed; list = &(*list)->next)
        at = (*list)->address + (*list)->mapped_bytes;
    if (!*list && end - at < needed)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_DEVICE_MEMORY,
                              "phantom memory: no gap is large enough (%lld bytes requested); "
                              "raise memo_cuda_device_desc.phantom_bytes above %lld",
                              (long long)block->size_bytes, (long long)cuda->desc.phantom_bytes);
    MEMO_ASSERT(!*list || at + needed <= (*list)->address); /* 1 */
    MEMO_ASSERT(at + needed <= end);                        /* 1 */
    block->address = at;
    block->mapped_bytes = needed;
    *place = list;
    return MEMO_STATUS_OK;
}

MEMOI memo_status memoi_cuda_device_alloc(void* context, int64_t size_bytes, void** address,
                                          memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memoi_cuda_block** place = &cuda->device_blocks;
    memoi_cuda_block* block;
    memo_status status = on.status;
    *address = NULL;
    if (!status)
        status = memoi_cuda_check_request(MEMO_STATUS_OUT_OF_DEVICE_MEMORY, "device", size_bytes,
                                          cuda->stats.device_bytes, cuda->desc.device_memory_bytes,
                                          error);
    if (status) return status;

    /* Memory of CUDA, or phantom addresses; either goes into the list. */
    block = (memoi_cuda_block*)memob_calloc(1, sizeof *block);
    if (!block) return memob_no_memory(error, "the list of device memory");
    block->size_bytes = size_bytes;
    status = cuda->phantom ? memoi_cuda_find_phantom(cuda, block, &place, error)
                           : memoi_cuda_malloc(block, error);
    if (status) {
        MEMO_FREE(block);
        return status;
    }
    block->next = *place;
    *place = block;
    memoi_cuda_count(size_bytes, &cuda->stats.device_bytes, &cuda->stats.device_peak_bytes);
    *address = block->address;
    return MEMO_STATUS_OK;
}

/* block is in no list any more; it is freed whether CUDA refuses or not. */
MEMOI memo_status memoi_cuda_release_device(memoi_cuda* cuda, memoi_cuda_block* block,
                                            memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    if (block->base) status = MEMOI_CUDA_CALL(cudaFree, (block->base), error);
    memoi_cuda_count(-block->size_bytes, &cuda->stats.device_bytes, &cuda->stats.device_peak_bytes);
    MEMO_FREE(block);
    return status;
}

MEMOI memo_status memoi_cuda_device_free(void* context, void* address, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    return memoi_cuda_free(cuda, &cuda->device_blocks, "device", address, memoi_cuda_release_device,
                           error);
}

MEMOI memo_status memoi_cuda_memory_info(void* context, int64_t* free_bytes, int64_t* total_bytes,
                                         memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    size_t left = 0, all = 0;
    memo_status status = on.status;
    if (!status) status = MEMOI_CUDA_CALL(cudaMemGetInfo, (&left, &all), error);
    if (status) return status;
    *free_bytes = (int64_t)left;
    *total_bytes = (int64_t)all;
    if (cuda->phantom) {
        *total_bytes = cuda->phantom->size_bytes;
        *free_bytes = *total_bytes - cuda->stats.device_bytes;
    }
    if (cuda->desc.device_memory_bytes) {
        int64_t left_bytes = cuda->desc.device_memory_bytes - cuda->stats.device_bytes;
        if (*total_bytes > cuda->desc.device_memory_bytes)
            *total_bytes = cuda->desc.device_memory_bytes;
        if (*free_bytes > left_bytes) *free_bytes = left_bytes;
    }
    return MEMO_STATUS_OK;
}

/* --- streams --- */

MEMOI memo_status memoi_cuda_stream_create(void* context, const char* name, int32_t priority,
                                           memo_stream* stream, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    int least = 0, greatest = 0, wanted; /* CUDA counts down: least is 0, greatest is negative */
    cudaStream_t created = NULL;
    memo_status status = on.status;
    (void)name; /* CUDA's streams have none */
    *stream = NULL;
    if (!status)
        status = MEMOI_CUDA_CALL(cudaDeviceGetStreamPriorityRange, (&least, &greatest), error);
    if (status) return status;
    wanted = least - (int)memob_min(memob_max(priority, 0), least - greatest);
    status = MEMOI_CUDA_CALL(cudaStreamCreateWithPriority,
                             (&created, cudaStreamNonBlocking, wanted), error);
    if (status) return status;
    *stream = (memo_stream)created;
    cuda->n_streams++;
    if (cuda->is_worker_started) memoi_cuda_log_crowd(cuda);
    return status;
}

MEMOI memo_status memoi_cuda_stream_destroy(void* context, memo_stream stream, memo_error* error) {
    memoi_cuda_on on((memoi_cuda*)context, error);
    if (!stream || on.status) return on.status;
    ((memoi_cuda*)context)->n_streams--;
    return MEMOI_CUDA_CALL(cudaStreamDestroy, (memo_cuda_stream(stream)), error);
}

MEMOI memo_status memoi_cuda_stream_synchronize(void* context, memo_stream stream,
                                                memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status;
    if (!status) status = MEMOI_CUDA_CALL(cudaStreamSynchronize, (memo_cuda_stream(stream)), error);
    return status ? status : memob_failure_status(&cuda->failure, error);
}

/* --- events --- */

MEMOI memo_status memoi_cuda_event_make(void* context, unsigned flags, memo_event* event,
                                        memo_error* error) {
    memoi_cuda_on on((memoi_cuda*)context, error);
    cudaEvent_t created = NULL;
    memo_status status = on.status;
    *event = NULL;
    if (!status) status = MEMOI_CUDA_CALL(cudaEventCreateWithFlags, (&created, flags), error);
    if (!status) *event = (memo_event)created;
    return status;
}

MEMOI memo_status memoi_cuda_event_create(void* context, memo_event* event, memo_error* error) {
    return memoi_cuda_event_make(context, cudaEventDefault, event, error);
}

MEMOI memo_status memoi_cuda_event_create_untimed(void* context, memo_event* event,
                                                  memo_error* error) {
    return memoi_cuda_event_make(context, cudaEventDisableTiming, event, error);
}

MEMOI memo_status memoi_cuda_event_destroy(void* context, memo_event event, memo_error* error) {
    memoi_cuda_on on((memoi_cuda*)context, error);
    if (!event || on.status) return on.status;
    return MEMOI_CUDA_CALL(cudaEventDestroy, (memo_cuda_event(event)), error);
}

MEMOI memo_status memoi_cuda_event_record(void* context, memo_event event, memo_stream stream,
                                          memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status ? on.status : memob_failure_status(&cuda->failure, error);
    if (status) return status;
    return MEMOI_CUDA_CALL(cudaEventRecord, (memo_cuda_event(event), memo_cuda_stream(stream)),
                           error);
}

MEMOI memo_status memoi_cuda_event_wait(void* context, memo_event event, memo_stream stream,
                                        memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status ? on.status : memob_failure_status(&cuda->failure, error);
    if (status) return status;
    const memoi_cuda_range range("memo: wait");
    return MEMOI_CUDA_CALL(cudaStreamWaitEvent,
                           (memo_cuda_stream(stream), memo_cuda_event(event), 0), error);
}

/* By the driver: the runtime would leave "not ready" for cudaGetLastError, in the place of an error
 * that the caller has not seen yet. */
MEMOI memo_status memoi_cuda_event_query(void* context, memo_event event, int32_t* is_done,
                                         memo_error* error) {
    const memoi_cuda* cuda = (const memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memoi_cuda_relaxed relaxed;
    CUresult code;
    if (on.status) return on.status;
    code = cuda->driver.query_event((CUevent)memo_cuda_event(event));
    *is_done = code == CUDA_SUCCESS;
    if (code == CUDA_ERROR_NOT_READY) return MEMO_STATUS_OK;
    return memoi_cuda_driver_check(&cuda->driver, code, "cuEventQuery", __LINE__, error);
}

MEMOI memo_status memoi_cuda_event_synchronize(void* context, memo_event event, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status;
    if (!status) status = MEMOI_CUDA_CALL(cudaEventSynchronize, (memo_cuda_event(event)), error);
    return status ? status : memob_failure_status(&cuda->failure, error);
}

MEMOI memo_status memoi_cuda_event_elapsed(void* context, memo_event begin, memo_event end,
                                           double* elapsed_s, memo_error* error) {
    memoi_cuda_on on((memoi_cuda*)context, error);
    float elapsed_ms = 0;
    cudaError_t code;
    if (on.status) return on.status;
    code = cudaEventElapsedTime(&elapsed_ms, memo_cuda_event(begin), memo_cuda_event(end));
    if (code == cudaErrorNotReady || code == cudaErrorInvalidResourceHandle ||
        code == cudaErrorCapturedEvent) {
        memoi_cuda_forget(code);
        return memo_error_set(
            error, MEMO_STATUS_INVALID_STATE,
            "cudaEventElapsedTime: %s: one of the events %s" MEMOI_CUDA_PLACE,
            cudaGetErrorName(code),
            code == cudaErrorNotReady
                ? "is not done; synchronize first"
                : "was never recorded, was captured in a graph, or has no timing");
    }
    *elapsed_s = (double)elapsed_ms * 1e-3;
    return memo_cuda_check_at(code, "cudaEventElapsedTime", __FILE__, __LINE__, error);
}

/* --- copies --- */

/* By memo_copy_kind. */
static const cudaMemcpyKind memoi_cuda_copy_kinds[] = {
    cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToDevice};
MEMOB_TABLE_OF(MEMO_N_COPY_KINDS, memoi_cuda_copy_kinds);

/* Rows with gaps between them: all in one call, or one by one if the pitch does not allow that. */
MEMOI memo_status memoi_cuda_copy_strided(const memoi_cuda* cuda, memo_copy_kind kind,
                                          cudaStream_t stream, char* to, int64_t to_stride_bytes,
                                          const char* from, int64_t from_stride_bytes,
                                          int64_t row_bytes, int64_t n_rows, memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    MEMO_ASSERT(row_bytes > 0 && n_rows > 0);
    MEMO_ASSERT(n_rows == 1 || memob_min(to_stride_bytes, from_stride_bytes) >= row_bytes); /* 3 */
    if (n_rows > 1 && (size_t)to_stride_bytes <= cuda->max_pitch_bytes &&
        (size_t)from_stride_bytes <= cuda->max_pitch_bytes)
        return MEMOI_CUDA_CALL(cudaMemcpy2DAsync,
                               (to, (size_t)to_stride_bytes, from, (size_t)from_stride_bytes,
                                (size_t)row_bytes, (size_t)n_rows, memoi_cuda_copy_kinds[kind],
                                stream),
                               error);
    for (int64_t row = 0; row < n_rows && !status; row++)
        status = MEMOI_CUDA_CALL(cudaMemcpyAsync,
                                 (to + row * to_stride_bytes, from + row * from_stride_bytes,
                                  (size_t)row_bytes, memoi_cuda_copy_kinds[kind], stream),
                                 error);
    return status;
}

/* Bytes from an address of the host to the end of its piece; of other memory: no end. */
MEMOI int64_t memoi_cuda_piece_left(const memoi_cuda* cuda, const char* address) {
    const memoi_cuda_block* block = cuda->n_cut_blocks ? cuda->host_blocks : NULL;
    for (; block; block = block->next) {
        const uintptr_t at = (uintptr_t)address - (uintptr_t)block->address;
        if (at < (uintptr_t)block->mapped_bytes)
            return MEMOI_CUDA_PIECE_BYTES - (int64_t)at % MEMOI_CUDA_PIECE_BYTES;
    }
    return INT64_MAX;
}

/* Rows, cut where a piece of the host's memory ends. */
MEMOI memo_status memoi_cuda_copy_pieces(const memoi_cuda* cuda, memo_copy_kind kind,
                                         cudaStream_t stream, char* to, int64_t to_stride_bytes,
                                         const char* from, int64_t from_stride_bytes,
                                         int64_t row_bytes, int64_t n_rows, memo_error* error) {
    const int to_host = kind == MEMO_COPY_TO_HOST;
    const int64_t stride_bytes = to_host ? to_stride_bytes : from_stride_bytes;
    memo_status status = MEMO_STATUS_OK;
    while (n_rows > 0 && !status) {
        const int64_t left = memoi_cuda_piece_left(cuda, to_host ? to : from);
        int64_t n = 1; /* rows that end in this piece, or a row that does not */
        if (n_rows > 1 && left >= row_bytes)
            n = memob_min((left - row_bytes) / stride_bytes + 1, n_rows);
        MEMO_ASSERT(left > 0 && n > 0 && n <= n_rows);                            /* 2 */
        MEMO_ASSERT((n - 1) * stride_bytes <= left - memob_min(row_bytes, left)); /* 2 */

        status = memoi_cuda_copy_strided(cuda, kind, stream, to, to_stride_bytes, from,
                                         from_stride_bytes, memob_min(row_bytes, left), n, error);
        if (left < row_bytes && !status) /* the rest of a row */
            status = memoi_cuda_copy_pieces(cuda, kind, stream, to + left, 0, from + left, 0,
                                            row_bytes - left, 1, error);
        to += n * to_stride_bytes;
        from += n * from_stride_bytes;
        n_rows -= n;
    }
    return status;
}

MEMOI memo_status memoi_cuda_copy_rows(void* context, memo_stream stream, memo_copy_kind kind,
                                       void* to, int64_t to_stride_bytes, const void* from,
                                       int64_t from_stride_bytes, int64_t row_bytes, int64_t n_rows,
                                       memo_error* error) {
    static const char* const ranges[] = {"memo: to host", "memo: to device", "memo: on device"};
    MEMOB_TABLE_OF(MEMO_N_COPY_KINDS, ranges);
    const memoi_cuda* cuda = (const memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status ? on.status : memob_failure_status(&cuda->failure, error);
    if (!status)
        status = memob_check_copy(kind, to, to_stride_bytes, from, from_stride_bytes, row_bytes,
                                  n_rows, error);
    if (status || row_bytes == 0 || n_rows == 0) return status;

    if (to_stride_bytes == row_bytes && from_stride_bytes == row_bytes) {
        row_bytes *= n_rows;
        n_rows = 1;
    }
    const memoi_cuda_range range(ranges[kind]);
    return memoi_cuda_copy_pieces(cuda, kind, memo_cuda_stream(stream), (char*)to, to_stride_bytes,
                                  (const char*)from, from_stride_bytes, row_bytes, n_rows, error);
}

MEMOI memo_status memoi_cuda_copy(void* context, memo_stream stream, memo_copy_kind kind, void* to,
                                  const void* from, int64_t size_bytes, memo_error* error) {
    return memoi_cuda_copy_rows(context, stream, kind, to, size_bytes, from, size_bytes, size_bytes,
                                1, error);
}

MEMOI memo_status memoi_cuda_fill(void* context, memo_stream stream, void* address,
                                  int32_t byte_value, int64_t size_bytes, memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status ? on.status : memob_failure_status(&cuda->failure, error);
    if (status) return status;
    if (size_bytes < 0 || (!address && size_bytes))
        return MEMOB_INVALID(error, "fill: invalid memory (%lld bytes at %p)",
                             (long long)size_bytes, address);
    if (size_bytes == 0) return MEMO_STATUS_OK;
    return MEMOI_CUDA_CALL(cudaMemsetAsync,
                           (address, (int)byte_value, (size_t)size_bytes, memo_cuda_stream(stream)),
                           error);
}

/* Errors that CUDA keeps show on every stream, so a stream without work is queried.  What waits for
 * cudaGetLastError is the trainer's and is not looked at. */
MEMOI memo_status memoi_cuda_status(void* context, memo_error* error) {
    const memoi_cuda* cuda = (const memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memoi_cuda_relaxed relaxed;
    const memo_status status = on.status ? on.status : memob_failure_status(&cuda->failure, error);
    CUresult code;
    if (status) return status;
    code = cuda->driver.query_stream((CUstream)cuda->probe);
    if (code == CUDA_ERROR_NOT_READY) return MEMO_STATUS_OK;
    return memoi_cuda_driver_check(&cuda->driver, code, "cuStreamQuery", __LINE__, error);
}

/* ---- >>host functions ---------------------------------------------------------------------------
 * Knows: a queue, a worker thread and words of pinned memory.  Knows nothing of what functions do.
 *
 * 1. The queue has a first lane if and only if it has a last one, behind which there is none.
 * 2. A lane is in the queue at most once: its word is 0 from then until its launches have run.
 * 3. Each lane has a word of its own, if the device has a worker.
 * 4. When the worker has ended, no lane waits for it.
 *
 * cudaLaunchHostFunc calls everything on one thread, which the proxy work of NCCL in graphs needs
 * too.  A read of gigabytes there would hold up all streams.  So it only hands the function to this
 * device's worker, and the stream waits for a word that the worker sets:
 *
 *     stream    cudaLaunchHostFunc: word = 0, enqueue | cuStreamWaitValue32: word == 1 | goes on
 *     worker                                 function, then word = 1
 *
 * A graph that captured both may be replayed: the first sets the word back.  The stream's own order
 * is all that CUDA has to know; the function waits for nothing on the GPU.
 *
 * A call has a lane, with a word, for each stream.  Launches of a lane follow each other in their
 * stream: the next one sets the word back only after the wait of the one before.  So any number of
 * launches are in flight by the lanes of the first step, and only a first launch allocates. */

enum { MEMOI_CUDA_WORDS = 1024 }; /* allocated at once */

/* A memo_host_call on a stream. */
struct memoi_cuda_lane {
    memoi_cuda_lane* next;      /* in the queue */
    memoi_cuda_lane* next_all;  /* of the device */
    memoi_cuda_lane* next_call; /* on another stream; the call's `device` is the latest */
    memoi_cuda* cuda;
    const memo_host_call* call;
    memo_stream stream;
    /* In the queue.  Above 1 only if order fails: a graph of this stream is replayed on another, or
     * a destroyed stream's handle is used again.  Then each waits for all. */
    int32_t n_launches;
    uint32_t* word; /* NULL: CUDA's thread runs the function */
};

MEMOI void memoi_cuda_run_call(memoi_cuda* cuda, const memo_host_call* call) {
    memo_error error;
    memo_status status;
    if (memob_failure_is_kept(&cuda->failure)) return;
    memset(&error, 0, sizeof error);
    status = call->function(call->argument, &error);
    if (status)
        memob_failure_keep(&cuda->failure, status, "host function: %.400s",
                           error.message[0] ? error.message : memo_status_name(status));
}

/* The mutex is locked. */
MEMOI void memoi_cuda_put_last(memoi_cuda* cuda, memoi_cuda_lane* lane) {
    lane->next = NULL;
    MEMO_ASSERT(!cuda->first == !cuda->last);                              /* 1 */
    MEMO_ASSERT(!cuda->last || (cuda->last != lane && !cuda->last->next)); /* 1, 2 */
    if (cuda->last)
        cuda->last->next = lane;
    else
        cuda->first = lane;
    cuda->last = lane;
}

/* On CUDA's thread; nothing here may call CUDA. */
MEMOI void CUDART_CB memoi_cuda_on_stream(void* argument) {
    memoi_cuda_lane* lane = (memoi_cuda_lane*)argument;
    memoi_cuda* cuda = lane->cuda;
    if (!lane->word) {
        memoi_cuda_run_call(cuda, lane->call);
        return;
    }
    pthread_mutex_lock(&cuda->mutex);
    __atomic_store_n(lane->word, 0, __ATOMIC_SEQ_CST);
    if (!lane->n_launches++) memoi_cuda_put_last(cuda, lane);
    pthread_cond_signal(&cuda->has_work);
    pthread_mutex_unlock(&cuda->mutex);
}

MEMOI void* memoi_cuda_worker(void* argument) {
    memoi_cuda* cuda = (memoi_cuda*)argument;
    pthread_mutex_lock(&cuda->mutex);
    for (;;) {
        memoi_cuda_lane* lane = cuda->first;
        if (!lane) {
            if (cuda->is_worker_ending) break;
            pthread_cond_wait(&cuda->has_work, &cuda->mutex);
            continue;
        }
        cuda->first = lane->next;
        if (!cuda->first) cuda->last = NULL;
        pthread_mutex_unlock(&cuda->mutex);
        memoi_cuda_run_call(cuda, lane->call);
        MEMO_ASSERT(*lane->word == 0); /* 2 */
        pthread_mutex_lock(&cuda->mutex);
        if (--lane->n_launches)
            memoi_cuda_put_last(cuda, lane);
        else
            __atomic_store_n(lane->word, 1, __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&cuda->mutex);
    return NULL;
}

/* Words of pinned memory, also while a capture goes on. */
MEMOI memo_status memoi_cuda_more_words(memoi_cuda* cuda, memo_error* error) {
    const int64_t n_bytes = MEMOI_CUDA_WORDS * (int64_t)sizeof(uint32_t);
    memoi_cuda_relaxed relaxed;
    memoi_cuda_block* block;
    memo_status status = memoi_cuda_host_block(cuda, n_bytes, INT64_MAX, &block, error);
    if (status) return status;
    memset(block->address, 0, (size_t)n_bytes);
    block->size_bytes = 0; /* not counted: nobody requested it */
    cuda->words = (uint32_t*)block->address;
    cuda->n_words = MEMOI_CUDA_WORDS;
    return MEMO_STATUS_OK;
}

/* Makes the lane of a call that a stream gets for the first time.  The lane keeps its word: a
 * captured graph may refer to it. */
MEMOI memo_status memoi_cuda_make_lane(memoi_cuda* cuda, memo_host_call* call, memo_stream stream,
                                       memo_error* error) {
    memo_status status = MEMO_STATUS_OK;
    memoi_cuda_lane* lane;
    if (cuda->has_worker && !cuda->is_worker_started) {
        int code = memob_thread_create(&cuda->worker, 0, memoi_cuda_worker, cuda);
        if (code)
            return memo_error_set(error, MEMO_STATUS_DEVICE, "a thread for host functions: %s",
                                  strerror(code));
        cuda->is_worker_started = 1;
        memoi_cuda_log_crowd(cuda);
    }
    if (cuda->has_worker && !cuda->n_words) status = memoi_cuda_more_words(cuda, error);
    if (status) return status;
    lane = (memoi_cuda_lane*)memob_calloc(1, sizeof *lane);
    if (!lane) return memob_no_memory(error, "a host function");
    lane->cuda = cuda;
    lane->call = call;
    lane->stream = stream;
    if (cuda->has_worker) lane->word = &cuda->words[--cuda->n_words];
    MEMO_ASSERT(cuda->n_words >= 0 && !lane->word == !cuda->has_worker);         /* 3 */
    MEMO_ASSERT(!cuda->lanes || !lane->word || lane->word != cuda->lanes->word); /* 3 */
    lane->next_all = cuda->lanes;
    cuda->lanes = lane;
    lane->next_call = (memoi_cuda_lane*)call->device;
    call->device = lane;
    return MEMO_STATUS_OK;
}

/* NULL: the call was never enqueued on stream. */
MEMOI memoi_cuda_lane* memoi_cuda_find_lane(const memo_host_call* call, memo_stream stream) {
    memoi_cuda_lane* lane = (memoi_cuda_lane*)call->device;
    while (lane && lane->stream != stream) lane = lane->next_call;
    return lane;
}

MEMOI memo_status memoi_cuda_launch_host(void* context, memo_stream stream, memo_host_call* call,
                                         memo_error* error) {
    memoi_cuda* cuda = (memoi_cuda*)context;
    memoi_cuda_on on(cuda, error);
    memo_status status = on.status ? on.status : memob_failure_status(&cuda->failure, error);
    memoi_cuda_lane* lane = memoi_cuda_find_lane(call, stream);
    if (!status && !lane) {
        status = memoi_cuda_make_lane(cuda, call, stream, error);
        lane = (memoi_cuda_lane*)call->device;
    }
    if (status) return status;
    status = MEMOI_CUDA_CALL(cudaLaunchHostFunc,
                             (memo_cuda_stream(stream), memoi_cuda_on_stream, lane), error);
    if (status || !lane->word) return status;
    return MEMOI_CUDA_DRIVER(
        &cuda->driver, wait_value, cuStreamWaitValue32,
        ((CUstream)stream, (CUdeviceptr)(uintptr_t)lane->word, 1, CU_STREAM_WAIT_VALUE_EQ), error);
}

/* The first chunk of words, and a wait that ends at once as a trial. */
MEMOI memo_status memoi_cuda_prepare_worker(memoi_cuda* cuda, memo_error* error) {
    memo_error why;
    memo_status status = memoi_cuda_more_words(cuda, error);
    if (status) return status;
    cuda->has_worker = !MEMOI_CUDA_DRIVER(
        &cuda->driver, wait_value, cuStreamWaitValue32,
        ((CUstream)cuda->probe, (CUdeviceptr)(uintptr_t)cuda->words, 0, CU_STREAM_WAIT_VALUE_EQ),
        &why);
    if (!cuda->has_worker) {
        char message[600];
        snprintf(message, sizeof message, "%s; host functions run on CUDA's thread instead",
                 why.message);
        memoi_cuda_log(&cuda->desc.log, message);
    }
    return MEMO_STATUS_OK;
}

/* All streams are done. */
MEMOI void memoi_cuda_end_worker(memoi_cuda* cuda) {
    memoi_cuda_lane* lane;
    pthread_mutex_lock(&cuda->mutex);
    cuda->is_worker_ending = 1;
    pthread_cond_signal(&cuda->has_work);
    pthread_mutex_unlock(&cuda->mutex);
    if (cuda->is_worker_started) pthread_join(cuda->worker, NULL);
    MEMO_ASSERT(!cuda->first); /* 4 */
    while ((lane = cuda->lanes) != NULL) {
        cuda->lanes = lane->next_all;
        MEMO_FREE(lane);
    }
}

/* ---- >>row lanes --------------------------------------------------------------------------------
 * Knows: how threads share rows, and in how many accesses they read them.  Knows nothing of grids.
 * The host's loops (memo_sp.h, >>row kernels) have the same results without any of it. */
#ifdef MEMO_SP_H
#define MEMO_CUDA_ROW_KERNELS
#include "memo_sp.h" /* its arithmetic of rows */

/* --- groups: the numbers that a thread reads at a time ---
 *
 * A group has eight numbers, 16 bytes of a 16-bit type; four numbers if the output is F32, so that
 * neighboring threads write neighboring 16 bytes.
 *
 * A GPU reaches its memory bandwidth only if enough reads are in flight.  So an item of add and
 * cast has two groups, half a row apart, and reads both before it writes; an item of a cast to F32
 * has four.  Row sums read two groups before they add.  Groups are converted only after all are
 * read, so that no read waits for a conversion. */

#define MEMOI_ROW_GROUP 8

#if defined(__CUDA_ARCH__)
#define MEMOI_VECTORS /* several words in one access */
#endif

/* Up to 8 numbers as in memory: a word is one F32, or two of a 16-bit type; or bytes. */
typedef struct memoi_row_group {
    uint32_t words[MEMOI_ROW_GROUP];
} memoi_row_group;

/* Loads 2 or 4 words; the address is aligned to their size. */
MEMO_INLINE void memoi_words_load(uint32_t* to, const void* from, int n) {
#if defined(MEMOI_VECTORS)
    if (n == 4) {
        uint4 v = *(const uint4*)from;
        to[0] = v.x;
        to[1] = v.y;
        to[2] = v.z;
        to[3] = v.w;
    } else {
        uint2 v = *(const uint2*)from;
        to[0] = v.x;
        to[1] = v.y;
    }
#else
    memcpy(to, from, (size_t)n * 4);
#endif
}
MEMO_INLINE void memoi_words_store(void* to, const uint32_t* from, int n) {
#if defined(MEMOI_VECTORS)
    if (n == 4)
        *(uint4*)to = make_uint4(from[0], from[1], from[2], from[3]);
    else
        *(uint2*)to = make_uint2(from[0], from[1]);
#else
    memcpy(to, from, (size_t)n * 4);
#endif
}

MEMO_INLINE int memoi_is_aligned_to(const void* address, int n_bytes) {
    return ((uintptr_t)address & (uintptr_t)(n_bytes - 1)) == 0;
}

/* Words of aligned accesses that hold n elements: 8, 4 or 2; 0: access element by element.  A word
 * of two 16-bit numbers has the first number in its low half, which memory has on little-endian
 * machines alone. */
MEMO_INLINE int memoi_row_words(const void* address, memo_type type, int32_t n) {
    int is_f32 = type == MEMO_TYPE_F32;
    if (MEMOB_IS_BIG_ENDIAN && !is_f32) return 0;
    if (n == 8 && memoi_is_aligned_to(address, 16)) return is_f32 ? 8 : 4;
    if (n == 4 && memoi_is_aligned_to(address, is_f32 ? 16 : 8)) return is_f32 ? 4 : 2;
    return 0;
}

/* Loads n elements, at most 8 (0 or below: none), followed by zeros. */
MEMO_INLINE void memoi_group_load(memoi_row_group* group, const void* from, memo_type type,
                                  int32_t n) {
    int words = memoi_row_words(from, type, n), k;
    MEMO_ROW_UNROLL
    for (k = 0; k < MEMOI_ROW_GROUP; k++) group->words[k] = 0;
    if (words == 2) {
        memoi_words_load(group->words, from, 2);
    } else if (words) {
        memoi_words_load(group->words, from, 4);
        if (words == 8) memoi_words_load(group->words + 4, (const char*)from + 16, 4);
    } else {
        MEMO_ROW_UNROLL
        for (k = 0; k < MEMOI_ROW_GROUP; k++) {
            if (k >= n) continue;
            if (type == MEMO_TYPE_F32)
                group->words[k] = memob_f32_bits(((const float*)from)[k]);
            else
                group->words[k / 2] |= (uint32_t)((const uint16_t*)from)[k] << (k % 2 * 16);
        }
    }
}

/* A pair of a 16-bit type, to fp32 and back. */
MEMO_INLINE void memoi_pair_widen(float* to, uint32_t pair, memo_type type) {
    if (type == MEMO_TYPE_BF16) {
        to[0] = memob_f32_from_bits(pair << 16);
        to[1] = memob_f32_from_bits(pair & 0xffff0000u);
    } else {
        to[0] = memo_f32_from_f16((uint16_t)(pair & 0xffff));
        to[1] = memo_f32_from_f16((uint16_t)(pair >> 16));
    }
}
MEMO_INLINE uint32_t memoi_pair_narrow(const float* from, memo_type type) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 /* the same bits, NaN too, in one instruction */
    uint32_t pair;
    if (type == MEMO_TYPE_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(from[1]), "f"(from[0]));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(from[1]), "f"(from[0]));
    return pair;
#else
    if (type == MEMO_TYPE_BF16)
        return memo_bf16_from_f32(from[0]) | (uint32_t)memo_bf16_from_f32(from[1]) << 16;
    return memo_f16_from_f32(from[0]) | (uint32_t)memo_f16_from_f32(from[1]) << 16;
#endif
}

MEMO_INLINE void memoi_group_widen(float* to, const memoi_row_group* group, memo_type type) {
    if (type == MEMO_TYPE_F32) {
        MEMO_ROW_UNROLL
        for (int k = 0; k < MEMOI_ROW_GROUP; k++) to[k] = memob_f32_from_bits(group->words[k]);
    } else {
        MEMO_ROW_UNROLL
        for (int k = 0; k < MEMOI_ROW_GROUP / 2; k++)
            memoi_pair_widen(to + 2 * k, group->words[k], type);
    }
}
/* Stores the first n of 8 numbers, 0 to 8. */
MEMO_INLINE void memoi_group_store(void* to, const float* from, memo_type type, int32_t n) {
    const int words = memoi_row_words(to, type, n), is_f32 = type == MEMO_TYPE_F32;
    memoi_row_group group;
    int k;
    MEMO_ROW_UNROLL
    for (k = 0; k < MEMOI_ROW_GROUP; k++) {
        if (is_f32)
            group.words[k] = memob_f32_bits(from[k]);
        else if (k % 2)
            group.words[k / 2] = memoi_pair_narrow(from + k - 1, type);
    }

    /* Aligned groups in few accesses, else element by element. */
    if (words == 2) {
        memoi_words_store(to, group.words, 2);
    } else if (words) {
        memoi_words_store(to, group.words, 4);
        if (words == 8) memoi_words_store((char*)to + 16, group.words + 4, 4);
    } else {
        MEMO_ROW_UNROLL
        for (k = 0; k < MEMOI_ROW_GROUP; k++) {
            if (k >= n) continue;
            if (is_f32)
                ((float*)to)[k] = from[k];
            else
                ((uint16_t*)to)[k] = (uint16_t)(group.words[k / 2] >> (k % 2 * 16));
        }
    }
}

/* Numbers of a group: a power of two, whose exponent this is.  memoi_row_rest is how many of the
 * group at `first` a row of n has; a group beyond the row has none, 0 or below. */
MEMO_INLINE int memoi_row_shift(memo_type to_type) { return to_type == MEMO_TYPE_F32 ? 2 : 3; }
MEMO_INLINE int64_t memoi_n_shifted(int64_t n, int shift) {
    return (n + ((int64_t)1 << shift) - 1) >> shift;
}
MEMO_INLINE int32_t memoi_row_rest(int64_t n, int64_t first, int shift) {
    return n - first < (int64_t)1 << shift ? (int32_t)(n - first) : 1 << shift;
}

/* Loads the group of a matrix that begins at row and column. */
MEMO_INLINE void memoi_group_load_at(memoi_row_group* group, const void* matrix, memo_type type,
                                     int64_t stride, int64_t row, int64_t column, int32_t n) {
    memoi_group_load(
        group, (const char*)matrix + (row * stride + column) * memo_row_type_bytes(type), type, n);
}

MEMO_INLINE void memoi_group_store_at(void* matrix, memo_type type, int64_t stride, int64_t row,
                                      int64_t column, const float* from, int32_t n) {
    memoi_group_store((char*)matrix + (row * stride + column) * memo_row_type_bytes(type), from,
                      type, n);
}

/* Two groups of a row, by their first columns.  All of an item are loaded before the first is
 * used. */
typedef struct memoi_row_pair {
    int64_t column[2];
    int32_t n[2]; /* 0 or below: the group is beyond the row */
} memoi_row_pair;
MEMO_INLINE memoi_row_pair memoi_row_pair_at(int64_t n_columns, int64_t first, int64_t second,
                                             int shift) {
    const memoi_row_pair pair = {
        {first, second},
        {memoi_row_rest(n_columns, first, shift), memoi_row_rest(n_columns, second, shift)}};
    return pair;
}
MEMO_INLINE void memoi_pair_load(memoi_row_group groups[2], const void* matrix, memo_type type,
                                 int64_t stride, int64_t row, const memoi_row_pair* pair) {
    memoi_group_load_at(&groups[0], matrix, type, stride, row, pair->column[0], pair->n[0]);
    memoi_group_load_at(&groups[1], matrix, type, stride, row, pair->column[1], pair->n[1]);
}

/* Splits an item into a row and a number in the row; a row has n_each items. */
MEMO_INLINE int64_t memoi_row_of(int64_t item, int64_t n_each, int64_t* rest) {
    int64_t row;
    if (((uint64_t)item | (uint64_t)n_each) >> 32)
        row = item / n_each;
    else
        row = (int64_t)((uint32_t)item / (uint32_t)n_each);
    *rest = item - row * n_each;
    return row;
}

/* --- lanes: 8 threads share a row; lane l takes groups l, l + 8, ... --- */

#define MEMO_ROW_LANES 8

/* --- merge of partial attention --- */

/* The row of the arrays, for a row that is counted through all batches. */
MEMO_INLINE int64_t memo_merge_place(const memo_merge_desc* merge, int64_t row) {
    int64_t rest = row, batch = 0;
    if (merge->n_batches > 1) batch = memoi_row_of(row, merge->n_rows, &rest);
    return batch * merge->batch_stride_rows + rest;
}

/* The work of one lane on a row, whose LSE is still that before the merge. */
MEMO_INLINE void memo_merge_lane(const memo_merge_desc* merge, int64_t row, int32_t lane) {
    const int shift = memoi_row_shift(MEMO_TYPE_F32);
    const int64_t step = (int64_t)MEMO_ROW_LANES << shift, n_columns = merge->n_columns;
    const int64_t place = memo_merge_place(merge, row);
    const memo_merge_weights weights =
        memo_merge_weights_of(merge->lse[place], merge->part_lse[place]);
    if (weights.part == 0) return;
    for (int64_t column = (int64_t)lane << shift; column < n_columns; column += 2 * step) {
        const memoi_row_pair pair = memoi_row_pair_at(n_columns, column, column + step, shift);
        memoi_row_pair read = pair;
        memoi_row_group part[2], out[2];
        if (weights.out == 0) read.n[0] = read.n[1] = 0; /* out may be anything */
        memoi_pair_load(part, merge->part_out, merge->part_type, n_columns, place, &pair);
        memoi_pair_load(out, merge->out, MEMO_TYPE_F32, n_columns, place, &read);

        MEMO_ROW_UNROLL
        for (int i = 0; i < 2; i++) {
            float a[MEMOI_ROW_GROUP], b[MEMOI_ROW_GROUP];
            if (pair.n[i] <= 0) continue;
            memoi_group_widen(a, &out[i], MEMO_TYPE_F32);
            memoi_group_widen(b, &part[i], merge->part_type);
            if (weights.out != 0) {
                MEMO_ROW_UNROLL
                for (int k = 0; k < MEMOI_ROW_GROUP; k++)
                    b[k] = fmaf(weights.part, b[k], weights.out * a[k]);
            }
            memoi_group_store_at(merge->out, MEMO_TYPE_F32, n_columns, place, pair.column[i], b,
                                 pair.n[i]);
        }
    }
}

/* The row's LSE, when every lane is done. */
MEMO_INLINE void memo_merge_end(const memo_merge_desc* merge, int64_t row) {
    const int64_t place = memo_merge_place(merge, row);
    merge->lse[place] = memo_merge_lse(merge->lse[place], merge->part_lse[place]);
}

/* --- add and cast --- */

/* A sum has pairs of groups of a and of b.  A group of a cast to F32 reads 8 bytes if the input has
 * 16 bits, so an item of such a cast has two pairs.  n_pairs and has_b are constants of callers. */
MEMO_INLINE int64_t memoi_add_row_items(const memo_add_desc* add, int n_pairs) {
    return memoi_n_shifted(add->n_columns, memoi_row_shift(add->to_type) + n_pairs);
}
MEMO_INLINE void memoi_add_item(const memo_add_desc* add, int64_t item, int n_pairs, int has_b) {
    const int shift = memoi_row_shift(add->to_type);
    int64_t row = 0, first = item, n_items = memoi_add_row_items(add, n_pairs);
    memoi_row_pair pairs[2];
    memoi_row_group a[2][2], b[2][2];
    if (add->n_rows > 1) row = memoi_row_of(item, n_items, &first);
    MEMO_ROW_UNROLL
    for (int p = 0; p < n_pairs; p++) {
        const int64_t column = (first + 2 * p * n_items) << shift;
        pairs[p] = memoi_row_pair_at(add->n_columns, column, column + (n_items << shift), shift);
        memoi_pair_load(a[p], add->a, add->a_type, add->a_stride, row, &pairs[p]);
        if (has_b) memoi_pair_load(b[p], add->b, add->b_type, add->b_stride, row, &pairs[p]);
    }
    MEMO_ROW_UNROLL
    for (int p = 0; p < n_pairs; p++) {
        MEMO_ROW_UNROLL
        for (int i = 0; i < 2; i++) {
            float x[MEMOI_ROW_GROUP], y[MEMOI_ROW_GROUP];
            memoi_group_widen(x, &a[p][i], add->a_type);
            if (has_b) memoi_group_widen(y, &b[p][i], add->b_type);
            MEMO_ROW_UNROLL
            for (int k = 0; k < MEMOI_ROW_GROUP && has_b; k++) x[k] += y[k];
            memoi_group_store_at(add->to, add->to_type, add->to_stride, row, pairs[p].column[i], x,
                                 pairs[p].n[i]);
        }
    }
}

MEMO_INLINE int64_t memo_add_items(const memo_add_desc* add) {
    return add->n_rows * memoi_add_row_items(add, 1);
}
MEMO_INLINE void memo_add_item(const memo_add_desc* add, int64_t item) {
    memoi_add_item(add, item, 1, 1);
}
MEMO_INLINE int64_t memo_cast_items(const memo_add_desc* cast) {
    return cast->n_rows * memoi_add_row_items(cast, cast->to_type == MEMO_TYPE_F32 ? 2 : 1);
}
MEMO_INLINE void memo_cast_item(const memo_add_desc* cast, int64_t item) {
    if (cast->to_type == MEMO_TYPE_F32)
        memoi_add_item(cast, item, 2, 0);
    else
        memoi_add_item(cast, item, 1, 0);
}

/* --- add packed --- */

MEMO_INLINE int64_t memoi_pack_pairs(const memo_pack_desc* pack, int t) {
    return memoi_n_shifted(pack->n_columns[t], memoi_row_shift(pack->rows_type) + 1);
}
MEMO_INLINE int64_t memo_add_packed_items(const memo_pack_desc* pack) {
    return pack->n_ranges ? pack->ends[pack->n_ranges - 1] *
                                (memoi_pack_pairs(pack, 0) + memoi_pack_pairs(pack, 1))
                          : 0;
}
/* An item of a row, which is a sum of its own. */
MEMO_INLINE void memo_add_packed_item(const memo_pack_desc* pack, int64_t item) {
    const int64_t n_first = pack->ends[pack->n_ranges - 1] * memoi_pack_pairs(pack, 0);
    const int t = item >= n_first; /* the tensor */
    const int64_t n = pack->n_columns[t];
    int64_t column, row, place;
    memo_add_desc add;
    int32_t k = 0; /* the first range that ends behind row */
    row = memoi_row_of(t ? item - n_first : item, memoi_pack_pairs(pack, t), &column);
    for (int32_t step = MEMO_PACK_MAX / 2; step; step /= 2)
        if (k + step < pack->n_ranges && pack->ends[k + step - 1] <= row) k += step;
    place = pack->begins[k] + row - (k ? pack->ends[k - 1] : 0);

    add.n_rows = 1;
    add.n_columns = add.to_stride = add.a_stride = add.b_stride = n;
    add.to = (char*)pack->rows[t] + place * n * memo_row_type_bytes(pack->rows_type);
    add.a = add.to;
    add.to_type = add.a_type = pack->rows_type;
    add.b = (char*)pack->packed[t] + row * n * memo_row_type_bytes(pack->packed_type);
    add.b_type = pack->packed_type;
    memo_add_item(&add, column);
}

/* --- row sums --- */

MEMO_INLINE float memo_row_sum_lane(const memo_add_desc* sums, int64_t row, int32_t lane) {
    const int64_t step = MEMO_ROW_LANES * MEMOI_ROW_GROUP;
    float sum = 0;
    for (int64_t column = (int64_t)lane * MEMOI_ROW_GROUP; column < sums->n_columns;
         column += 2 * step) {
        const memoi_row_pair pair = memoi_row_pair_at(sums->n_columns, column, column + step, 3);
        memoi_row_group a[2], b[2];
        memoi_pair_load(a, sums->a, sums->a_type, sums->a_stride, row, &pair);
        memoi_pair_load(b, sums->b, sums->b_type, sums->b_stride, row, &pair);
        MEMO_ROW_UNROLL
        for (int i = 0; i < 2; i++) {
            float x[MEMOI_ROW_GROUP], y[MEMOI_ROW_GROUP];
            if (pair.n[i] <= 0) continue;
            memoi_group_widen(x, &a[i], sums->a_type);
            memoi_group_widen(y, &b[i], sums->b_type);
            MEMO_ROW_UNROLL
            for (int k = 0; k < MEMOI_ROW_GROUP; k++) sum = fmaf(x[k], y[k], sum);
        }
    }
    return sum;
}
MEMO_INLINE void memo_row_sum_end(const memo_add_desc* sums, int64_t row, float sum) {
    ((float*)sums->to)[row] = sum;
}

/* --- cross-entropy --- */

/* Adds the first n numbers of a group.  label: the place of the label in the group, if the label is
 * there. */
MEMO_INLINE memo_softmax_sum memoi_softmax_group(const memo_cross_entropy_desc* entropy,
                                                 memo_softmax_sum to, const memoi_row_group* group,
                                                 int32_t n, int64_t label) {
    float x[MEMOI_ROW_GROUP];
    memoi_group_widen(x, group, entropy->type);
    MEMO_ROW_UNROLL
    for (int k = 0; k < MEMOI_ROW_GROUP; k++)
        x[k] = k < n && k != label ? memo_softcap(entropy, x[k]) : -INFINITY;
    return memo_softmax_add(to, x, MEMOI_ROW_GROUP);
}

/* A lane takes a row in pairs of groups.  A pair is plain if both groups are whole and aligned and
 * lack the label, and if there is no softcap.  Nearly all pairs are plain, and a loop of their own
 * leaves out every test of the others. */
typedef struct memoi_loss_walk {
    const char* logits; /* the row's */
    int64_t column;     /* the lane's next pair */
    int64_t step;       /* between the groups of a pair; pairs are two steps apart */
    int64_t plain_end;  /* no pair from here on is plain */
    int64_t label_pair; /* the lane's pair with the label; plain_end: none */
} memoi_loss_walk;

MEMO_INLINE memoi_loss_walk memoi_loss_walk_of(const memo_cross_entropy_desc* entropy, int64_t row,
                                               int64_t lane, int64_t label) {
    const int shift = memoi_row_shift(entropy->type);
    const int64_t group = label >> shift;
    memoi_loss_walk walk;
    walk.logits =
        (const char*)entropy->logits + row * entropy->stride * memo_row_type_bytes(entropy->type);
    walk.column = lane << shift;
    walk.step = (int64_t)MEMO_LOSS_LANES << shift;
    walk.plain_end = entropy->n_columns - walk.step - ((int64_t)1 << shift) + 1;
    if (entropy->softcap > 0 || !memoi_row_words(walk.logits, entropy->type, 1 << shift))
        walk.plain_end = 0;
    walk.label_pair = walk.plain_end;
    if (label >= 0 && group % MEMO_LOSS_LANES == lane)
        walk.label_pair = group / (2 * MEMO_LOSS_LANES) * 2 * walk.step + walk.column;
    return walk;
}
/* Where the plain pairs at hand end. */
MEMO_INLINE int64_t memoi_loss_walk_end(const memoi_loss_walk* walk) {
    return walk->column <= walk->label_pair && walk->label_pair < walk->plain_end ? walk->label_pair
                                                                                  : walk->plain_end;
}

/* Plain pairs are loaded one ahead, so that the loads of a pair are under way while the pair before
 * computes.  type is a constant of the caller. */
typedef struct memoi_plain_pair {
    uint32_t words[2][4];
} memoi_plain_pair;
MEMO_INLINE memoi_plain_pair memoi_plain_load(const memoi_loss_walk* walk, int64_t column,
                                              memo_type type) {
    const char* from = walk->logits + column * memo_row_type_bytes(type);
    memoi_plain_pair pair;
    memoi_words_load(pair.words[0], from, 4);
    memoi_words_load(pair.words[1], from + walk->step * memo_row_type_bytes(type), 4);
    return pair;
}
/* The pair after the current one; the current one again if that is the last before end. */
MEMO_INLINE memoi_plain_pair memoi_plain_next(const memoi_loss_walk* walk, int64_t end,
                                              memo_type type) {
    const int64_t next = walk->column + 2 * walk->step;
    return memoi_plain_load(walk, next < end ? next : walk->column, type);
}
/* The 4 or 8 numbers of a group. */
MEMO_INLINE void memoi_plain_widen(float* x, const uint32_t* words, memo_type type) {
    MEMO_ROW_UNROLL
    for (int k = 0; k < 4; k++) {
        if (type == MEMO_TYPE_F32)
            x[k] = memob_f32_from_bits(words[k]);
        else
            memoi_pair_widen(x + 2 * k, words[k], type);
    }
}
/* Gives the groups of the plain pairs at hand to a function. */
template <typename Plain>
MEMO_INLINE void memoi_loss_plain(memoi_loss_walk* walk, memo_type type, Plain plain) {
    const int64_t end = memoi_loss_walk_end(walk);
    memoi_plain_pair pair, next;
    if (walk->column >= end) return;
    pair = memoi_plain_load(walk, walk->column, type);
    for (; walk->column < end; walk->column += 2 * walk->step) {
        next = memoi_plain_next(walk, end, type); /* before a store, which may replace logits */
        MEMO_ROW_UNROLL
        for (int i = 0; i < 2; i++) {
            float x[MEMOI_ROW_GROUP];
            memoi_plain_widen(x, pair.words[i], type);
            plain(x, type, walk->column + i * walk->step);
        }
        pair = next;
    }
}

/* Walks through a row.  plain(x, type, column) gets the numbers of a plain group; other(group,
 * column, n) gets the first n of another group, 0 or below beyond the row. */
template <typename Plain, typename Other>
MEMO_INLINE void memoi_loss_walk_row(const memo_cross_entropy_desc* entropy, int64_t row,
                                     memoi_loss_walk* walk, Plain plain, Other other) {
    for (; walk->column < entropy->n_columns; walk->column += 2 * walk->step) {
        switch (entropy->type) {
        case MEMO_TYPE_BF16: memoi_loss_plain(walk, MEMO_TYPE_BF16, plain); break;
        case MEMO_TYPE_F16: memoi_loss_plain(walk, MEMO_TYPE_F16, plain); break;
        default: memoi_loss_plain(walk, MEMO_TYPE_F32, plain);
        }
        const memoi_row_pair pair =
            memoi_row_pair_at(entropy->n_columns, walk->column, walk->column + walk->step,
                              memoi_row_shift(entropy->type));
        memoi_row_group groups[2];
        memoi_pair_load(groups, entropy->logits, entropy->type, entropy->stride, row, &pair);
        MEMO_ROW_UNROLL
        for (int i = 0; i < 2; i++) other(groups[i], pair.column[i], pair.n[i]);
    }
}

MEMO_INLINE memo_softmax_sum memo_softmax_lane(const memo_cross_entropy_desc* entropy, int64_t row,
                                               int32_t lane) {
    const int64_t label = memo_label_column(entropy, row);
    memoi_loss_walk walk = memoi_loss_walk_of(entropy, row, lane, label);
    memo_softmax_sum sum = memo_softmax_none();
    memoi_loss_walk_row(
        entropy, row, &walk,
        [&](const float* x, memo_type type, int64_t) {
            sum = memo_softmax_add(sum, x, 1 << memoi_row_shift(type));
        },
        [&](const memoi_row_group& group, int64_t column, int32_t n) {
            sum = memoi_softmax_group(entropy, sum, &group, n, label - column);
        });
    return sum;
}

/* The end of softmax_parts for a row, with the sum of all lanes. */
MEMO_INLINE void memo_softmax_end(const memo_cross_entropy_desc* entropy, int64_t row,
                                  memo_softmax_sum sum) {
    float* part = entropy->parts + (entropy->part * entropy->n_rows + row) * MEMO_LOSS_NUMBERS;
    int64_t column = memo_label_column(entropy, row);
    part[0] = sum.max;
    part[1] = sum.sum;
    part[2] = -INFINITY;
    if (column >= 0) {
        memoi_row_group group;
        float x[MEMOI_ROW_GROUP];
        memoi_group_load_at(&group, entropy->logits, entropy->type, entropy->stride, row, column,
                            1);
        memoi_group_widen(x, &group, entropy->type);
        part[2] = memo_softcap(entropy, x[0]);
    }
}

MEMO_INLINE void memoi_entropy_group(const memo_cross_entropy_desc* entropy, int64_t row,
                                     int64_t column, int64_t label, const memo_entropy_row* r,
                                     const memoi_row_group* group, int32_t n) {
    float x[MEMOI_ROW_GROUP];
    memoi_group_widen(x, group, entropy->type);
    MEMO_ROW_UNROLL
    for (int k = 0; k < MEMOI_ROW_GROUP; k++)
        x[k] = memo_entropy_gradient(entropy, r, column + k == label, x[k]);
    if (entropy->labels[row] < 0 || entropy->labels[row] >= entropy->vocabulary) {
        MEMO_ROW_UNROLL
        for (int k = 0; k < MEMOI_ROW_GROUP; k++) x[k] = 0;
    }
    memoi_group_store_at(entropy->d_logits, entropy->type, entropy->stride, row, column, x, n);
}

MEMO_INLINE void memoi_entropy_plain(const memo_cross_entropy_desc* entropy,
                                     const memo_entropy_row* r, float* x, memo_type type,
                                     void* to) {
    memoi_row_group group;
    MEMO_ROW_UNROLL
    for (int k = 0; k < 1 << memoi_row_shift(type); k++)
        x[k] = entropy->scale * (r->factor * memo_loss_exp(x[k] - r->max));
    MEMO_ROW_UNROLL
    for (int k = 0; k < 4; k++)
        group.words[k] =
            type == MEMO_TYPE_F32 ? memob_f32_bits(x[k]) : memoi_pair_narrow(x + 2 * k, type);
    memoi_words_store(to, group.words, 4);
}

/* A row and lane: lanes of a row need nothing from each other.  Lane 0 writes the loss. */
MEMO_INLINE void memo_entropy_item(const memo_cross_entropy_desc* entropy, int64_t item) {
    const int64_t row = item / MEMO_LOSS_LANES, lane = item % MEMO_LOSS_LANES;
    const int shift = memoi_row_shift(entropy->type);
    const int64_t label = memo_label_column(entropy, row);
    const int has_label = entropy->labels[row] >= 0 && entropy->labels[row] < entropy->vocabulary;
    const memo_entropy_row r = memo_entropy_row_of(entropy, row);
    memoi_loss_walk walk = memoi_loss_walk_of(entropy, row, lane, label);
    char* to =
        (char*)entropy->d_logits + row * entropy->stride * memo_row_type_bytes(entropy->type);
    if (lane == 0) entropy->losses[row] = has_label ? r.loss : NAN;
    if (lane == 0 && entropy->labels[row] < 0) entropy->losses[row] = 0;
    if (!entropy->d_logits) return;

    /* A row without a gradient is no plain one. */
    if (!has_label || !memoi_row_words(to, entropy->type, 1 << shift)) walk.plain_end = 0;
    memoi_loss_walk_row(
        entropy, row, &walk,
        [&](float* x, memo_type type, int64_t column) {
            memoi_entropy_plain(entropy, &r, x, type, to + column * memo_row_type_bytes(type));
        },
        [&](const memoi_row_group& group, int64_t column, int32_t n) {
            if (n > 0) memoi_entropy_group(entropy, row, column, label, &r, &group, n);
        });
}

/* --- attention sinks and reduce --- */

/* The work of one lane on a row and head (place = row * n_heads + head), whose LSE is still that of
 * the keys. */
MEMO_INLINE void memo_sink_lane(const memo_sinks_desc* sinks, int64_t place, int32_t lane) {
    memo_merge_weights weights =
        memo_merge_weights_of(sinks->lse[place], sinks->sinks[place % sinks->n_heads]);
    float* out = sinks->out + place * sinks->n_columns;
    for (int64_t column = lane; column < sinks->n_columns; column += MEMO_ROW_LANES)
        out[column] *= weights.out;
}
/* The row's LSE, when every lane is done. */
MEMO_INLINE void memo_sink_end(const memo_sinks_desc* sinks, int64_t place) {
    sinks->lse[place] = memo_merge_lse(sinks->lse[place], sinks->sinks[place % sinks->n_heads]);
}
MEMO_INLINE void memo_reduce_item(const memo_reduce_desc* desc, int64_t i) {
    memo_reduce_elements(desc->to, i, desc->from, desc->n_from, i, 1, desc->type, desc->reduction);
}
#endif /* MEMO_SP_H */

/* ---- >>row kernels ------------------------------------------------------------------------------
 * Knows: grids.  Knows nothing of the arithmetic. */
#ifdef MEMO_SP_H

#define MEMOI_CUDA_THREADS 256

/* Enough threads to fill the GPU several times, not more than there are items. */
MEMOI memo_status memoi_cuda_grid(int64_t n_items, int64_t items_per_block, unsigned* n_blocks,
                                  memo_error* error) {
    int ordinal = 0, n_processors = 0;
    int64_t wanted = n_items / items_per_block + (n_items % items_per_block != 0), most;
    memo_status status = MEMOI_CUDA_CALL(cudaGetDevice, (&ordinal), error);
    if (!status)
        status = MEMOI_CUDA_CALL(cudaDeviceGetAttribute,
                                 (&n_processors, cudaDevAttrMultiProcessorCount, ordinal), error);
    most = (int64_t)n_processors * 32;
    *n_blocks = (unsigned)(wanted < most ? wanted : most);
    return status;
}

/* n_blocks at a time, which bounds the registers: 64 for four, 84 for three. */
#define MEMOI_CUDA_ITEMS(name, n_blocks, desc_type, item_function)                                 \
    static __global__ void __launch_bounds__(MEMOI_CUDA_THREADS, n_blocks)                         \
        memoi_cuda_##name##_kernel(const __grid_constant__ desc_type desc, int64_t n_items) {      \
        int64_t item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;                             \
        for (; item < n_items; item += (int64_t)gridDim.x * blockDim.x)                            \
            item_function(&desc, item);                                                            \
    }

MEMOI_CUDA_ITEMS(add, 4, memo_add_desc, memo_add_item)
MEMOI_CUDA_ITEMS(cast, 3, memo_add_desc, memo_cast_item) /* with four it would spill */
MEMOI_CUDA_ITEMS(reduce, 4, memo_reduce_desc, memo_reduce_item)
MEMOI_CUDA_ITEMS(add_packed, 4, memo_pack_desc, memo_add_packed_item)
MEMOI_CUDA_ITEMS(cross_entropy, 3, memo_cross_entropy_desc, memo_entropy_item) /* and this */

/* n_lanes threads share a row, so a warp has several.  Its threads stay together: all call the
 * kernel's function of a row, which has_row tells from a place behind the last row.  Four blocks at
 * a time; without the bound the compiler uses registers for three. */
#define MEMOI_CUDA_ROWS(name, desc_type, n_lanes)                                                  \
    static __global__ void __launch_bounds__(MEMOI_CUDA_THREADS, 4)                                \
        memoi_cuda_##name##_kernel(const __grid_constant__ desc_type desc, int64_t n_rows) {       \
        const int64_t each = 32 / (n_lanes); /* rows of a warp */                                  \
        const int32_t lane = (int32_t)(threadIdx.x % (n_lanes));                                   \
        int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32 * each;              \
        for (; first < n_rows; first += (int64_t)gridDim.x * blockDim.x / 32 * each) {             \
            const int64_t row = first + threadIdx.x % 32 / (n_lanes);                              \
            memoi_cuda_##name##_row(&desc, row, lane, row < n_rows);                               \
        }                                                                                          \
    }

/* The lanes of a row, and then its end: all lanes have read the LSE that lane 0 replaces. */
#define MEMOI_CUDA_LANES(name, desc_type, lane_of, end)                                            \
    static __device__ void memoi_cuda_##name##_row(const desc_type* desc, int64_t row,             \
                                                   int32_t lane, bool has_row) {                   \
        if (has_row) lane_of(desc, row, lane);                                                     \
        __syncwarp();                                                                              \
        if (has_row && lane == 0) end(desc, row);                                                  \
    }                                                                                              \
    MEMOI_CUDA_ROWS(name, desc_type, MEMO_ROW_LANES)
MEMOI_CUDA_LANES(merge, memo_merge_desc, memo_merge_lane, memo_merge_end)
MEMOI_CUDA_LANES(sinks, memo_sinks_desc, memo_sink_lane, memo_sink_end)

/* Shuffles move 32 bits. */
template <typename Value>
static __device__ Value memoi_cuda_shuffle(Value value, int apart, int n_lanes) {
    float words[sizeof value / 4];
    memcpy(words, &value, sizeof value);
#ifdef __CUDA_ARCH__ /* host compilers do not know it */
#pragma unroll
#endif
    for (int k = 0; k < (int)(sizeof value / 4); k++)
        words[k] = __shfl_xor_sync(0xffffffffu, words[k], apart, n_lanes);
    memcpy(&value, words, sizeof value);
    return value;
}

/* The lanes of a row compute values, which are joined in a fixed order. */
#define MEMOI_CUDA_JOINS(name, desc_type, n_lanes, value_type, lane_of, join, end)                 \
    static __device__ void memoi_cuda_##name##_row(const desc_type* desc, int64_t row,             \
                                                   int32_t lane, bool has_row) {                   \
        value_type value = value_type();                                                           \
        if (has_row) value = lane_of(desc, row, lane);                                             \
        for (int apart = (n_lanes) / 2; apart > 0; apart /= 2)                                     \
            value = join(value, memoi_cuda_shuffle(value, apart, n_lanes));                        \
        if (has_row && lane == 0) end(desc, row, value);                                           \
    }                                                                                              \
    MEMOI_CUDA_ROWS(name, desc_type, n_lanes)
#define MEMOI_CUDA_ADD(a, b) ((a) + (b))
MEMOI_CUDA_JOINS(sums, memo_add_desc, MEMO_ROW_LANES, float, memo_row_sum_lane, MEMOI_CUDA_ADD,
                 memo_row_sum_end)
MEMOI_CUDA_JOINS(softmax_parts, memo_cross_entropy_desc, MEMO_LOSS_LANES, memo_softmax_sum,
                 memo_softmax_lane, memo_softmax_join, memo_softmax_end)
MEMOI_CUDA_JOINS(loss_sums, memo_cross_entropy_desc, MEMO_LOSS_LANES, double, memo_loss_lane,
                 MEMOI_CUDA_ADD, memo_loss_end)
MEMOI_CUDA_JOINS(sink_sums, memo_sinks_desc, MEMO_LOSS_LANES, double, memo_sink_sum_lane,
                 MEMOI_CUDA_ADD, memo_sink_sum_end)

/* kernel<<<n_blocks, MEMOI_CUDA_THREADS, 0, stream>>>(desc, n_items) for the items of a resolved
 * desc, but returns only its own error, not an earlier one.  No grid if there are none. */
template <typename Desc>
static memo_status memoi_cuda_enqueue(void (*kernel)(Desc, int64_t), memo_stream stream,
                                      const void* desc, int64_t n_items, int64_t items_per_block,
                                      memo_error* error) {
    cudaLaunchConfig_t config = {};
    unsigned n_blocks = 0;
    memo_status status;
    if (n_items == 0) return MEMO_STATUS_OK;
    status = memoi_cuda_grid(n_items, items_per_block, &n_blocks, error);
    if (status) return status;
    config.gridDim = dim3(n_blocks, 1, 1);
    config.blockDim = dim3(MEMOI_CUDA_THREADS, 1, 1);
    config.stream = memo_cuda_stream(stream);
    return memo_cuda_check_at(cudaLaunchKernelEx(&config, kernel, *(const Desc*)desc, n_items),
                              "cudaLaunchKernelEx", __FILE__, __LINE__, error);
}

MEMOI memo_status memoi_cuda_row_kernel_here(void* context, memo_stream stream,
                                             const memo_row_call* call, memo_error* error) {
    const memo_row_desc& d = *(const memo_row_desc*)call->desc;
    const int64_t items = MEMOI_CUDA_THREADS, rows = MEMOI_CUDA_THREADS / MEMO_ROW_LANES,
                  warps = MEMOI_CUDA_THREADS / MEMO_LOSS_LANES;
    (void)context;
    switch (call->kind) {
#define MEMOI_CUDA_CASE(kind, kernel, n_items, per_block)                                          \
    case kind:                                                                                     \
        return memoi_cuda_enqueue(memoi_cuda_##kernel##_kernel, stream, &d, n_items, per_block,    \
                                  error);
        MEMOI_CUDA_CASE(MEMO_ROW_MERGE, merge, d.merge.n_batches * d.merge.n_rows, rows)
        MEMOI_CUDA_CASE(MEMO_ROW_ADD, add, memo_add_items(&d.add), items)
        MEMOI_CUDA_CASE(MEMO_ROW_SUMS, sums, d.add.n_rows, rows)
        MEMOI_CUDA_CASE(MEMO_ROW_CAST, cast, memo_cast_items(&d.add), items)
        MEMOI_CUDA_CASE(MEMO_ROW_SOFTMAX_PARTS, softmax_parts, d.entropy.n_rows, warps)
        MEMOI_CUDA_CASE(MEMO_ROW_CROSS_ENTROPY, cross_entropy, d.entropy.n_rows * MEMO_LOSS_LANES,
                        items)
        MEMOI_CUDA_CASE(MEMO_ROW_LOSS_SUMS, loss_sums,
                        d.entropy.n_rows > 0 && d.entropy.sums ? 3 : 0, warps)
        MEMOI_CUDA_CASE(MEMO_ROW_SINKS, sinks, d.sinks.n_rows * d.sinks.n_heads, rows)
        MEMOI_CUDA_CASE(MEMO_ROW_SINK_SUMS, sink_sums, d.sinks.n_heads, warps)
        MEMOI_CUDA_CASE(MEMO_ROW_REDUCE, reduce, d.reduce.count, items)
        MEMOI_CUDA_CASE(MEMO_ROW_ADD_PACKED, add_packed, memo_add_packed_items(&d.pack), items)
    case MEMO_N_ROW_KINDS: break;
    }
    return MEMOB_INVALID(error, "row kernel: not a memo_row_kind (%d)", (int)call->kind);
}

MEMOI memo_status memoi_cuda_row_kernel(void* context, memo_stream stream,
                                        const memo_row_call* call, memo_error* error) {
    memoi_cuda_on on((memoi_cuda*)context, error);
    return on.status ? on.status : memoi_cuda_row_kernel_here(context, stream, call, error);
}
#endif /* MEMO_SP_H */

/* ---- >>inspect ----------------------------------------------------------------------------------
 * Knows: what checked sessions look for in rows of bytes.  Knows nothing of sessions. */
#if defined(__CUDACC__) || defined(EMULATED_GRID_H)
#define MEMOI_CUDA_HAS_INSPECT

/* A word at `at` of a row of n bytes, with zeros behind the row.  aligned: rows begin at multiples
 * of 8. */
static __device__ unsigned long long memoi_cuda_word(const unsigned char* row, int64_t at,
                                                     int64_t n, int aligned) {
    unsigned long long word = 0;
    if (aligned && at + 8 <= n) return *(const unsigned long long*)(row + at);
    for (int i = 0; i < 8 && at + i < n; i++) word |= (unsigned long long)row[at + i] << 8 * i;
    return word;
}

/* As memob_row_content in memo.h.  A thread has a row. */
static __device__ memo_row_content memoi_cuda_row_content(const unsigned char* row, int64_t n) {
    const int phase = (int)((unsigned long long)row % 8), aligned = phase == 0;
    const unsigned long long poison =
        phase ? MEMOB_POISON >> 8 * phase | MEMOB_POISON << (64 - 8 * phase) : MEMOB_POISON;
    unsigned long long hash = 14695981039346656037ull ^ (unsigned long long)n;
    memo_row_content found = {0, n, 0};
    int64_t n_of_poison = 0;
    for (int64_t at = 0; at < n; at += 8) {
        const unsigned long long word = memoi_cuda_word(row, at, n, aligned);
        hash ^= word;
        hash = (hash << 29 | hash >> 35) * 0x9e3779b97f4a7c15ull;
        for (int i = 0; i < 8 && at + i < n && found.n_poisoned == n; i++)
            if ((word >> 8 * i & 255) != (poison >> 8 * i & 255)) found.n_poisoned = at + i;

        /* Two numbers of 32 bits, without their signs. */
        for (int half = 0; half < 2 && at + 4 * half + 4 <= n; half++) {
            const unsigned number = (unsigned)(word >> 32 * half) & 0x7fffffff;
            n_of_poison += number == 0x7fe07da0 || number == 0x7ff97da0 ||
                           (number == 0x7ff17da0 && (phase + 4 * half) % 8 == 0);
        }
    }
    found.digest = hash ^ hash >> 32;
    found.is_of_poison = n_of_poison > 1;
    return found;
}

static __global__ void memoi_cuda_inspect_kernel(const unsigned char* bytes, int64_t row_bytes,
                                                 int64_t n_rows, memo_row_content* found) {
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; row < n_rows; row += (int64_t)gridDim.x * blockDim.x)
        found[row] = memoi_cuda_row_content(bytes + row * row_bytes, row_bytes);
}

MEMOI memo_status memoi_cuda_inspect(void* context, memo_stream stream, const void* bytes,
                                     int64_t row_bytes, int64_t n_rows, memo_row_content* found,
                                     memo_error* error) {
    memoi_cuda_on on((memoi_cuda*)context, error);
    const int64_t n_blocks = (n_rows + 127) / 128;
    cudaLaunchConfig_t config = {};
    if (on.status || n_rows <= 0) return on.status;
    config.gridDim = dim3((unsigned)(n_blocks < 65536 ? n_blocks : 65536), 1, 1);
    config.blockDim = dim3(128, 1, 1);
    config.stream = memo_cuda_stream(stream);
    return MEMOI_CUDA_CALL(
        cudaLaunchKernelEx,
        (&config, memoi_cuda_inspect_kernel, (const unsigned char*)bytes, row_bytes, n_rows, found),
        error);
}
#endif

/* ---- >>device life ------------------------------------------------------------------------------
 * Knows: what a device takes from CUDA, and in which order it gives it back.  Knows nothing of what
 * runs on it.
 *
 * 1. A device that ends has given back all device memory that it counted, and all pinned memory but
 *    the kept. */

MEMOI memo_status memoi_cuda_check_desc(const memo_cuda_device_desc* desc, memo_error* error) {
    if (!desc) return MEMOB_INVALID(error, "memo_cuda_device_desc: NULL; pass a desc");
    const memob_bounds fields[] = {
        {"ordinal", desc->ordinal, 0, INT32_MAX},
        {"host_threads", desc->host_threads, 0, INT32_MAX},
        {"local_ranks", desc->local_ranks, 0, INT32_MAX},
        {"host_limit", (int64_t)desc->host_limit, 0, MEMO_N_CUDA_HOST_LIMITS - 1},
        {"device_memory_bytes", desc->device_memory_bytes, 0, MEMOB_BYTES_MAX},
        {"host_memory_bytes", desc->host_memory_bytes, 0, MEMOB_BYTES_MAX},
        {"phantom_bytes", desc->phantom_bytes, 0, MEMOB_BYTES_MAX / 2},
        {"phantom_chunk_bytes", desc->phantom_chunk_bytes, 0, MEMOB_BYTES_MAX / 2}};
    return MEMOB_CHECK_FIELDS("memo_cuda_device_desc", fields, error);
}

/* Properties of the GPU that change what calls do. */
MEMOI memo_status memoi_cuda_read_attributes(memoi_cuda* cuda, memo_error* error) {
    const char* connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int max_pitch = 0;
    memo_status status = MEMOI_CUDA_CALL(
        cudaDeviceGetAttribute, (&max_pitch, cudaDevAttrMaxPitch, cuda->desc.ordinal), error);
    cuda->max_pitch_bytes = (size_t)max_pitch;
    if (!status)
        status = MEMOI_CUDA_CALL(
            cudaDeviceGetAttribute,
            (&cuda->can_register, cudaDevAttrCanUseHostPointerForRegisteredMem, cuda->desc.ordinal),
            error);
    cuda->n_queues = connections && atoi(connections) > 0 ? atoi(connections) : 8;
    if (cuda->n_queues == 1)
        memoi_cuda_log(&cuda->desc.log,
                       "CUDA_DEVICE_MAX_CONNECTIONS is 1: all streams share one hardware queue, "
                       "and copies overlap less with computation; 8 or more is better");
    return status;
}

/* What the device takes from CUDA; memo_cuda_device_destroy gives back any part of it. */
MEMOI memo_status memoi_cuda_acquire(memoi_cuda* cuda, memo_error* error) {
    memo_status status = memoi_cuda_driver_open(&cuda->driver, error);
    if (!status)
        status = MEMOI_CUDA_DRIVER(&cuda->driver, retain, cuDevicePrimaryCtxRetain,
                                   (&cuda->context, cuda->desc.ordinal), error);
    if (status) return status;
    memoi_cuda_on on(cuda, error);
    status = on.status;
    if (!status) status = memoi_cuda_read_attributes(cuda, error);
    if (!status)
        status = MEMOI_CUDA_CALL(cudaStreamCreateWithFlags, (&cuda->probe, cudaStreamNonBlocking),
                                 error);
    if (!status) status = memoi_cuda_prepare_worker(cuda, error);
    if (!status && cuda->desc.phantom_bytes) status = memoi_cuda_phantom_make(cuda, error);
    return status;
}

MEMOI void memoi_cuda_fill_table(memoi_cuda* cuda) {
    memo_device* table = &cuda->table;
    table->struct_bytes = (int64_t)sizeof *table;
    table->name = cuda->phantom ? "cuda phantom" : "cuda";
    table->context = cuda;

#define MEMOI_CUDA_SET(function) table->function = memoi_cuda_##function;
    MEMOB_DEVICE_FUNCTIONS(MEMOI_CUDA_SET)
    MEMOI_CUDA_SET(event_create_untimed)
    MEMOI_CUDA_SET(launch_host)
#ifdef MEMO_SP_H
    MEMOI_CUDA_SET(row_kernel)
#endif
#ifdef MEMOI_CUDA_HAS_INSPECT
    MEMOI_CUDA_SET(inspect)
#endif
}

memo_status memo_cuda_device_create(const memo_cuda_device_desc* desc, memo_device** device,
                                    memo_error* error) {
    MEMOB_REFUSE_NULL(error, "device", device);
    memoi_cuda* cuda;
    memo_status status = memoi_cuda_check_desc(desc, error);
    int n_devices = 0;
    *device = NULL;
    if (!status) status = MEMOI_CUDA_CALL(cudaGetDeviceCount, (&n_devices), error);
    if (status) return status;
    if (desc->ordinal >= n_devices)
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "memo_cuda_device_desc.ordinal: no such GPU (%d); CUDA has %d",
                              (int)desc->ordinal, n_devices);

    /* What failed half-way is given back by destroy. */
    cuda = (memoi_cuda*)memob_calloc(1, sizeof *cuda);
    if (!cuda) return memob_no_memory(error, "a CUDA device");
    cuda->magic = MEMOI_CUDA_MAGIC;
    cuda->desc = *desc;
    cuda->table.context = cuda;
    pthread_mutex_init(&cuda->mutex, NULL);
    pthread_cond_init(&cuda->has_work, NULL);
    status = memoi_cuda_acquire(cuda, error);
    memoi_cuda_fill_table(cuda);
    if (status) {
        memo_cuda_device_destroy(&cuda->table);
        return status;
    }
    *device = &cuda->table;
    return MEMO_STATUS_OK;
}

/* Also of a device around it, such as a recorder's.  NULL: memo_cuda_device_create made none.  A
 * context is only looked at if some function of the table is of this device. */
MEMOI memoi_cuda* memoi_cuda_of(const memo_device* device) {
#define MEMOI_CUDA_HAS(function) || device->function == memoi_cuda_##function
    for (; device; device = MEMO_DEVICE_HAS(device, inner) ? device->inner : NULL) {
        const int is_cuda = 0 MEMOB_DEVICE_NEEDS(MEMOI_CUDA_HAS);
        memoi_cuda* cuda = is_cuda ? (memoi_cuda*)device->context : NULL;
        if (cuda && cuda->magic == MEMOI_CUDA_MAGIC) return cuda;
    }
    return NULL;
}

/* What copies may still use stays mapped until the process ends. */
MEMOI void memoi_cuda_release_host_blocks(memoi_cuda* cuda) {
    memoi_cuda_block *block, *left = cuda->host_blocks;
    int64_t kept_bytes = 0;
    char kept[32], message[160];
    cuda->host_blocks = NULL;
    while ((block = left) != NULL) {
        left = block->next;
        (void)memoi_cuda_release_host(cuda, block, NULL);
    }

    while ((block = cuda->host_blocks) != NULL) {
        cuda->host_blocks = block->next;
        kept_bytes += block->mapped_bytes;
        MEMO_FREE(block);
    }
    MEMO_ASSERT(kept_bytes || cuda->stats.host_bytes == 0); /* 1 */
    if (!kept_bytes) return;
    snprintf(message, sizeof message,
             "pinned memory: %s stay mapped, because the device could not be waited for",
             memob_bytes_text(kept, (double)kept_bytes));
    memoi_cuda_log(&cuda->desc.log, message);
}

void memo_cuda_device_destroy(memo_device* device) {
    memoi_cuda* cuda = memoi_cuda_of(device);
    memoi_cuda_block* block;
    if (!cuda || device->context != cuda) return;
    if (cuda->context) {
        memoi_cuda_on on(cuda, NULL);
        /* Nothing uses the memory any more, unless CUDA refuses all calls after an error. */
        if (cuda->probe) (void)MEMOI_CUDA_CALL(cudaDeviceSynchronize, (), NULL);
        memoi_cuda_end_worker(cuda);
        while ((block = cuda->device_blocks) != NULL) {
            cuda->device_blocks = block->next;
            (void)memoi_cuda_release_device(cuda, block, NULL);
        }
        MEMO_ASSERT(cuda->stats.device_bytes == 0); /* 1 */
        memoi_cuda_release_host_blocks(cuda);
        memoi_cuda_phantom_destroy(cuda->phantom);
        if (cuda->probe) (void)MEMOI_CUDA_CALL(cudaStreamDestroy, (cuda->probe), NULL);
    }

    if (cuda->context) (void)cuda->driver.release_context(cuda->desc.ordinal);
    pthread_mutex_destroy(&cuda->mutex);
    pthread_cond_destroy(&cuda->has_work);
    cuda->magic = 0;
    MEMO_FREE(cuda);
}

void memo_cuda_device_fail(void* device, const memo_error* why) {
    memoi_cuda* cuda = memoi_cuda_of((const memo_device*)device);
    if (cuda) memob_failure_keep(&cuda->failure, why->status, "%.400s", why->message);
}

memo_cuda_device_stats memo_cuda_device_get_stats(const memo_device* device) {
    const memoi_cuda* cuda = memoi_cuda_of(device);
    return cuda ? cuda->stats : MEMO_ZERO(memo_cuda_device_stats);
}

#ifdef MEMO_CUDA_NCCL
#include <nccl.h>
#include <pthread.h>

/* ---- >>nccl back end ----------------------------------------------------------------------------
 * Knows: NCCL, the CUDA runtime.  Knows nothing of devices, attention or layouts.
 *
 * NCCL allows an abort only while no other thread is inside one of its calls, so communicators do
 * not block (NCCL 2.14): a call may still be in progress when it returns, and is polled.  One mutex
 * of the world, held for single calls, separates the caller from the watchdog.  Parts share NCCL's
 * resources with their world, which needs the same. */
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 0)
#error "memo_cuda.cuh: the NCCL back end needs NCCL 2.18 (ncclCommSplit)"
#endif

#define MEMOI_NCCL_MESSAGES 2048 /* NCCL's limit for a group */
#define MEMOI_NCCL_AGREED   16   /* labels under way, of different digests */
#define MEMOI_NCCL_DIGESTS  (2 * MEMO_LABEL_FIELDS)

/* The digests of a label and their complements.  All ranks have the same digests exactly if the
 * maxima over ranks are this rank's values.  NCCL keeps the maxima of all operations with this
 * label, so that no later operation hides a difference.  Lies in memory that the host and the GPU
 * share. */
typedef struct memoi_nccl_agreed {
    const char* const* fields; /* NULL: free */
    int32_t is_captured;       /* graphs use this memory, so it stays */
    int32_t own[MEMOI_NCCL_DIGESTS], maxima[MEMOI_NCCL_DIGESTS];
} memoi_nccl_agreed;

typedef struct memoi_nccl memoi_nccl;

typedef struct memoi_nccl_world {
    pthread_mutex_t mutex; /* of everything here and of NCCL's calls */
    pthread_t watchdog;
    int32_t is_ending;
    memoi_nccl* comms;        /* the world and its parts */
    memo_error failure;       /* status OK: none */
    memo_comm_nccl_desc desc; /* with the default time-outs; no name, host or id */
    char host[101];           /* "": none */
    int gpu;
    int32_t orders_by_events; /* NCCL does not order communicators itself */
    memoi_nccl* latest;       /* the communicator of the latest operation that was not captured */
} memoi_nccl_world;

struct memoi_nccl {
    memo_comm table;
    char name[64];
    memoi_nccl* next; /* of the world */
    memoi_nccl_world* world;
    ncclComm_t comm; /* NULL once aborted */
    ncclComm_t part; /* of a split: NCCL's thread sets it, until an abort has ended the thread */
    int64_t creation_bytes; /* taken from the GPU's free memory, which it is until then */
    void* barrier_word;
    memoi_nccl_agreed* agreed; /* MEMOI_NCCL_AGREED, and a last one that agrees with any */

    /* For the watchdog and for other communicators. */
    cudaEvent_t done;      /* recorded after each operation */
    double enqueued_s;     /* when `done` was recorded; 0: never */
    double wait_ends_at_s; /* the time-out of a wait; 0: nobody waits */

    memo_message_call messages[MEMOI_NCCL_MESSAGES]; /* of the open group */
};

/* Between two looks at a call in progress: most end within 0.2 ms, a missing peer takes long. */
MEMOI void memoi_nccl_nap(double waited_s) {
    if (waited_s < 5e-4)
        sched_yield();
    else
        memob_sleep_until(memob_now_ns() + (int64_t)(waited_s < 1e-2 ? waited_s * 1e8 : 1e6));
}

/* --- the meeting: all ranks get rank 0's unique id --- */

MEMOI memo_status memoi_nccl_environment_number(const char* name, int64_t* number,
                                                memo_error* error) {
    const char* text = getenv(name);
    char* end = NULL;
    if (!text)
        return MEMOB_INVALID(error,
                             "%s: not set in the environment; start with torchrun, set RANK, "
                             "WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or fill the desc",
                             name);
    *number = strtoll(text, &end, 10); /* too large: refused by its range */
    if (end != text && !*end) return MEMO_STATUS_OK;
    return MEMOB_INVALID(error, "%s: not a number in the environment ('%.100s')", name, text);
}

/* NCCL's own meeting.  The launcher itself listens on MASTER_PORT, so the next port is used. */
MEMOI memo_status memoi_nccl_name_meeting(int* is_named, memo_error* error) {
    const char* host = getenv("MASTER_ADDR");
    char address[300];
    int64_t port = 0;
    memo_status status;
    if (getenv("NCCL_COMM_ID")) return MEMO_STATUS_OK;
    if (!host)
        return MEMOB_INVALID(error,
                             "MASTER_ADDR: not set in the environment; set it to rank 0's address");
    status = memoi_nccl_environment_number("MASTER_PORT", &port, error);
    if (!status) status = memob_check_integer("environment", "MASTER_PORT", port, 1, 65534, error);
    if (status) return status;
    snprintf(address, sizeof address, strchr(host, ':') ? "[%.200s]:%d" : "%.200s:%d", host,
             (int)port + 1);
    setenv("NCCL_COMM_ID", address, 1);
    *is_named = 1;
    return MEMO_STATUS_OK;
}

/* All ranks get the same id.  *is_named: NCCL_COMM_ID is to be removed after joining. */
MEMOI memo_status memoi_nccl_share_id(const memo_comm_nccl_desc* desc, int32_t size,
                                      ncclUniqueId* id, int* is_named, memo_error* error) {
    ncclResult_t result;
    if (desc->unique_id) {
        memcpy(id, desc->unique_id, sizeof *id);
        return MEMO_STATUS_OK;
    }
    if (size > 1 && memoi_nccl_name_meeting(is_named, error)) return MEMO_STATUS_INVALID_ARGUMENT;
    result = ncclGetUniqueId(id);
    if (result == ncclSuccess) return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_COMM, "ncclGetUniqueId: %s; %.300s",
                          ncclGetErrorString(result), ncclGetLastError(NULL));
}

/* --- errors --- */

/* By memo_type; ncclBfloat16 is not in C before 2.24. */
static const ncclDataType_t memoi_nccl_types[] = {
    ncclFloat32, ncclFloat64, (ncclDataType_t)9, ncclFloat16, ncclInt32, ncclInt64, ncclUint8};
MEMOB_TABLE_OF(MEMO_N_TYPES, memoi_nccl_types);

/* The mutex is held.  After this nothing calls NCCL but the watchdog, which aborts the world. */
MEMOI memo_status memoi_nccl_fail(memoi_nccl* me, const char* what, const char* why,
                                  memo_error* error) {
    memoi_nccl_world* world = me->world;
    char rank[MEMO_RANK_TEXT];
    if (!world->failure.status) {
        memo_error_set(
            &world->failure, MEMO_STATUS_COMM, "%s on '%s', rank %s: %.340s", what, me->name,
            memo_comm_rank_text(rank, me->table.rank, world->desc.rank, world->host), why);
        /* First, so that a wait which the abort ends already finds it. */
        if (world->desc.failed) world->desc.failed(world->desc.failed_user, &world->failure);
    }
    return memo_error_set(error, world->failure.status, "%s", world->failure.message);
}

/* The mutex is held. */
MEMOI int memoi_nccl_is_usable(const memoi_nccl* me) {
    return me->comm && !me->world->failure.status;
}

/* The mutex is held.  OK with *is_done (optional) = 0: the call is still in progress. */
MEMOI memo_status memoi_nccl_look(memoi_nccl* me, const char* what, ncclResult_t result,
                                  int* is_done, memo_error* error) {
    ncclResult_t state = ncclSuccess;
    const char* detail;
    char why[400];
    if (me->world->failure.status) return memoi_nccl_fail(me, what, "", error);
    if (!me->comm) { /* not joined yet, or in no part */
        result = ncclSuccess;
    } else if (result == ncclSuccess || result == ncclInProgress) {
        result = ncclCommGetAsyncError(me->comm, &state);
        if (result == ncclSuccess) result = state;
    }
    if (is_done) *is_done = result == ncclSuccess;
    if (result == ncclSuccess || result == ncclInProgress) return MEMO_STATUS_OK;
    detail = ncclGetLastError(me->comm);
    snprintf(why, sizeof why, "%s; %.300s", ncclGetErrorString(result), detail ? detail : "");
    return memoi_nccl_fail(me, what, why, error);
}

/* Waits until a call that returned result is no longer in progress.  The mutex is not held. */
MEMOI memo_status memoi_nccl_finish(memoi_nccl* me, const char* what, ncclResult_t result,
                                    memo_error* error) {
    double start_s = memob_now_s();
    for (;;) {
        double waited_s = memob_now_s() - start_s;
        int is_done = 0;
        memo_status status;
        pthread_mutex_lock(&me->world->mutex);
        status = memoi_nccl_look(me, what, result, &is_done, error);
        if (!status && !is_done && waited_s > me->world->desc.join_timeout_s)
            status = memoi_nccl_fail(me, what, "its peers did not join within the time-out", error);
        pthread_mutex_unlock(&me->world->mutex);
        if (status || is_done) return status;
        memoi_nccl_nap(waited_s);
    }
}

MEMOI memo_status memoi_nccl_status(memo_comm* comm, memo_error* error) {
    memoi_nccl* me = (memoi_nccl*)comm->context;
    memo_status status;
    pthread_mutex_lock(&me->world->mutex);
    status = memoi_nccl_look(me, "an operation", ncclSuccess, NULL, error);
    pthread_mutex_unlock(&me->world->mutex);
    return status;
}

MEMOI void memoi_nccl_abort(memo_comm* comm) {
    memoi_nccl* me = (memoi_nccl*)comm->context;
    pthread_mutex_lock(&me->world->mutex);
    (void)memoi_nccl_fail(me, "abort", "called", NULL);
    pthread_mutex_unlock(&me->world->mutex);
}

/* --- the watchdog --- */

/* The mutex is held.  Do all ranks have the same digests?  The GPU may still write the maxima. */
MEMOI void memoi_nccl_watch_agreed(memoi_nccl* me) {
    for (int i = 0; i < MEMOI_NCCL_AGREED && !me->world->failure.status; i++) {
        const memoi_nccl_agreed* a = &me->agreed[i];
        for (int k = 0; k < MEMOI_NCCL_DIGESTS && a->fields; k++)
            if (__atomic_load_n(&a->maxima[k], __ATOMIC_RELAXED) != a->own[k]) {
                (void)memoi_nccl_fail(me, a->fields[k % MEMO_LABEL_FIELDS],
                                      "ranks disagree; all ranks must pass the same", NULL);
                break;
            }
    }
}

/* The mutex is held. */
MEMOI void memoi_nccl_watch(memoi_nccl* me) {
    double now_s = memob_now_s();
    memoi_nccl_watch_agreed(me);
    if (memoi_nccl_look(me, "an operation", ncclSuccess, NULL, NULL)) return;
    if (now_s - me->enqueued_s > me->world->desc.timeout_s &&
        cudaEventQuery(me->done) == cudaErrorNotReady) /* never recorded: success */
        (void)memoi_nccl_fail(me, "an operation", "it did not end within the time-out", NULL);
    else if (me->wait_ends_at_s > 0 && now_s > me->wait_ends_at_s)
        (void)memoi_nccl_fail(me, "synchronize", "the stream did not end within the time-out",
                              NULL);
}

/* The mutex is held, but not while NCCL aborts: it waits until the graphs with operations of the
 * communicator are destroyed, by a thread that may have to see the failure first. */
MEMOI void memoi_nccl_abort_all(memoi_nccl_world* world) {
    memoi_nccl* each;
    for (;;) {
        for (each = world->comms; each && !each->comm;) each = each->next;
        if (!each) return;
        pthread_mutex_unlock(&world->mutex);
        (void)ncclCommAbort(each->comm);
        if (each->part) (void)ncclCommAbort(each->part);
        pthread_mutex_lock(&world->mutex);
        each->comm = each->part = NULL;
    }
}

MEMOI void* memoi_nccl_watchdog(void* argument) {
    memoi_nccl_world* world = (memoi_nccl_world*)argument;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int32_t is_ending = 0;
    (void)cudaSetDevice(world->gpu);
    (void)cudaThreadExchangeStreamCaptureMode(&mode); /* queries do not invalidate captures */
    while (!is_ending) {
        memob_sleep_until(memob_now_ns() + 20000000);
        pthread_mutex_lock(&world->mutex);
        is_ending = world->is_ending;
        for (memoi_nccl* each = world->comms; each && !world->failure.status; each = each->next)
            if (each->comm) memoi_nccl_watch(each);
        if (world->failure.status) memoi_nccl_abort_all(world);
        pthread_mutex_unlock(&world->mutex);
    }
    return NULL;
}

memo_status memo_comm_nccl_synchronize(memo_comm* comm, memo_stream stream, double timeout_s,
                                       memo_error* error) {
    memoi_nccl* me = (memoi_nccl*)comm->context;
    double limit_s = timeout_s > 0 ? timeout_s : me->world->desc.timeout_s;
    cudaError_t result;
    memo_status status;
    pthread_mutex_lock(&me->world->mutex);
    me->wait_ends_at_s = memob_now_s() + limit_s;
    pthread_mutex_unlock(&me->world->mutex);

    result = cudaStreamSynchronize(memo_cuda_stream(stream));

    pthread_mutex_lock(&me->world->mutex);
    me->wait_ends_at_s = 0;
    memoi_nccl_watch_agreed(me);
    pthread_mutex_unlock(&me->world->mutex);
    status = memoi_nccl_status(comm, error);
    if (!status && result != cudaSuccess)
        status = memo_error_set(error, MEMO_STATUS_DEVICE, "cudaStreamSynchronize: %s",
                                cudaGetErrorString(result));
    if (result != cudaSuccess) memoi_cuda_forget(result);
    return status;
}

/* --- order --- */

MEMOI int memoi_nccl_is_captured(cudaStream_t stream) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
}

/* The mutex is held.  Two communicators that are busy at once could deadlock. */
MEMOI ncclResult_t memoi_nccl_order(memoi_nccl* me, cudaStream_t stream) {
    const memoi_nccl* latest = me->world->latest;
    if (!me->world->orders_by_events || !latest || latest == me || memoi_nccl_is_captured(stream))
        return ncclSuccess;
    return cudaStreamWaitEvent(stream, latest->done, 0) == cudaSuccess ? ncclSuccess
                                                                       : ncclUnhandledCudaError;
}

/* After an operation.  An event recorded in a capture cannot be queried. */
MEMOI void memoi_nccl_mark(memoi_nccl* me, cudaStream_t stream) {
    pthread_mutex_lock(&me->world->mutex);
    if (!memoi_nccl_is_captured(stream) && cudaEventRecord(me->done, stream) == cudaSuccess) {
        me->enqueued_s = memob_now_s();
        me->world->latest = me;
    }
    pthread_mutex_unlock(&me->world->mutex);
}

/* --- what ranks must agree on --- */

/* Has every operation that was not captured ended? */
MEMOI int memoi_nccl_is_done(const memoi_nccl* me) {
    const cudaError_t state = cudaEventQuery(me->done);
    if (state == cudaErrorNotReady) memoi_cuda_forget(state);
    return state == cudaSuccess;
}

/* The mutex is held.  The place of these digests.  If all are taken, those of operations that have
 * ended give way.  The last place, if there is none: these digests are not compared. */
MEMOI memoi_nccl_agreed* memoi_nccl_place_agreed(memoi_nccl* me, const int32_t* own,
                                                 int is_captured) {
    memoi_nccl_agreed *end = me->agreed + MEMOI_NCCL_AGREED, *a;
    for (a = me->agreed; a < end; a++)
        if (a->fields && !memcmp(a->own, own, sizeof a->own)) return a;
    for (a = me->agreed; a < end && a->fields;) a++;
    if (a == end && !is_captured && memoi_nccl_is_done(me)) {
        memoi_nccl_watch_agreed(me);
        for (int k = MEMOI_NCCL_AGREED - 1; k >= 0; k--) {
            if (me->agreed[k].is_captured) continue;
            a = &me->agreed[k];
            a->fields = NULL;
        }
    }
    if (a < end) {
        memcpy(a->own, own, sizeof a->own);
        memcpy(a->maxima, own, sizeof a->maxima);
    }
    return a;
}

/* The mutex is held, in an open group of NCCL.  A few bytes go with its operations. */
MEMOI ncclResult_t memoi_nccl_agree(memoi_nccl* me, cudaStream_t stream) {
    const memo_label* label = &me->table.label;
    const int is_captured = memoi_nccl_is_captured(stream);
    int32_t own[MEMOI_NCCL_DIGESTS];
    memoi_nccl_agreed* a;
    if (!label->is_first || me->table.size == 1) return ncclSuccess;
    for (int32_t k = 0; k < MEMO_LABEL_FIELDS; k++) {
        own[k] = (int32_t)label->digests[k];
        own[MEMO_LABEL_FIELDS + k] = ~own[k];
    }
    a = memoi_nccl_place_agreed(me, own, is_captured);
    a->fields = label->fields;
    a->is_captured |= is_captured;
    return ncclAllReduce(a == me->agreed + MEMOI_NCCL_AGREED ? a->own : a->maxima, a->maxima,
                         MEMOI_NCCL_DIGESTS, ncclInt32, ncclMax, me->comm, stream);
}

/* --- messages and collectives --- */

/* The mutex is held. */
MEMOI ncclResult_t memoi_nccl_issue(memoi_nccl* me, cudaStream_t stream,
                                    const memo_message_call* calls, int32_t n) {
    ncclResult_t result = ncclSuccess;
    const memo_message_call* m;
    for (m = calls; m < calls + n && (result == ncclSuccess || result == ncclInProgress); m++) {
        ncclDataType_t type = memoi_nccl_types[m->type];
        size_t count = (size_t)m->count;
        result = m->is_send ? ncclSend(m->address, count, type, m->peer, me->comm, stream)
                            : ncclRecv(m->address, count, type, m->peer, me->comm, stream);
    }
    return result;
}

/* The mutex is held. */
MEMOI ncclResult_t memoi_nccl_enqueue(memoi_nccl* me, cudaStream_t stream,
                                      const memo_collective_call* call) {
    size_t count = (size_t)call->count;
    ncclDataType_t type = memoi_nccl_types[call->type];
    ncclRedOp_t op = call->reduction == MEMO_REDUCTION_SUM ? ncclSum : ncclMax;
    switch (call->kind) {
    case MEMO_COLLECTIVE_ALL_REDUCE:
        return ncclAllReduce(call->from, call->to, count, type, op, me->comm, stream);
    case MEMO_COLLECTIVE_ALL_GATHER:
        return ncclAllGather(call->from, call->to, count, type, me->comm, stream);
    case MEMO_COLLECTIVE_REDUCE_SCATTER:
        return ncclReduceScatter(call->from, call->to, count, type, op, me->comm, stream);
    case MEMO_COLLECTIVE_BROADCAST:
        return ncclBroadcast(call->from, call->to, count, type, call->root, me->comm, stream);
    case MEMO_COLLECTIVE_BARRIER:
    case MEMO_N_COLLECTIVES: break;
    }
    /* NCCL has no barrier; the reduction of one number serves. */
    return ncclAllReduce(me->barrier_word, me->barrier_word, 1, ncclInt32, ncclMax, me->comm,
                         stream);
}

/* Enqueues a collective or, if call is NULL, messages. */
MEMOI memo_status memoi_nccl_run(memoi_nccl* me, memo_stream on, const memo_collective_call* call,
                                 const memo_message_call* messages, int32_t n, memo_error* error) {
    static const char* const names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                        "barrier"};
    MEMOB_TABLE_OF(MEMO_N_COLLECTIVES, names);
    const cudaStream_t stream = memo_cuda_stream(on);
    ncclResult_t result = ncclSuccess, ended;
    memo_status status;
    pthread_mutex_lock(&me->world->mutex);
    if (memoi_nccl_is_usable(me)) result = memoi_nccl_order(me, stream);
    if (memoi_nccl_is_usable(me) && result == ncclSuccess) result = ncclGroupStart();
    if (memoi_nccl_is_usable(me) && result == ncclSuccess) {
        result = memoi_nccl_agree(me, stream);
        if (result == ncclSuccess || result == ncclInProgress)
            result = call ? memoi_nccl_enqueue(me, stream, call)
                          : memoi_nccl_issue(me, stream, messages, n);
        ended = ncclGroupEnd();
        if (result == ncclSuccess || result == ncclInProgress) result = ended;
    }
    pthread_mutex_unlock(&me->world->mutex);
    status = memoi_nccl_finish(me, call ? names[call->kind] : "a group", result, error);
    if (!status) memoi_nccl_mark(me, stream);
    return status;
}

MEMOI memo_status memoi_nccl_messages(memo_comm* comm, memo_stream stream,
                                      const memo_message_call* calls, int32_t n,
                                      memo_error* error) {
    return memoi_nccl_run((memoi_nccl*)comm->context, stream, NULL, calls, n, error);
}

MEMOI memo_status memoi_nccl_collective(memo_comm* comm, memo_stream stream,
                                        const memo_collective_call* call, memo_error* error) {
    return memoi_nccl_run((memoi_nccl*)comm->context, stream, call, NULL, 0, error);
}

/* --- creating, splitting and destroying --- */

MEMOI void memoi_nccl_world_destroy(memoi_nccl_world* world) {
    pthread_mutex_lock(&world->mutex);
    world->is_ending = 1;
    pthread_mutex_unlock(&world->mutex);
    pthread_join(world->watchdog, NULL);
    pthread_mutex_destroy(&world->mutex);
    MEMO_FREE(world);
}

MEMOI memo_status memoi_nccl_world_make(const memo_comm_nccl_desc* desc, memoi_nccl_world** result,
                                        memo_error* error) {
    memoi_nccl_world* world = (memoi_nccl_world*)memob_calloc(1, sizeof *world);
    int version = 0;
    const char* is_implicit;
    *result = NULL;
    if (!world) return memob_no_memory(error, "a world of communicators");
    world->desc = *desc;
    snprintf(world->host, sizeof world->host, "%s", desc->host ? desc->host : "");
    if (!(desc->join_timeout_s > 0)) world->desc.join_timeout_s = 120;
    if (!(desc->timeout_s > 0)) world->desc.timeout_s = 600;
    (void)cudaGetDevice(&world->gpu);

    /* Order of communicators: NCCL's, or by events.  NCCL reads the variable at its first use. */
    if (ncclGetVersion(&version) != ncclSuccess) version = 0;
    if (version >= NCCL_VERSION(2, 26, 0)) setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    is_implicit = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    world->orders_by_events =
        version < NCCL_VERSION(2, 26, 0) || !is_implicit || strcmp(is_implicit, "1") != 0;

    pthread_mutex_init(&world->mutex, NULL);
    if (memob_thread_create(&world->watchdog, 0, memoi_nccl_watchdog, world)) {
        pthread_mutex_destroy(&world->mutex);
        MEMO_FREE(world);
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                              "comm_nccl: no thread for the watchdog");
    }
    *result = world;
    return MEMO_STATUS_OK;
}

/* The last communicator takes the world with it. */
MEMOI void memoi_nccl_destroy(memo_comm* comm) {
    memoi_nccl *me = (memoi_nccl*)comm->context, **link;
    memoi_nccl_world* world = me->world;
    ncclResult_t result = ncclSuccess;
    int is_last;

    /* Finish what is under way with the peers. */
    pthread_mutex_lock(&world->mutex);
    if (memoi_nccl_is_usable(me)) result = ncclCommFinalize(me->comm);
    pthread_mutex_unlock(&world->mutex);
    (void)memoi_nccl_finish(me, "destroy", result, NULL);

    /* Leave the world; after a failure the watchdog aborts it first. */
    pthread_mutex_lock(&world->mutex);
    while (me->comm && world->failure.status) {
        pthread_mutex_unlock(&world->mutex);
        memoi_nccl_nap(1);
        pthread_mutex_lock(&world->mutex);
    }
    for (link = &world->comms; *link && *link != me;) link = &(*link)->next;
    if (*link) *link = me->next;
    if (world->latest == me) world->latest = NULL;
    is_last = !world->comms;
    if (me->comm) (void)ncclCommDestroy(me->comm);
    pthread_mutex_unlock(&world->mutex);

    if (is_last) memoi_nccl_world_destroy(world);
    if (me->done) (void)cudaEventDestroy(me->done);
    (void)cudaFree(me->barrier_word);
    (void)cudaFreeHost(me->agreed);
    MEMO_FREE(me);
}

MEMOI memo_status memoi_nccl_split(memo_comm* comm, int32_t color, int32_t key, const char* name,
                                   memo_comm** part, memo_error* error);

MEMOI int64_t memoi_nccl_free_bytes(void) {
    size_t free_bytes = 0, total_bytes = 0;
    return cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess ? (int64_t)free_bytes : 0;
}

/* Everything except NCCL's communicator. */
MEMOI memo_status memoi_nccl_make(const char* prefix, const char* name, memoi_nccl_world* world,
                                  memoi_nccl** result, memo_error* error) {
    memoi_nccl* me = (memoi_nccl*)memob_calloc(1, sizeof *me);
    const size_t agreed_bytes = (MEMOI_NCCL_AGREED + 1) * sizeof *me->agreed;
    const int64_t free_bytes = memoi_nccl_free_bytes();
    memo_comm* table;
    void* agreed = NULL;
    *result = NULL;
    if (!me) return memob_no_memory(error, "a communicator");
    if (cudaMalloc(&me->barrier_word, 512) != cudaSuccess ||
        cudaMemset(me->barrier_word, 0, 512) != cudaSuccess ||
        cudaHostAlloc(&agreed, agreed_bytes, cudaHostAllocDefault) != cudaSuccess ||
        cudaEventCreateWithFlags(&me->done, cudaEventDisableTiming) != cudaSuccess) {
        (void)cudaFree(me->barrier_word);
        (void)cudaFreeHost(agreed);
        MEMO_FREE(me);
        return memo_error_set(
            error, MEMO_STATUS_DEVICE,
            "comm_nccl: no 512 bytes and no event on the device, or no pinned 5 KB: %s",
            cudaGetErrorString(cudaGetLastError()));
    }

    me->creation_bytes = free_bytes;
    me->agreed = (memoi_nccl_agreed*)memset(agreed, 0, agreed_bytes);
    for (int k = 0; k < MEMOI_NCCL_DIGESTS; k++) me->agreed[MEMOI_NCCL_AGREED].own[k] = INT32_MIN;
    snprintf(me->name, sizeof me->name, "%s%s", prefix, name);
    table = &me->table;
    table->name = me->name;
    table->context = me;
    table->split = memoi_nccl_split;
    table->destroy = memoi_nccl_destroy;
    table->messages = memoi_nccl_messages;
    table->waiting = me->messages;
    table->max_waiting = MEMOI_NCCL_MESSAGES;
    table->collective = memoi_nccl_collective;
    table->abort = memoi_nccl_abort;
    table->status = memoi_nccl_status;

    /* The watchdog finds the communicator in the list of its world. */
    me->world = world;
    pthread_mutex_lock(&world->mutex);
    me->next = world->comms;
    world->comms = me;
    pthread_mutex_unlock(&world->mutex);
    *result = me;
    return MEMO_STATUS_OK;
}

/* Waits until a communicator is ready, and takes the rank and size that NCCL gives.  Destroys the
 * communicator after a failure, of status or of NCCL, and if the rank is in no part. */
MEMOI memo_status memoi_nccl_join(memoi_nccl* me, const char* what, ncclResult_t result,
                                  memo_comm** comm, memo_status status, memo_error* error) {
    if (!status) status = memoi_nccl_finish(me, what, result, error);
    if (!status) {
        pthread_mutex_lock(&me->world->mutex);
        if (memoi_nccl_is_usable(me)) {
            result = ncclCommUserRank(me->comm, &me->table.rank);
            if (result == ncclSuccess) result = ncclCommCount(me->comm, &me->table.size);
        }
        status = memoi_nccl_look(me, what, result, NULL, error);
        pthread_mutex_unlock(&me->world->mutex);
    }
    if (status || !me->comm) {
        memoi_nccl_destroy(&me->table);
        return status;
    }
    me->creation_bytes -= memoi_nccl_free_bytes();
    *comm = &me->table;
    return MEMO_STATUS_OK;
}

MEMOI ncclConfig_t memoi_nccl_config(void) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 1; /* parts use the buffers and connections of their world */
    return config;
}

/* First the parent is in progress, until the child's handle exists; then the child, until it is
 * ready.  The watchdog sees the child's handle only then. */
MEMOI memo_status memoi_nccl_split(memo_comm* comm, int32_t color, int32_t key, const char* name,
                                   memo_comm** part, memo_error* error) {
    memoi_nccl *me = (memoi_nccl*)comm->context, *child;
    ncclConfig_t config = memoi_nccl_config();
    ncclResult_t result = ncclSuccess;
    memo_status status = memoi_nccl_status(comm, error);
    *part = NULL;
    if (!status) status = memoi_nccl_make("nccl ", name ? name : "part", me->world, &child, error);
    if (status) return status;

    pthread_mutex_lock(&me->world->mutex);
    if (memoi_nccl_is_usable(me))
        result = ncclCommSplit(me->comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &me->part,
                               &config);
    pthread_mutex_unlock(&me->world->mutex);
    status = memoi_nccl_finish(me, "split", result, error);
    pthread_mutex_lock(&me->world->mutex);
    if (!status && memoi_nccl_is_usable(me)) { /* otherwise the watchdog aborts the part */
        child->comm = me->part;
        me->part = NULL;
    }
    pthread_mutex_unlock(&me->world->mutex);
    return memoi_nccl_join(child, "split", ncclSuccess, part, status, error);
}

/* Rank and size of the desc, or of the environment. */
MEMOI memo_status memoi_nccl_place(const memo_comm_nccl_desc* desc, int32_t* rank, int32_t* size,
                                   memo_error* error) {
    int64_t r = desc->rank, n = desc->size;
    memo_status status = MEMO_STATUS_OK;
    if (n == 0) {
        status = memoi_nccl_environment_number("RANK", &r, error);
        if (!status) status = memoi_nccl_environment_number("WORLD_SIZE", &n, error);
        if (status) return status;
    }
    if (n < 1 || n > INT32_MAX || r < 0 || r >= n)
        return MEMOB_INVALID(
            error, "memo_comm_nccl_desc: rank %lld of %lld is invalid; ranks are 0 to size - 1",
            (long long)r, (long long)n);
    *rank = (int32_t)r;
    *size = (int32_t)n;
    return MEMO_STATUS_OK;
}

memo_status memo_comm_create_nccl(const memo_comm_nccl_desc* desc, memo_comm** comm,
                                  memo_error* error) {
    ncclConfig_t config = memoi_nccl_config();
    ncclUniqueId id;
    ncclComm_t made = NULL;
    ncclResult_t result;
    memoi_nccl_world* world;
    memoi_nccl* me;
    int32_t rank = 0, size = 0;
    int is_named = 0;
    memo_status status;
    *comm = NULL;
    status = memoi_nccl_place(desc, &rank, &size, error);
    if (!status) status = memoi_nccl_world_make(desc, &world, error);
    if (status) return status;
    world->desc.rank = rank; /* for errors */
    status = memoi_nccl_share_id(desc, size, &id, &is_named, error);
    if (!status)
        status = memoi_nccl_make("", desc->name ? desc->name : "nccl world", world, &me, error);

    if (status) {
        memoi_nccl_world_destroy(world);
    } else {
        me->table.rank = rank;
        me->table.size = size;
        result = ncclCommInitRankConfig(&made, (int)size, id, (int)rank, &config);
        pthread_mutex_lock(&world->mutex);
        me->comm = made;
        pthread_mutex_unlock(&world->mutex);
        if (!made)
            status = memo_error_set(error, MEMO_STATUS_COMM, "ncclCommInitRankConfig: %s; %.300s",
                                    ncclGetErrorString(result), ncclGetLastError(NULL));
        status = memoi_nccl_join(me, "joining", result, comm, status, error);
    }
    if (is_named) unsetenv("NCCL_COMM_ID"); /* a later world may meet elsewhere */
    return status;
}

/* --- memory --- */

int64_t memo_comm_nccl_get_device_bytes(memo_comm* comm) {
    memoi_nccl* me = (memoi_nccl*)comm->context;
    int64_t n_bytes = me->creation_bytes > 0 ? me->creation_bytes : 0;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
    uint64_t reported = 0;
    pthread_mutex_lock(&me->world->mutex);
    if (memoi_nccl_is_usable(me) &&
        ncclCommMemStats(me->comm, ncclStatGpuMemTotal, &reported) == ncclSuccess)
        n_bytes = (int64_t)reported;
    pthread_mutex_unlock(&me->world->mutex);
#endif
    return n_bytes;
}

#endif /* MEMO_CUDA_NCCL */
#endif /* MEMO_CUDA_IMPLEMENTATION */
