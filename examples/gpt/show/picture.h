/* picture.h - pictures of a run: its losses, and device memory by owner. */
#ifndef TRAIN_PICTURE_H
#define TRAIN_PICTURE_H

#include "memo_plan.h"

/* Losses in nats per token, one a step, beside the entropies of the text; these are equal of random
 * tokens.  Errors: OUT_OF_HOST_MEMORY, IO. */
memo_status loss_picture_write(const double* losses, int64_t n_steps, double unigram_nats,
                               double bigram_nats, const char* title, const char* path,
                               memo_error* error);

/* The bands of owners that a plan keeps over a micro-batch, and above them the buffers that live at
 * each request.  Errors: OUT_OF_HOST_MEMORY, IO. */
memo_status memory_picture_write(const memo_step_plan* plan, const char* path, memo_error* error);

#endif
