/* paper_common.h - what the tables of all three papers share: constants with their origin,
 * criteria and scores.
 *
 * Part of paper_tables.c and of its test. */
#ifndef PAPER_COMMON_H
#define PAPER_COMMON_H

/* memo.h asks for POSIX, so it comes before any system header. */
#define MEMO_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#define MEMO_LAYOUT_IMPLEMENTATION
#include "memo_plan.h"
#include "memo_sp.h"
#include "extras/memo_layout.h"
#include "extras/memo_look.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAPER_K   1024.0 /* the papers' K: 64K is 65536 tokens */
#define PAPER_GIB 1073741824.0
#define PAPER_GB  1e9
#define PAPER_MAX 64 /* most rows of a table that is scored, and most criteria */

static double paper_max(double a, double b) { return a > b ? a : b; }
static double paper_min(double a, double b) { return a < b ? a : b; }

/* Everything is printed here; NULL: standard output. */
static FILE* paper_output;

MEMO_PRINTF(1, 2) static void paper_print(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vfprintf(paper_output ? paper_output : stdout, format, arguments);
    va_end(arguments);
}

/* ---- constants, each with its origin ---- */

typedef enum paper_origin {
    STATED,  /* by the paper */
    FITTED,  /* to published figures, which the source names */
    ASSUMED, /* for the reason in source */
    MEASURED /* by us, on hardware that no paper has */
} paper_origin;

typedef struct paper_constant {
    const char* name;
    double value; /* in the unit printed */
    const char* unit;
    paper_origin origin;
    const char* source; /* section, data of the fit, or reason of the assumption */
    size_t field;       /* a double of the hardware, which is value * scale; scale 0: none */
    double scale;
} paper_constant;
#define PAPER_N(array) ((int)(sizeof(array) / sizeof *(array)))

static void paper_set_constants(void* hardware, const paper_constant* constants, int n) {
    for (const paper_constant* c = constants; c < constants + n; c++)
        if (c->scale > 0) *(double*)(void*)((char*)hardware + c->field) = c->value * c->scale;
}

/* hardware: what was fitted has another value there; NULL: as stated. */
static void paper_print_constants(const paper_constant* constants, int n, const void* hardware) {
    static const char* const origins[] = {"stated by the paper", "fitted", "assumed", "measured"};
    for (const paper_constant* c = constants; c < constants + n; c++) {
        const void* field = (const char*)hardware + (hardware ? c->field : 0);
        double value = c->scale > 0 && hardware ? *(const double*)field / c->scale : c->value;
        paper_print("    %-33s %8.5g %-8s %-19s %s\n", c->name, value, c->unit, origins[c->origin],
                    c->source);
    }
}

/* ---- criteria: kept with their figures, and printed after the tables, met or missed ---- */

typedef struct paper_criteria {
    int n, n_missed, n_printed;
    int is_met[PAPER_MAX];
    char text[PAPER_MAX][160];
} paper_criteria;
static paper_criteria paper_all;

MEMO_PRINTF(2, 3) static void paper_criterion(int is_met, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(paper_all.text[paper_all.n], sizeof *paper_all.text, format, arguments);
    va_end(arguments);
    paper_all.is_met[paper_all.n++] = is_met;
    paper_all.n_missed += !is_met;
}

/* Prints the criteria since the last call. */
static void paper_print_criteria(const char* paper) {
    paper_print("\n%s: criteria\n", paper);
    for (int i = paper_all.n_printed; i < paper_all.n; i++)
        paper_print("  [%s] %s\n", paper_all.is_met[i] ? "met " : "MISS", paper_all.text[i]);
    paper_all.n_printed = paper_all.n;
}

/* ---- scores ---- */

/* Ranks from 1; equal values share the mean of their ranks. */
static void paper_ranks(const double* values, int n, double* ranks) {
    for (int i = 0; i < n; i++) {
        int below = 0, equal = 0;
        for (int j = 0; j < n; j++) {
            below += values[j] < values[i];
            equal += values[j] >= values[i] && values[j] <= values[i];
        }
        ranks[i] = below + 0.5 * (equal + 1);
    }
}

/* Spearman's rank correlation, n <= PAPER_MAX; 0 if one side is constant. */
static double paper_spearman(const double* a, const double* b, int n) {
    double ranks_a[PAPER_MAX], ranks_b[PAPER_MAX];
    double mean = 0.5 * (n + 1), covariance = 0, variance_a = 0, variance_b = 0;
    paper_ranks(a, n, ranks_a);
    paper_ranks(b, n, ranks_b);
    for (int i = 0; i < n; i++) {
        covariance += (ranks_a[i] - mean) * (ranks_b[i] - mean);
        variance_a += (ranks_a[i] - mean) * (ranks_a[i] - mean);
        variance_b += (ranks_b[i] - mean) * (ranks_b[i] - mean);
    }
    return variance_a > 0 && variance_b > 0 ? covariance / sqrt(variance_a * variance_b) : 0;
}

static double paper_mean_absolute(const double* residuals, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += fabs(residuals[i]);
    return n > 0 ? sum / n : 0;
}

#endif /* PAPER_COMMON_H */
