/* train_report.h - the trainer's output: sizes, a progress line, generated text, a picture of the
 * loss. */
#ifndef TRAIN_REPORT_H
#define TRAIN_REPORT_H

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "memo.h"

/* ---- numbers -------------------------------------------------------------------------------- */

/* Returns room for a short text, valid during the next 15 calls. */
static char* short_text(void) {
    static char ring[16][32];
    static int next;
    next = (next + 1) % 16;
    return ring[next];
}

/* "12.3 MiB" */
static const char* bytes_name(double n_bytes) {
    static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    char* text = short_text();
    int unit = 0;
    while (n_bytes >= 1024 && unit < 6) {
        n_bytes /= 1024;
        unit++;
    }
    snprintf(text, 32, unit ? "%.1f %s" : "%.0f %s", n_bytes, units[unit]);
    return text;
}

/* Returns the smallest size with a suffix that is at least n_bytes, in the form of an option:
 * "72MiB". */
static const char* bytes_option(int64_t n_bytes) {
    static const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
    char* text = short_text();
    int64_t size = 1024;
    int unit = 0;
    while (unit < 3 && n_bytes / size >= 10240) {
        size *= 1024;
        unit++;
    }
    snprintf(text, 32, "%lld%s", (long long)((n_bytes + size - 1) / size), units[unit]);
    return text;
}

static double clock_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

