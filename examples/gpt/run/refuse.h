/* refuse.h - why a run does not fit, and what would. */
#ifndef TRAIN_REFUSE_H
#define TRAIN_REFUSE_H

#include "gpt/run/options.h"

/* Prints the lengths that fit with and without slices, beside one that fits.  given_rows: of
 * --slice-rows; 0: o has the largest slices that fit, and so has each length. */
void print_longest(const train_options* o, int64_t given_rows);

/* Prints the smallest device on which the model trains, if the host holds what leaves it. */
void print_least(const train_options* o);

/* Explains why a run cannot have this plan, of least device memory, and suggests what would work,
 * the cheapest first. */
memo_status refuse(const train_options* o, const memo_step_plan* plan, memo_error* error);

/* Copies are measured from pinned memory beside the tokens. */
memo_status check_measurement(const train_options* o, memo_error* error);

#endif
