/* compare.h - the first steps of a policy: timed for --seconds, and compared with those of
 * others. */
#ifndef TRAIN_COMPARE_H
#define TRAIN_COMPARE_H

#include "gpt/run/run.h"

/* The predicted time of a step; 0: none is predicted. */
double predicted_step_s(const memo_step_plan* plan);

/* Shortens the run to --seconds, so that it ends in time on any machine.  It reduces the steps and,
 * if a step is slow, the comparison.  The first policy that is open calls it; a step of the chosen
 * one takes longer in the ratio of their predictions.  All ranks take the slowest rank's
 * figures. */
memo_status choose_steps(run* r, job* j, memo_error* error);

/* Whether layers are measured again in each round. */
int predicts_again(const job* j);

/* Compares all policies.  The chosen one is the last and, if is_shared, stays open. */
memo_status compare_policies(job* j, team* teams, int is_shared, memo_error* error);

#endif
