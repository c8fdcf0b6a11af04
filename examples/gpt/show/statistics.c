#include "gpt/show/statistics.h"

#include <math.h>
#include <stdio.h>
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

/* ---- two policies ---------------------------------------------------------------------------- */

/* Times whose quartiles are further apart than this share of the median tell about the machine, not
 * about policies. */
#define SHARE_TO_TELL 0.3

int are_narrow(const spread* s) { return s->high - s->low <= SHARE_TO_TELL * s->median; }

/* Returns how many values to leave out at each end of n sorted ones, so that the others hold the
 * median with a confidence of 95 %: by the sign test, of any distribution. */
static int64_t n_beyond(int64_t n) {
    double term = ldexp(1, (int)-n), sum = term; /* binomial probabilities of 0, 1, ... */
    int64_t k = 0;
    if (n > 1000) return (int64_t)floor(0.5 * ((double)n - 1.96 * sqrt((double)n))); /* underflow */
    while (sum <= 0.025) {
        term *= (double)(n - k) / (double)(k + 1);
        sum += term;
        k++;
    }
    return k - 1;
}

spread difference_of(const double* a, const double* b, int64_t n, double* scratch) {
    const int64_t k = n_beyond(n);
    spread s;
    for (int64_t i = 0; i < n; i++) scratch[i] = a[i] - b[i];
    s.median = median(scratch, n);
    s.low = scratch[k];
    s.high = scratch[n - 1 - k];
    return s;
}

double ratio_of(const double* a, const double* b, int64_t n, double* scratch) {
    for (int64_t i = 0; i < n; i++) scratch[i] = b[i] > 0 ? a[i] / b[i] : 0;
    return median(scratch, n);
}

int is_different(const spread* difference) { return difference->low > 0 || difference->high < 0; }

const char* difference_words(const char* a, const char* b, const spread* difference, double a_s,
                             char* text, size_t n_text) {
    const double sign = difference->median < 0 ? -1 : 1, ms = 1e3 * sign;
    const double low_ms = ms * (sign < 0 ? difference->high : difference->low);
    const double high_ms = ms * (sign < 0 ? difference->low : difference->high);
    if (is_different(difference))
        snprintf(text, n_text,
                 "%-9s takes %.1f ms (%.1f%%) %s than %s a step, in the median of rounds; with a "
                 "confidence of 95%% %.1f to %.1f ms",
                 b, ms * difference->median, 1e-1 * ms * difference->median / a_s,
                 sign < 0 ? "less" : "more", a, low_ms, high_ms);
    else
        snprintf(text, n_text,
                 "%-9s and %s do not differ beyond their spread: %.1f ms in the median of rounds, "
                 "with a confidence of 95%% %.1f to %.1f ms",
                 b, a, 1e3 * difference->median, 1e3 * difference->low, 1e3 * difference->high);
    return text;
}

/* ---- turns ---------------------------------------------------------------------------------- */

int turn(int64_t round, int i, int n) {
    const int place = round % 2 ? n - 1 - i : i;
    return (int)((round / 2 + place) % n);
}
