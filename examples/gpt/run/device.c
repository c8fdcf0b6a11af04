#include "gpt/run/device.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef MEMO_CUDA_NCCL
#include <nccl.h>
#endif

#include "gpt/run/ranks.h"
#include "gpt/kernels/threads.h"
#include "gpt/show/report.h"

#ifdef GPT_BLAS
#include <cblas.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "gpt/kernels/math.h"

static __typeof__(openblas_get_corename)* compute_core;
#endif

/* ---- processors: threads, and OpenBLAS ------------------------------------------------------- */

/* Threads of this process that compute: one for each of its ranks.  A single rank adds helpers on
 * the other processors.  A model of this size has no work for more than 8. */
static int compute_threads(int64_t n_ranks) {
    const long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (n_ranks > 1) return train_place.size ? 1 : (int)n_ranks;
#ifdef TRAIN_CUDA
    return 1;
#endif
    return n_processors > 8 ? 8 : n_processors > 1 ? (int)n_processors : 1;
}

#ifdef GPT_BLAS
/* A function of the library; NULL: the library lacks it. */
static void compute_find(void* library, const char* name, void* function) {
    void* found = dlsym(library, name);
    memcpy(function, &found, sizeof found); /* ISO C converts no object pointer to a function's */
}

/* An OpenBLAS that is older than the processor falls back to kernels for the first x86-64, which
 * take three times as long.  Returns the name of better kernels; NULL: there are none. */
static const char* compute_better_kernels(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (!compute_core || strcmp(compute_core(), "Prescott") != 0 || getenv("OPENBLAS_CORETYPE"))
        return NULL;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return NULL;
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl")
               ? "SkylakeX"
               : "Haswell";
#else
    return NULL;
#endif
}

static void* compute_open_blas(void) {
    void* library = dlopen(GPT_BLAS, RTLD_NOW);
    if (library) compute_find(library, "cblas_sgemm", &gpt_blas_gemm);
    if (library) compute_find(library, "openblas_get_corename", &compute_core);
    return gpt_blas_gemm ? library : NULL;
}

/* Loads OpenBLAS, GPT_BLAS, for products on n_threads threads of the program.
 *
 * OpenBLAS requests the buffer of a thread again and again if the system refuses it, as under
 * `ulimit -v`.  Neither exit nor a signal that is handled would end the program then.  A linked
 * library would start before main, with a thread and a buffer for each processor.  So the program
 * first looks whether there is room, and then loads the library without threads.  It takes all
 * buffers at once, before other memory fills the address space.
 *
 * The library reads the environment when it is loaded. */
static memo_status compute_load_blas(int n_threads, memo_error* error) {
    const size_t buffer = (size_t)129 << 20, itself = (size_t)64 << 20; /* and what it needs */
    const size_t n_bytes = itself + buffer * (size_t)n_threads;
    void* (*take)(int), (*give)(void*), *buffers[THREAD_RANKS_MAX], *library;
    void* room = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const char* better;
    int i;
    if (room == MAP_FAILED)
        return memo_error_set(
            error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
            "OpenBLAS needs %lld MiB of address space for %d thread%s, which this process cannot "
            "have; a program without OpenBLAS needs less: make -B BLAS_CFLAGS= BLAS_LIBS= "
            "build/examples/train_gpt",
            (long long)(n_bytes >> 20), n_threads, n_threads == 1 ? "" : "s");
    munmap(room, n_bytes);

    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    setenv("OMP_NUM_THREADS", "1", 1); /* a library that was built with OpenMP counts these */
    library = compute_open_blas();
    if (library && (better = compute_better_kernels()) != NULL) {
        dlclose(library);
        setenv("OPENBLAS_CORETYPE", better, 1);
        library = compute_open_blas();
    }
    if (!library)
        return gpt_unsupported(
            error, "OpenBLAS cannot be loaded: %s; make setup looks for it again", dlerror());

    compute_find(library, "blas_memory_alloc", &take);
    compute_find(library, "blas_memory_free", &give);
    for (i = 0; take && give && i < n_threads; i++) buffers[i] = take(0);
    while (take && give && i > 0) give(buffers[--i]);
    return MEMO_STATUS_OK;
}
#endif

