#pragma once
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