/* Sorts values. */
static double median(double* values, int64_t n) {
    if (n == 0) return 0;
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* ---- progress ------------------------------------------------------------------------------- */

#define PROGRESS_LINES 25 /* in a file */

typedef struct progress {
    int64_t first, n_steps, step_tokens; /* first: the number of the first one, from 0 */
    double begin_s, shown_s;
    int is_terminal;
} progress;

static void progress_begin(progress* p, int64_t first, int64_t n_steps, int64_t step_tokens) {
    p->first = first;
    p->n_steps = n_steps;
    p->step_tokens = step_tokens;
    p->is_terminal = isatty(STDOUT_FILENO);
    p->begin_s = clock_s();
    p->shown_s = 0;
}

/* On a terminal, one line that is rewritten at most five times a second; otherwise a line at
 * intervals. */
static void progress_show(progress* p, int64_t step, double loss) {
    double now = clock_s(), done = (double)(step + 1 - p->first), elapsed = now - p->begin_s;
    double left_s = elapsed / done * (double)(p->n_steps - step - 1);
    int64_t every = (p->n_steps + PROGRESS_LINES - 1) / PROGRESS_LINES;
    int is_last = step + 1 == p->n_steps;
    if (p->is_terminal ? !is_last && now - p->shown_s < 0.2 : !is_last && step % every) return;
    p->shown_s = now;
    printf("%sstep %lld of %lld   loss %.4f nats/token   %.0f tokens/s   %.0f s left%s",
           p->is_terminal ? "\r\033[K" : "  ", (long long)step + 1, (long long)p->n_steps, loss,
           (double)p->step_tokens * done / elapsed, left_s, p->is_terminal ? "" : "\n");
    fflush(stdout);
}

/* Leaves the terminal at the start of an empty line, even after an error. */
static void progress_end(const progress* p) {
    if (p->is_terminal) printf("\n");
    fflush(stdout);
}

/* ---- generated text ------------------------------------------------------------------------- */

/* Prints printable bytes and line ends unchanged, other bytes as \xNN, with a margin.  A terminal
 * can show the text safely. */
static void print_bytes(const uint8_t* bytes, int64_t n_bytes) {
    printf("    | ");
    for (int64_t i = 0; i < n_bytes; i++) {
        if (bytes[i] == '\n')
            printf("\n    | ");
        else if (bytes[i] == '\t')
            printf("\\t");
        else if (bytes[i] >= 32 && bytes[i] < 127)
            putchar(bytes[i]);
        else
            printf("\\x%02x", bytes[i]);
    }
    printf("\n");
}

/* ---- loss over steps, as SVG ---------------------------------------------------------------- */

typedef struct loss_chart {
    const double* losses; /* nats per token, one a step */
    int64_t n_steps;
    double unigram_nats, bigram_nats;
    const char* title;
} loss_chart;

#define CHART_LEFT   70.0
#define CHART_TOP    50.0
#define CHART_WIDTH  780.0
#define CHART_HEIGHT 380.0

typedef struct chart_axes {
    double x_high, y_low, y_high; /* x from 0 */
} chart_axes;

static double chart_x(const chart_axes* axes, double x) {
    return CHART_LEFT + CHART_WIDTH * x / axes->x_high;
}
static double chart_y(const chart_axes* axes, double y) {
    return CHART_TOP + CHART_HEIGHT * (axes->y_high - y) / (axes->y_high - axes->y_low);
}

/* Returns 1, 2 or 5 times a power of ten, so that `range` has about `wanted` intervals. */
static double chart_tick(double range, double wanted) {
    double step = pow(10, floor(log10(range / wanted)));
    double ratio = range / wanted / step;
    return step * (ratio > 5 ? 10 : ratio > 2 ? 5 : ratio > 1 ? 2 : 1);
}

/* The mean over the last eighth of the steps so far, at most a twentieth of all steps.  It lags
 * little while the loss falls fast, and smooths well later. */
static void loss_smooth(const double* losses, int64_t n, double* smooth) {
    double sum = 0;
    int64_t i, begin = 0;
    for (i = 0; i < n; i++) {
        int64_t window = 1 + (i / 8 < n / 20 ? i / 8 : n / 20);
        sum += losses[i];
        while (begin <= i - window) sum -= losses[begin++];
        smooth[i] = sum / (double)(i + 1 - begin);
    }
}

static void chart_write_axes(memo_text* text, const chart_axes* axes) {
    double step = chart_tick(axes->y_high - axes->y_low, 6), v;
    double right = CHART_LEFT + CHART_WIDTH, bottom = CHART_TOP + CHART_HEIGHT;

    /* Ticks. */
    for (v = ceil(axes->y_low / step) * step; v <= axes->y_high + 1e-9; v += step)
        memo_text_put(text,
                      "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#e4e4e4'/>"
                      "<text x='%.1f' y='%.1f' text-anchor='end'>%.4g</text>\n",
                      CHART_LEFT, chart_y(axes, v), right, chart_y(axes, v), CHART_LEFT - 8,
                      chart_y(axes, v) + 4, v);
    step = chart_tick(axes->x_high, 8);
    if (step < 1) step = 1;
    for (v = 0; v <= axes->x_high + 1e-9; v += step)
        memo_text_put(text,
                      "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#333'/>"
                      "<text x='%.1f' y='%.1f' text-anchor='middle'>%.0f</text>\n",
                      chart_x(axes, v), bottom, chart_x(axes, v), bottom + 5, chart_x(axes, v),
                      bottom + 20, v);

    /* Lines and names. */
    memo_text_put(text, "<path d='M%.1f %.1fV%.1fH%.1f' fill='none' stroke='#333'/>\n", CHART_LEFT,
                  CHART_TOP, bottom, right);
    memo_text_put(text, "<text x='%.1f' y='%.1f' text-anchor='middle'>training step</text>\n",
                  CHART_LEFT + CHART_WIDTH / 2, bottom + 42);
    memo_text_put(text,
                  "<text transform='translate(22 %.1f) rotate(-90)' text-anchor='middle'>"
                  "loss (nats per token)</text>\n",
                  CHART_TOP + CHART_HEIGHT / 2);
}

static void chart_write_curve(memo_text* text, const chart_axes* axes, const double* values,
                              int64_t n, const char* style) {
    int64_t i, stride = n / 4000 + 1; /* more points than pixels only make the file large */
    memo_text_put(text, "<polyline fill='none' %s points='", style);
    for (i = 0; i < n; i += stride)
        memo_text_put(text, "%.1f,%.1f ", chart_x(axes, (double)i + 1), chart_y(axes, values[i]));
    memo_text_put(text, "'/>\n");
}

static void chart_write_level(memo_text* text, const chart_axes* axes, double value,
                              const char* color) {
    memo_text_put(text,
                  "<line x1='%.1f' y1='%.2f' x2='%.1f' y2='%.2f' stroke='%s' stroke-width='1.5' "
                  "stroke-dasharray='7 4'/>\n",
                  CHART_LEFT, chart_y(axes, value), CHART_LEFT + CHART_WIDTH, chart_y(axes, value),
                  color);
}

/* A line of the legend, top right. */
static void chart_write_key(memo_text* text, int row, const char* style, const char* format,
                            double value) {
    double x = CHART_LEFT + CHART_WIDTH - 300, y = CHART_TOP + 20 + 20 * row;
    memo_text_put(text,
                  "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' %s/><text x='%.1f' y='%.1f'>", x,
                  y - 4, x + 30, y - 4, style, x + 40, y);
    memo_text_put(text, "%s %.3f nats per token</text>\n", format, value);
}

static void chart_write_title(memo_text* text, const char* title) {
    memo_text_put(text, "<text x='%.1f' y='28' font-size='16' font-weight='bold'>", CHART_LEFT);
    memo_text_put_xml(text, title);
    memo_text_put(text, "</text>\n");
}

static chart_axes chart_axes_of(const loss_chart* chart) {
    chart_axes axes;
    axes.x_high = (double)(chart->n_steps > 1 ? chart->n_steps : 2);
    axes.y_low = chart->bigram_nats;
    axes.y_high = chart->unigram_nats;
    for (int64_t i = 0; i < chart->n_steps; i++) {
        if (chart->losses[i] < axes.y_low) axes.y_low = chart->losses[i];
        if (chart->losses[i] > axes.y_high) axes.y_high = chart->losses[i];
    }
    axes.y_low = floor(axes.y_low * 2 - 0.2) / 2;
    if (axes.y_low < 0) axes.y_low = 0;
    axes.y_high = ceil(axes.y_high * 2 + 0.2) / 2;
    return axes;
}

static memo_status loss_chart_write(const loss_chart* chart, const char* path, memo_error* error) {
    static const char raw[] = "stroke='#9dbbe0' stroke-width='1'";
    static const char fine[] = "stroke='#1f4e9c' stroke-width='2.2'";
    double* smooth = (double*)malloc((size_t)chart->n_steps * sizeof *smooth);
    chart_axes axes = chart_axes_of(chart);
    memo_text text = {0};
    if (!smooth)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no host memory for %.200s",
                              path);

    loss_smooth(chart->losses, chart->n_steps, smooth);
    memo_text_put(&text,
                  "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 880 490' width='880' "
                  "height='490' font-family='sans-serif' font-size='13' fill='#222'>\n"
                  "<rect width='880' height='490' fill='white'/>\n");
    chart_write_title(&text, chart->title);
    chart_write_axes(&text, &axes);
    chart_write_level(&text, &axes, chart->unigram_nats, "#b8860b");
    chart_write_level(&text, &axes, chart->bigram_nats, "#b03030");
    chart_write_curve(&text, &axes, chart->losses, chart->n_steps, raw);
    chart_write_curve(&text, &axes, smooth, chart->n_steps, fine);

    /* The key. */
    memo_text_put(&text,
                  "<rect x='%.1f' y='%.1f' width='312' height='88' fill='white' fill-opacity='0.9' "
                  "stroke='#ccc'/>\n",
                  CHART_LEFT + CHART_WIDTH - 312, CHART_TOP + 2);
    chart_write_key(&text, 0, raw, "loss of a step, last", chart->losses[chart->n_steps - 1]);
    chart_write_key(&text, 1, fine, "smoothed, last", smooth[chart->n_steps - 1]);
    chart_write_key(&text, 2, "stroke='#b8860b' stroke-width='1.5' stroke-dasharray='7 4'",
                    "unigram entropy", chart->unigram_nats);
    chart_write_key(&text, 3, "stroke='#b03030' stroke-width='1.5' stroke-dasharray='7 4'",
                    "bigram entropy", chart->bigram_nats);

    memo_text_put(&text, "</svg>\n");
    free(smooth);
    return memo_text_write(&text, path, error);
}

#endif
