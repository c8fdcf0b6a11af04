#include "gpt/run/compute.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "gpt/kernels/threads.h"
#include "memo_sp.h"
#include "thread_ranks.h"

#ifdef GPT_BLAS
#include <cblas.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "gpt/kernels/math.h"

static __typeof__(openblas_get_corename)* compute_core;
#endif

/* Threads of this process that compute: one for each of its ranks.  A single rank adds helpers on
 * the other processors.  A model of this size has no work for more than 8. */
static int compute_threads(int64_t n_here, int64_t n_ranks) {
    const long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (n_ranks > 1) return (int)n_here;
#ifdef TRAIN_CUDA
    return 1;
#endif
    return n_processors > 8 ? 8 : n_processors > 1 ? (int)n_processors : 1;
}

/* ---- OpenBLAS ------------------------------------------------------------------------------- */

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
        return memo_error_set(error, MEMO_STATUS_UNSUPPORTED,
                              "OpenBLAS cannot be loaded: %s; make setup looks for it again",
                              dlerror());

    compute_find(library, "blas_memory_alloc", &take);
    compute_find(library, "blas_memory_free", &give);
    for (i = 0; take && give && i < n_threads; i++) buffers[i] = take(0);
    while (take && give && i > 0) give(buffers[--i]);
    return MEMO_STATUS_OK;
}
#endif

/* ---- both ----------------------------------------------------------------------------------- */

memo_status compute_begin(int64_t n_here, int64_t n_ranks, memo_error* error) {
    const int n_threads = compute_threads(n_here, n_ranks);
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

void print_compute(int64_t n_here, int64_t n_ranks) {
    const int n_threads = compute_threads(n_here, n_ranks);
    printf("compute   %d thread%s, ", n_threads, n_threads == 1 ? "" : "s");
#ifdef GPT_BLAS
    printf("OpenBLAS with kernels for %s\n", compute_core ? compute_core() : "this processor");
#else
    printf("a plain matrix product; with OpenBLAS it would be faster (make setup)\n");
#endif
}
