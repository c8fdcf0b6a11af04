/* plan.h - plans a run before any allocation: one memo_step_plan for a policy. */
#ifndef TRAIN_PLAN_H
#define TRAIN_PLAN_H

#include "gpt/model/gpt.h"
#include "gpt/run/options.h"

gpt_config train_config(const train_options* o);

/* Returns how many of policy_order, from the first, support the config.  Plans of rows need one
 * degree for all blocks. */
int train_n_policies(const train_options* o);

/* Of a rank. */
int64_t train_rows(const train_options* o);

/* Returns 1e18 if it is unknown. */
int64_t bytes_free(const char* folder);

/* Returns the bytes of tokens on their way to the device, which are pinned beside the session. */
int64_t train_staged_bytes(const train_options* o);

/* Returns the budgets and the policy of a rank's session. */
memo_session_desc train_session(const train_options* o, memo_policy policy);

/* Adds these bytes to a plan of such a session, and to its budget. */
void train_add_staged(const train_options* o, memo_step_plan* plan);

/* Plans a policy.  profile NULL: without times.  most_slices: as in gpt_desc.  like: a plan whose
 * rows and groups it takes; NULL: it chooses. */
memo_status train_plan(const train_options* o, memo_policy policy, int64_t most_slices,
                       const memo_profile* profile, const memo_step_plan* like,
                       memo_step_plan** plan, memo_error* error);

/* Returns "48 GB/s each way", or both rates. */
const char* link_text(const train_options* o);

/* Prints how long copies of these bytes take, if over a minute at --link-bandwidth. */
void print_slow_link(const train_options* o, const char* what, int64_t to_host_bytes,
                     int64_t to_device_bytes);

/* Returns "device: needs 163.0 MiB of 48.0 MiB", and the same for the host and the disk if they are
 * short; empty if the plan fits. */
const char* plan_shortage(const train_options* o, const memo_step_plan* p);

/* Returns the bytes of rows copied in a step, both ways. */
int64_t moved_bytes(const train_options* o, const memo_step_plan* plan);

/* Prints the placement of rows and the reason.  Times are printed only if they were measured. */
void print_choice(const train_options* o, const memo_step_plan* plan, int is_measured);

/* Bytes of a plan on the device, on the host and in a file, by owner.  Limit 0: none. */
enum { TIER_STATES, TIER_ACTIVATIONS, TIER_BUFFERS, TIER_WHOLE, TIER_LIMIT, N_TIER_PARTS };
void plan_tiers(const train_options* o, const memo_step_plan* p,
                int64_t tiers[MEMO_N_TIERS][N_TIER_PARTS]);
int is_short(const int64_t* tier);
void print_plan(const train_options* o, memo_policy policy, const memo_step_plan* p);

/* The entry of a table in the column of alpha. */
const char* alpha_name(const train_options* o, memo_policy policy, const memo_step_plan* plan);
void print_policies(const train_options* o, memo_step_plan* const* plans);

/* ---- profile.c: times of a layer that are not measured ---------------------------------------- */

/* Replaces a measured profile.  Products and attention run at the rates of --flops, copies at the
 * rate of --link-bandwidth; without it copies take no time.  Attention has two products with the
 * keys that a query sees forward and five backward.  Other products take their forward's time again
 * for the gradient of their inputs, and as long in bf16 for that of weights.  Other kernels (norms,
 * RoPE, residuals, the MLP's function, the loss) move numbers at the bandwidth of --cluster. */
void estimate_profile(const train_options* o, memo_profile* profile);

/* Reads --profile.  Its times must be those of a layer of this model with as many rows.  A file has
 * no width and no type, so these are not compared. */
memo_status read_profile(const train_options* o, memo_profile* profile, memo_error* error);

/* Gives the file of --spill the rate of --spill-bandwidth.  Refuses a profile that has no times of
 * the file: a plan would take it for free. */
memo_status check_file_times(const train_options* o, memo_profile* profile, memo_error* error);
void print_estimate(const train_options* o);

/* Bytes of frozen weights that are read in a second: those of mapped files, or of a disk as slow as
 * --spill-bandwidth. */
double estimate_fetch(const train_options* o);

void print_profile(const train_options* o, const memo_profile* profile);

/* ---- refuse.c: why a run does not fit, and what would ---------------------------------------- */

/* Returns whether the run fits, in `most` slices or fewer.  Then *slice_rows is the rows of the
 * largest slice; 0: all at once. */
int run_fits(const train_options* o, memo_policy policy, int64_t most, int64_t* slice_rows);

/* Prints the lengths that fit with and without slices, beside one that fits.  given_rows: of
 * --slice-rows; 0: o has the largest slices that fit, and so has each length. */
void print_longest(const train_options* o, int64_t given_rows);

/* Prints the slices with which the plan's step is predicted to be faster, if there are such. */
void print_faster_slices(const train_options* o, const memo_step_plan* plan);

/* Prints the smallest device on which the model trains, if the host holds what leaves it. */
void print_least(const train_options* o);

/* Explains why a run cannot have this plan, and names options and budgets with which it fits. */
memo_status refuse(const train_options* o, const memo_step_plan* plan, memo_error* error);

#endif
