#include "gpt/show/statistics.h"

#include <stdlib.h>

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

double median(double* values, int64_t n) {
    if (n == 0) return 0;
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* Between sorted values. */
static double quantile(const double* sorted, int64_t n, double fraction) {
    const double at = fraction * (double)(n - 1);
    const int64_t i = (int64_t)at;
    return i + 1 < n ? sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[i];
}

spread spread_of(double* values, int64_t n) {
    spread s;
    s.median = median(values, n);
    s.low = quantile(values, n, 0.25);
    s.high = quantile(values, n, 0.75);
    return s;
}

double spread_factor(double* values, int64_t n) {
    median(values, n);
    return values[1] > 0 ? values[n - 2] / values[1] : 1;
}

double ratio_of(const double* a, const double* b, int64_t n, double* scratch) {
    for (int64_t i = 0; i < n; i++) scratch[i] = b[i] > 0 ? a[i] / b[i] : 0;
    return median(scratch, n);
}

/* ---- turns ---------------------------------------------------------------------------------- */

int turn(int64_t round, int i, int n) {
    const int place = round % 2 ? n - 1 - i : i;
    return (int)((round / 2 + place) % n);
}
