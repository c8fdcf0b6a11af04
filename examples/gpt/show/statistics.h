/* statistics.h - times of several policies that run by turns: medians and their spread. */
#ifndef TRAIN_STATISTICS_H
#define TRAIN_STATISTICS_H

#include <stdint.h>

/* Sorts values. */
double median(double* values, int64_t n);

/* A median with quartiles. */
typedef struct spread {
    double median, low, high;
} spread;

/* Sorts values; n is at least 1. */
spread spread_of(double* values, int64_t n);

/* Fewer rounds tell nothing: what else the machine did in one of them would decide. */
enum { ROUNDS_TO_TELL = 5 };

/* Sorts values; n is at least ROUNDS_TO_TELL.  Returns how many times as long the second longest is
 * as the second shortest: one round that something else delayed does not count. */
double spread_factor(double* values, int64_t n);

/* From this factor on, times tell about the machine's other work. */
#define FACTOR_OF_NOISE 1.5

/* The median of a / b, round by round, so that a drift of the machine cancels.
 * scratch has n values. */
double ratio_of(const double* a, const double* b, int64_t n, double* scratch);

/* Returns who of n is number i in a round.  Each round begins with another one, and every second
 * goes backwards.  So each runs equally often at each place, after each neighbor. */
int turn(int64_t round, int i, int n);

#endif
