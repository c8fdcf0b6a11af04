/* compute.h - the trainer's processors: its threads, and OpenBLAS. */
#ifndef TRAIN_COMPUTE_H
#define TRAIN_COMPUTE_H

#include "memo.h"

/* Call before the first product; gpt_helpers_end ends it.  Several threads call OpenBLAS, and each
 * computes alone. */
memo_status compute_begin(int64_t n_here, int64_t n_ranks, memo_error* error);

/* Planning takes a quarter of a MiB of the main thread's stack; other threads bring their own. */
memo_status compute_check_stack(memo_error* error);

/* Adds the limit to a message about memory: `ulimit -v` is easily forgotten. */
void compute_explain(memo_error* error);

void print_compute(int64_t n_here, int64_t n_ranks);

#endif
