/* train_compute.h - the trainer's processors: the number of threads and the kernels of OpenBLAS. */
#ifndef TRAIN_COMPUTE_H
#define TRAIN_COMPUTE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memo.h"
#include "memo_sp.h"
#include "gpt_threads.h"
#include "thread_ranks.h"
#ifdef GPT_BLAS
#include <cblas.h>
#endif

/* ---- threads -------------------------------------------------------------------------------- */

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

/* An OpenBLAS that is older than the processor uses kernels for an old one, which take three times
 * as long, or half as long again if they lack AVX-512.  Returns the name of faster kernels that
 * this processor supports; NULL: there are none. */
static const char* compute_better_kernels(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    /* The first two have AVX2, the others AVX-512. */
    static const char* const names[] = {"Haswell", "Zen", "SkylakeX", "Cooperlake",
                                        "SapphireRapids"};
    const size_t n = sizeof names / sizeof *names;
    const char* name = openblas_get_corename();
    size_t i = 0;
    while (i < n && strcasecmp(name, names[i])) i++;
    if (i >= 2 && i < n) return NULL;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return "SkylakeX";
    return i < n ? NULL : "Haswell";
#else
    return NULL;
#endif
}

/* OpenBLAS chooses its kernels at load time, by the environment, so this starts the program again.
 * Returns if nothing needs to change, or if nothing can. */
static void compute_choose_kernels(char** argv) {
    const char* better = compute_better_kernels();
    if (!better || getenv("OPENBLAS_CORETYPE")) return;
    if (setenv("OPENBLAS_CORETYPE", better, 1) == 0) execv("/proc/self/exe", argv);
    unsetenv("OPENBLAS_CORETYPE");
}

/* Functions of OpenBLAS itself; an OpenBLAS without them is used as it is. */
extern void* blas_memory_alloc(int position) __attribute__((weak));
extern void blas_memory_free(void* buffer) __attribute__((weak));

/* Each computing thread needs a buffer.  If the system refuses one, as under `ulimit -v`, OpenBLAS
 * tries again for ever.  This checks first, then reserves all buffers before other memory fills the
 * address space. */
static memo_status compute_take_buffers(int n_buffers, memo_error* error) {
    /* The C library reserves address space for each thread that allocates, at the same time. */
    const size_t buffer = (size_t)129 << 20, others = (size_t)512 << 20;
    const size_t n_bytes = buffer * (size_t)n_buffers + others;
    void *buffers[4 * THREAD_RANKS_MAX], *address;
    address = mmap(NULL, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
        return memo_error_set(
            error, MEMO_STATUS_INFEASIBLE,
            "OpenBLAS needs %lld MiB of address space for %d thread%s, more than this process may "
            "have; raise `ulimit -v`, or build without OpenBLAS: make -B BLAS_CFLAGS= BLAS_LIBS= "
            "build/examples/train_gpt",
            (long long)(n_bytes >> 20), n_buffers, n_buffers == 1 ? "" : "s");
    munmap(address, n_bytes);
    if (!blas_memory_alloc || !blas_memory_free) return MEMO_STATUS_OK;
    for (int i = 0; i < n_buffers; i++) buffers[i] = blas_memory_alloc(0);
    for (int i = 0; i < n_buffers; i++) blas_memory_free(buffers[i]);
    return MEMO_STATUS_OK;
}

/* Text for the user: "OpenBLAS with kernels for Haswell", and how to get faster ones. */
static void compute_put_kernels(memo_text* text) {
    const char* better = compute_better_kernels();
    memo_text_put(text, "OpenBLAS with kernels for %s", openblas_get_corename());
    if (better)
        memo_text_put(text, "; OPENBLAS_CORETYPE=%s would be faster on this processor", better);
    else if (getenv("OPENBLAS_CORETYPE"))
        memo_text_put(text, " (OPENBLAS_CORETYPE)");
}

#else

static void compute_choose_kernels(char** argv) { (void)argv; }
static void compute_put_kernels(memo_text* text) {
    memo_text_put(text, "a plain matrix product; with OpenBLAS it would be faster (make setup)");
}

#endif

/* ---- both ----------------------------------------------------------------------------------- */

/* Call before the first product; gpt_helpers_end ends it. */
static memo_status compute_begin(int64_t n_here, int64_t n_ranks, memo_error* error) {
    const int n_threads = compute_threads(n_here, n_ranks);
#ifdef GPT_BLAS
    int n_buffers;
#endif
    if (n_ranks == 1) gpt_helpers_begin(n_threads);
#ifdef GPT_BLAS
    /* Several threads call OpenBLAS, and each computes alone.  The threads that OpenBLAS has
     * started hold a buffer each. */
    n_buffers = n_threads + openblas_get_num_threads() - 1;
    openblas_set_num_threads(1);
    return compute_take_buffers(n_buffers < 4 * THREAD_RANKS_MAX ? n_buffers : 4 * THREAD_RANKS_MAX,
                                error);
#else
    (void)error;
    return MEMO_STATUS_OK;
#endif
}

/* Ends the program with this exit code.  The exit handlers of OpenBLAS would wait for its threads,
 * which try again for ever if the system refuses them memory. */
static int compute_end(int code) {
#ifdef GPT_BLAS
    fflush(NULL);
    _exit(code);
#else
    return code;
#endif
}

static MEMO_UNUSED void print_compute(int64_t n_here, int64_t n_ranks) {
    memo_text text;
    memset(&text, 0, sizeof text);
    compute_put_kernels(&text);
    printf("compute   %d thread%s, %s\n", compute_threads(n_here, n_ranks),
           compute_threads(n_here, n_ranks) == 1 ? "" : "s", text.data ? text.data : "");
    memo_text_free(&text);
}

#endif
