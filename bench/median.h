/* median.h - of figures, and the arguments of a benchmark in C or CUDA. */
#ifndef BENCH_MEDIAN_H
#define BENCH_MEDIAN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

/* Sorts values.  Of an even number of values: the mean of the two in the middle. */
static inline double median(double* values, int n) {
    qsort(values, (size_t)n, sizeof(double), compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Ends the program with its usage if --help is given. */
static inline void bench_help(int argc, char** argv, const char* usage) {
    if (argc < 2 || strcmp(argv[1], "--help")) return;
    printf("usage: %s %s\nThe head of its source explains it.\n", argv[0], usage);
    exit(0);
}

/* Argument i, a number from least to most, or a default if it is missing. */
static inline double bench_number(int argc, char** argv, int i, double missing, double least,
                                  double most) {
    char* end;
    double value;
    if (i >= argc) return missing;
    value = strtod(argv[i], &end);
    if (end != argv[i] && !*end && value >= least && value <= most) return value;
    fprintf(stderr, "%s: not a number from %g to %g (%s); --help shows the usage\n", argv[0], least,
            most, argv[i]);
    exit(2);
}

#endif
