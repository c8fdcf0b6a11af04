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

/* The median of a / b, round by round, so that a drift of the machine cancels.
 * scratch has n values. */
double ratio_of(const double* a, const double* b, int64_t n, double* scratch);

/* Returns who of n is number i in a round.  Each round begins with another one, and every second
 * goes backwards.  So each runs equally often at each place, after each neighbor. */
int turn(int64_t round, int i, int n);

#endif