memo_status compute_begin(int64_t n_ranks, memo_error* error) {
    const int n_threads = compute_threads(n_ranks);
#ifdef GPT_BLAS
    const memo_status status = compute_load_blas(n_threads, error);
#else
    const memo_status status = MEMO_STATUS_OK;
    (void)error;
#endif
    if (!status && n_ranks == 1) gpt_helpers_begin(n_threads);
    return status;
}

memo_status compute_check_stack(memo_error* error) {
    const rlim_t least = 1 << 20;
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= least)
        return MEMO_STATUS_OK;
    return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY,
                          "`ulimit -s` is %lld KiB of stack; %lld or more would work",
                          (long long)(limit.rlim_cur >> 10), (long long)(least >> 10));
}

void compute_explain(memo_error* error) {
    const size_t used = strlen(error->message);
    struct rlimit limit;
    if (error->status == MEMO_STATUS_OUT_OF_HOST_MEMORY && !getrlimit(RLIMIT_AS, &limit) &&
        limit.rlim_cur != RLIM_INFINITY)
        snprintf(error->message + used, sizeof error->message - used,
                 "; `ulimit -v` is %lld KiB of address space, and a larger limit would work",
                 (long long)(limit.rlim_cur >> 10));
}

/* ---- devices -------------------------------------------------------------------------------- */

