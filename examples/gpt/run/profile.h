/* profile.h - the times of a layer that are not measured: estimated from a GPU's rates for a
 * dry run, or read from a file. */
#ifndef TRAIN_PROFILE_H
#define TRAIN_PROFILE_H

#include "gpt/run/options.h"

/* Replaces a measured profile.  Products and attention run at the rates of --flops, copies at the
 * rate of --link-bandwidth; without it copies take no time.  Attention has two products with the
 * keys that a query sees forward and five backward.  Other products take their forward's time again
 * for the gradient of their inputs, and as long in bf16 for that of weights.  Other kernels (norms,
 * RoPE, residuals, the MLP's function, the loss) move numbers at the bandwidth of --cluster. */
void estimate_profile(const train_options* o, memo_profile* profile);

/* Reads --profile.  Its times must be those of a layer of this model with as many rows.  A file has
 * no width and no type, so these are not compared. */
memo_status read_profile(const train_options* o, memo_profile* profile, memo_error* error);

void print_estimate(const train_options* o);

void print_profile(const memo_profile* profile);

#endif
