/* train_compute.h - the trainer's processors: its threads, and those of OpenBLAS. */
#ifndef TRAIN_COMPUTE_H
#define TRAIN_COMPUTE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memo.h"
#include "gpt_threads.h"
#ifdef GPT_BLAS
#include <cblas.h>
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

/* An OpenBLAS that is older than the processor falls back to kernels for the first x86-64, which
 * take three times as long.  It reads the environment when it is loaded, so this starts the program
 * again.  Returns if nothing needs to change, or if nothing can. */
static void compute_choose_kernels(char** argv) {
#if defined(GPT_BLAS) && defined(__x86_64__) && defined(__linux__)
    const char* name = "Haswell";
    if (strcmp(openblas_get_corename(), "Prescott") != 0 || getenv("OPENBLAS_CORETYPE")) return;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        name = "SkylakeX";
    if (setenv("OPENBLAS_CORETYPE", name, 1) == 0) execv("/proc/self/exe", argv);
    unsetenv("OPENBLAS_CORETYPE");
#else
    (void)argv;
#endif
}

/* Call before the first product; gpt_helpers_end ends it.  Several threads call OpenBLAS, and each
 * computes alone. */
static void compute_begin(int64_t n_ranks) {
    if (n_ranks == 1) gpt_helpers_begin(compute_threads(1, 1));
#ifdef GPT_BLAS
    openblas_set_num_threads(1);
#endif
}

static MEMO_UNUSED void print_compute(int64_t n_here, int64_t n_ranks) {
    const int n_threads = compute_threads(n_here, n_ranks);
    printf("compute   %d thread%s, ", n_threads, n_threads == 1 ? "" : "s");
#ifdef GPT_BLAS
    printf("OpenBLAS with kernels for %s\n", openblas_get_corename());
#else
    printf("a plain matrix product; with OpenBLAS it would be faster (make setup)\n");
#endif
}

#endif
