/* paper_common.h - what the tables of all three papers share: constants with their origin, scores,
 * a small optimizer and the check marks.
 *
 * Part of paper_tables.c and of its test. */
#ifndef PAPER_COMMON_H
#define PAPER_COMMON_H

/* memo.h asks for POSIX, so it comes before any system header. */
#ifndef MEMO_IMPLEMENTATION
#define MEMO_IMPLEMENTATION
#endif
#ifndef MEMO_LOOK_IMPLEMENTATION
#define MEMO_LOOK_IMPLEMENTATION
#endif
#ifndef MEMO_PLAN_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION
#endif
#include "memo_plan.h"
#ifndef MEMO_SP_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION
#endif
#include "memo_sp.h"
#ifndef MEMO_LAYOUT_IMPLEMENTATION
#define MEMO_LAYOUT_IMPLEMENTATION
#endif
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
#define PAPER_MAX 64 /* most rows of a table that is scored */

static inline double paper_max(double a, double b) { return a > b ? a : b; }
static inline double paper_min(double a, double b) { return a < b ? a : b; }

/* Everything is printed here; NULL: standard output. */
static FILE* paper_output;

#ifdef __GNUC__
__attribute__((format(printf, 1, 2)))
#endif
static inline void
paper_print(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vfprintf(paper_output ? paper_output : stdout, format, arguments);
    va_end(arguments);
}

/* ---- constants, each with its origin ---- */

typedef enum paper_origin {
    PAPER_STATED,  /* by the paper */
    PAPER_FITTED,  /* to published figures, which the source names */
    PAPER_ASSUMED, /* for the reason in source */
    PAPER_MEASURED /* by us, on hardware that no paper has */
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

static inline void paper_set_constants(void* hardware, const paper_constant* constants, int n) {
    for (const paper_constant* c = constants; c < constants + n; c++)
        if (c->scale > 0) *(double*)(void*)((char*)hardware + c->field) = c->value * c->scale;
}

/* hardware: what was fitted has another value there; NULL: as stated. */
static inline void paper_print_constants(const char* title, const paper_constant* constants, int n,
                                         const void* hardware) {
    static const char* const origins[] = {"stated by the paper", "fitted", "assumed", "measured"};
    paper_print("  %s\n", title);
    for (const paper_constant* c = constants; c < constants + n; c++)
        paper_print("    %-33s %8.5g %-8s %-19s %s\n", c->name,
                    c->scale > 0 && hardware
                        ? *(const double*)(const void*)((const char*)hardware + c->field) / c->scale
                        : c->value,
                    c->unit, origins[c->origin], c->source);
}
#define PAPER_N(array)                       ((int)(sizeof(array) / sizeof *(array)))
#define PAPER_SET_CONSTANTS(hardware, table) paper_set_constants(hardware, table, PAPER_N(table))
#define PAPER_PRINT_CONSTANTS(title, table, hardware)                                              \
    paper_print_constants(title, table, PAPER_N(table), hardware)

/* ---- criteria: printed as they are, met or missed ---- */

typedef struct paper_criteria {
    int n_met, n_missed;
} paper_criteria;

#ifdef __GNUC__
__attribute__((format(printf, 3, 4)))
#endif
static inline void
paper_criterion(paper_criteria* criteria, int is_met, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    paper_print("  [%s] ", is_met ? "met " : "MISS");
    (void)vfprintf(paper_output ? paper_output : stdout, format, arguments);
    paper_print("\n");
    va_end(arguments);
    if (is_met)
        criteria->n_met++;
    else
        criteria->n_missed++;
}

/* ---- scores ---- */

/* Ranks from 1; equal values share the mean of their ranks. */
static inline void paper_ranks(const double* values, int n, double* ranks) {
    for (int i = 0; i < n; i++) {
        int below = 0, equal = 0;
        for (int j = 0; j < n; j++) {
            if (values[j] < values[i])
                below++;
            else if (values[j] <= values[i])
                equal++;
        }
        ranks[i] = below + 0.5 * (equal + 1);
    }
}

/* Spearman's rank correlation, n <= PAPER_MAX; 0 if one side is constant. */
static inline double paper_spearman(const double* a, const double* b, int n) {
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

static inline double paper_mean_absolute(const double* residuals, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += fabs(residuals[i]);
    return n > 0 ? sum / n : 0;
}

/* ---- a small deterministic optimizer: Nelder and Mead's simplex, at most 8 variables ---- */

#define PAPER_MAX_VARIABLES 8
typedef double (*paper_objective)(const double* variables, void* user);

/* Moves variables to a local minimum; the first simplex spans 10 % of each. */
static inline double paper_minimize(double* variables, int n, paper_objective objective,
                                    void* user) {
    double points[PAPER_MAX_VARIABLES + 1][PAPER_MAX_VARIABLES], values[PAPER_MAX_VARIABLES + 1];
    int i, j;

    /* A restart with a fresh simplex leaves a collapsed one. */
    for (int restart = 0; restart < 4; restart++) {
        for (i = 0; i <= n; i++) {
            for (j = 0; j < n; j++) points[i][j] = variables[j] * (i == j + 1 ? 1.1 : 1.0);
            values[i] = objective(points[i], user);
        }

        for (int step = 0; step < 400; step++) {
            double center[PAPER_MAX_VARIABLES] = {0}, trial[PAPER_MAX_VARIABLES], trial_value;
            int best = 0, worst = 0, second;

            /* The best, worst and second worst points. */
            for (i = 1; i <= n; i++) {
                if (values[i] < values[best]) best = i;
                if (values[i] > values[worst]) worst = i;
            }
            if (values[worst] - values[best] < 1e-12) break;
            second = best;

            /* Reflect the worst point through the center of the others. */
            for (i = 0; i <= n; i++)
                if (i != worst && values[i] > values[second]) second = i;
            for (i = 0; i <= n; i++)
                for (j = 0; j < n && i != worst; j++) center[j] += points[i][j] / n;
            for (j = 0; j < n; j++) trial[j] = 2 * center[j] - points[worst][j];
            trial_value = objective(trial, user);
            if (trial_value < values[best]) { /* reflected well: go on */
                double farther[PAPER_MAX_VARIABLES], farther_value;
                for (j = 0; j < n; j++) farther[j] = 3 * center[j] - 2 * points[worst][j];
                farther_value = objective(farther, user);
                if (farther_value < trial_value) {
                    trial_value = farther_value;
                    memcpy(trial, farther, sizeof trial);
                }
            } else if (trial_value >= values[second]) { /* badly: contract */
                for (j = 0; j < n; j++) trial[j] = 0.5 * (center[j] + points[worst][j]);
                trial_value = objective(trial, user);
            }

            if (trial_value < values[worst]) {
                memcpy(points[worst], trial, sizeof trial);
                values[worst] = trial_value;
            } else { /* shrink toward the best */
                for (i = 0; i <= n; i++) {
                    if (i == best) continue;
                    for (j = 0; j < n; j++) points[i][j] = 0.5 * (points[i][j] + points[best][j]);
                    values[i] = objective(points[i], user);
                }
            }
        }

        for (i = 0, j = 0; i <= n; i++)
            if (values[i] < values[j]) j = i;
        memcpy(variables, points[j], (size_t)n * sizeof(double));
    }
    return objective(variables, user);
}

#endif /* PAPER_COMMON_H */