/* Returns half of what the machine could give to programs; 1e18 if that is unknown. */
static int64_t train_machine_bytes(void) {
    FILE* file = fopen("/proc/meminfo", "r");
    char line[128];
    long long n_kib = -1;
    while (file && n_kib < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lld", &n_kib) != 1) n_kib = -1;
    if (file) fclose(file);
    return n_kib < 0 ? (int64_t)1e18 : n_kib * 512;
}

static gpt_cudnn_desc train_cudnn_desc(const train_options* o) {
    gpt_cudnn_desc desc;
    desc.is_deterministic = (int32_t)o->is_deterministic;
    desc.scratch_bytes = o->attention_memory;
    return desc;
}

static int64_t train_cluster_scratch_bytes(void* device, const gpt_shapes* shapes) {
    return gpt_cuda_own_bytes(shapes) +
           gpt_cudnn_desc_scratch_bytes(&((const train_device*)device)->planned, shapes);
}

/* With --cluster every program plans for one: for GPUs, with cuDNN's attention. */
static void train_plan_cluster(train_device* d, const train_options* o) {
    if (!o->cluster) return;
    d->planned = train_cudnn_desc(o);
    d->kernels.context = d;
    d->kernels.scratch_bytes = train_cluster_scratch_bytes;
    d->kernels.update_on_host = NULL;
}

#ifdef TRAIN_CUDA
int32_t train_gpu; /* CUDA's number of the GPU of this process */

memo_device* train_running;
pthread_mutex_t train_running_mutex = PTHREAD_MUTEX_INITIALIZER;

static void train_device_set_running(memo_device* device) {
    pthread_mutex_lock(&train_running_mutex);
    train_running = device;
    pthread_mutex_unlock(&train_running_mutex);
}

void train_device_enter(const train_device* d) { train_device_set_running(d->device); }

void train_device_close(train_device* d) {
    gpt_cuda_kernels_destroy(d->cuda);
#ifdef TRAIN_CUDNN
    gpt_cudnn_destroy(d->cudnn);
#endif
    train_device_set_running(NULL);
    if (d->device) memo_cuda_device_destroy(d->device);
    memset(d, 0, sizeof *d);
}

memo_status train_device_plan(train_device* d, const train_options* o, memo_error* error) {
    memo_status status;
    memset(d, 0, sizeof *d);
#ifdef TRAIN_CUDNN
    const gpt_cudnn_desc desc = train_cudnn_desc(o);
    gpt_cuda_attention attention;
    if ((status = gpt_cudnn_create(&desc, &d->cudnn, error))) return status;
    attention = gpt_cudnn_attention(d->cudnn);
    status = gpt_cuda_kernels_create(&attention, &d->cuda, error);
#else
    status = gpt_cuda_kernels_create(NULL, &d->cuda, error);
#endif
    if (status) {
        train_device_close(d);
        return status;
    }
    d->kernels = gpt_cuda_kernels_table(d->cuda);
    train_plan_cluster(d, o);
    return status;
}

memo_status train_device_open(train_device* d, const train_options* o, const thread_rank* rank,
                              int64_t device_memory, int64_t host_memory, memo_error* error) {
    memo_cuda_device_desc desc = MEMO_ZERO(memo_cuda_device_desc);
    (void)rank;
    desc.ordinal = train_gpu;
    desc.device_memory_bytes = device_memory;
    desc.host_memory_bytes = host_memory;
    /* A capacity that the user states is tried: some machines get more free memory when a program
     * asks for it. */
    if (host_memory) desc.host_limit = MEMO_CUDA_HOST_WARN;
    memo_status status = train_device_plan(d, o, error);
    if (!status) status = memo_cuda_device_create(&desc, &d->device, error);
    if (!status) status = memo_cuda_check(cudaSetDevice(train_gpu), "cudaSetDevice", error);
    if (status)
        train_device_close(d);
    else
        train_device_set_running(d->device);
    return status;
}

void train_device_peaks(const train_device* d, int64_t* device_bytes, int64_t* host_bytes) {
    const memo_cuda_device_stats stats = memo_cuda_device_get_stats(d->device);
    *device_bytes = stats.device_peak_bytes;
    *host_bytes = stats.host_peak_bytes;
}

/* Ranks are processes, and attention over ranks is an option of the kernels. */
static memo_status train_device_check_ranks(const train_options* o, const gpt_kernels* kernels,
                                            memo_error* error) {
#ifndef MEMO_CUDA_NCCL
    if (o->ranks > 1)
        return gpt_invalid(error,
                           "%lld ranks: this program was built without NCCL, for one GPU; "
                           "make NCCL_HOME=... builds it with NCCL",
                           o->ranks);
#endif
    if (o->ranks > 1 && !train_place.launcher)
        return gpt_invalid(error,
                           "%lld ranks: each is a process; start this program with mpirun "
                           "-n %lld, torchrun or srun",
                           o->ranks, o->ranks);
    if (o->ring * o->ulysses > 1 && !kernels->attention.forward)
        return gpt_invalid(error,
                           "--ring %lld, --ulysses %lld: the attention of these kernels does "
                           "not run over ranks; --data and --tensor work",
                           o->ring, o->ulysses);
    return MEMO_STATUS_OK;
}

/* Refuses what a graph cannot hold.  Before 2.26 NCCL does not order the operations of several
 * communicators in a graph, which could then wait for each other. */
static memo_status train_device_check_graph(const train_options* o, memo_error* error) {
#ifdef MEMO_CUDA_NCCL
    const char* order = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    int version = 0;
    if (o->is_graph && o->ranks > 1 &&
        (ncclGetVersion(&version) != ncclSuccess || version < NCCL_VERSION(2, 26, 0) ||
         (order && strcmp(order, "1") != 0)))
        return gpt_invalid(error,
                           "--graph with %lld ranks: NCCL %d.%d does not order a graph's "
                           "operations; NCCL 2.26 with "
                           "NCCL_LAUNCH_ORDER_IMPLICIT=1, or no --graph, would work",
                           o->ranks, version / 10000, version / 100 % 100);
#endif
    if (o->is_graph && o->accumulate > GPT_STAGED_MAX)
        return gpt_invalid(error,
                           "--accumulate %lld: --graph takes at most %d micro-batches; "
                           "--accumulate %d would work",
                           o->accumulate, (int)GPT_STAGED_MAX, (int)GPT_STAGED_MAX);
    return MEMO_STATUS_OK;
}

memo_status train_device_check(train_options* o, memo_error* error) {
    int64_t free_bytes = 0, total_bytes;
    train_device d;
    memo_status status = train_device_check_graph(o, error);
    if (status) return status;
#ifdef TRAIN_CUDNN
    if (!o->type)
        return gpt_invalid(error,
                           "--type f32: cuDNN's attention takes bf16 only; --type bf16, or a "
                           "program built without CUDNN=, would work");
    if (o->compare && !o->is_deterministic)
        return gpt_invalid(error,
                           "--compare %lld: with --deterministic 0 gradients differ between "
                           "runs; --deterministic 1 would work",
                           o->compare);
#endif
    if (o->is_dry_run) return MEMO_STATUS_OK;
    if (o->link_bandwidth)
        return gpt_invalid(error,
                           "--link-bandwidth has no effect without --dry-run: a GPU's copies "
                           "are measured");

    /* What the GPU itself says. */
    status = train_device_open(&d, o, NULL, 0, 0, error);
    if (status) return status;
    status = train_device_check_ranks(o, &d.kernels, error);
    if (!status) status = memo_memory_info(d.device, &free_bytes, &total_bytes, error);
    train_device_close(&d);
    if (status) return status;
    if (o->device_memory > total_bytes)
        return gpt_invalid(
            error,
            "--device-memory %s: the GPU has %s, of which %s are free; no --device-memory would "
            "take what libraries leave",
            bytes_name(o->device_memory), bytes_name(total_bytes), bytes_name(free_bytes));
    return status;
}

int train_device_has_room(const train_options* o, int64_t device_bytes, int64_t host_bytes) {
    size_t free_bytes = 0, total_bytes;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return 0;
    return device_bytes <= (int64_t)(free_bytes / 2) &&
           o->ranks * host_bytes <= train_machine_bytes();
}

memo_status train_device_room(const train_device* d, int64_t* room, memo_error* error) {
    int64_t total_bytes;
    const memo_cuda_device_stats stats = memo_cuda_device_get_stats(d->device);
    if (memo_memory_info(d->device, room, &total_bytes, error)) return error->status;
    *room += stats.device_bytes;
    return MEMO_STATUS_OK;
}

void train_device_print(const train_options* o) {
#ifdef TRAIN_CUDNN
    const char* attention = o->is_deterministic
                                ? "cuDNN's attention, deterministic"
                                : "cuDNN's attention, whose gradients differ between runs";
#else
    const char* attention =
        "built-in attention (cuDNN's is faster: make CUDNN=folder of cudnn-frontend)";
#endif
    printf("compute   a GPU: products by cuBLASLt, %lld rows at a time; %s\n", o->tile, attention);
}
#else
#ifndef TRAIN_DEVICE_AROUND /* a test puts a device that fails around it */
#define TRAIN_DEVICE_AROUND(device) (device)
#endif

void train_device_close(train_device* d) { memset(d, 0, sizeof *d); }
void train_device_enter(const train_device* d) { (void)d; }

memo_status train_device_open(train_device* d, const train_options* o, const thread_rank* rank,
                              int64_t device_memory, int64_t host_memory, memo_error* error) {
    (void)o;
    (void)device_memory;
    (void)host_memory;
    (void)error;
    d->device = TRAIN_DEVICE_AROUND(rank->device);
    d->kernels = gpt_kernels_host(&d->host, rank->device);
    return MEMO_STATUS_OK;
}

memo_status train_device_plan(train_device* d, const train_options* o, memo_error* error) {
    memset(d, 0, sizeof *d);
    (void)error;
    d->kernels = gpt_kernels_host(&d->host, NULL);
    train_plan_cluster(d, o);
    return MEMO_STATUS_OK;
}

void train_device_peaks(const train_device* d, int64_t* device_bytes, int64_t* host_bytes) {
    const memo_host_device_stats stats = memo_host_device_get_stats(d->host.device);
    *device_bytes = stats.device_peak_bytes;
    *host_bytes = stats.host_peak_bytes;
}

memo_status train_device_check(train_options* o, memo_error* error) {
    if (!o->is_graph) return MEMO_STATUS_OK;
    return gpt_invalid(error, "--graph: the host has no CUDA graphs; train_gpt_cuda on a GPU has");
}

int train_device_has_room(const train_options* o, int64_t device_bytes, int64_t host_bytes) {
    return o->ranks * (device_bytes + host_bytes) <= train_machine_bytes();
}

void train_device_print(const train_options* o) {
    const int n_threads = compute_threads(o->ranks);
    printf("compute   %d thread%s, ", n_threads, n_threads == 1 ? "" : "s");
#ifdef GPT_BLAS
    printf("OpenBLAS with kernels for %s\n", compute_core ? compute_core() : "this processor");
#else
    printf("a plain matrix product; with OpenBLAS it would be faster (make setup)\n");
#endif
}
#endif
