/* statistics.h - times of several policies that run by turns: medians, their spread, and
 * whether two policies differ. */
#ifndef TRAIN_STATISTICS_H
#define TRAIN_STATISTICS_H

#include <stddef.h>
#include <stdint.h>

/* Sorts values. */
double median(double* values, int64_t n);

/* A median with bounds: quartiles, or the interval that holds the true median with a confidence of
 * 95 %. */
typedef struct spread {
    double median, low, high;
} spread;

/* With quartiles.  Sorts values; n is at least 1. */
spread spread_of(double* values, int64_t n);

/* Fewer rounds have no interval of 95 %: even if all have the same sign, chance alone gives that in
 * 2 of 2^5 = 32 cases. */
enum { ROUNDS_TO_DIFFER = 6 };

/* Returns whether times with these quartiles tell about what was timed. */
int are_narrow(const spread* s);

/* Of a - b, round by round, so that a drift of the machine cancels.  Interval of 95 %; n is at
 * least ROUNDS_TO_DIFFER.  scratch has n values. */
spread difference_of(const double* a, const double* b, int64_t n, double* scratch);

/* The median of a / b, round by round, so that a drift of the machine cancels. */
double ratio_of(const double* a, const double* b, int64_t n, double* scratch);

/* Returns whether the interval of a difference leaves no doubt about its sign. */
int is_different(const spread* difference);

/* Writes a sentence about the difference `b - a` of two policies, in seconds; a_s is a's time. */
const char* difference_words(const char* a, const char* b, const spread* difference, double a_s,
                             char* text, size_t n_text);

/* Returns who of n is number i in a round.  Each round begins with another one, and every second
 * goes backwards.  So each runs equally often at each place, after each neighbor. */
int turn(int64_t round, int i, int n);

#endif
