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

/* ---- pieces of an SVG: a picture with a title, a line, a text --------------------------------- */

static void svg_begin(memo_text* t, int width, int height, int left, const char* title) {
    memo_text_put(t,
                  "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' "
                  "height='%d' font-family='sans-serif' font-size='13' fill='#222'>\n"
                  "<rect width='%d' height='%d' fill='white'/>\n"
                  "<text x='%d' y='27' font-size='16' font-weight='bold'>",
                  width, height, width, height, width, height, left);
    memo_text_put_xml(t, title);
    memo_text_put(t, "</text>\n");
}

static void svg_line(memo_text* t, double x1, double y1, double x2, double y2, const char* style) {
    memo_text_put(t, "<line x1='%.1f' y1='%.2f' x2='%.1f' y2='%.2f' %s/>\n", x1, y1, x2, y2, style);
}

/* anchor: start, middle or end. */
static void svg_text(memo_text* t, double x, double y, const char* anchor, const char* what) {
    memo_text_put(t, "<text x='%.1f' y='%.1f' text-anchor='%s'>%s</text>\n", x, y, anchor, what);
}
static void svg_number(memo_text* t, double x, double y, const char* anchor, double value,
                       const char* unit) {
    memo_text_put(t, "<text x='%.1f' y='%.1f' text-anchor='%s'>%.9g%s</text>\n", x, y, anchor,
                  value, unit);
}

/* ---- loss over steps, as SVG ---------------------------------------------------------------- */

typedef struct loss_chart {
    const double* losses; /* nats per token, one a step */
    int64_t n_steps;
    double unigram_nats, bigram_nats;
    const char* title;
} loss_chart;

enum { CHART_LEFT = 70, CHART_TOP = 50, CHART_WIDTH = 780, CHART_HEIGHT = 380 };

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
    int64_t begin = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t window = 1 + (i / 8 < n / 20 ? i / 8 : n / 20);
        sum += losses[i];
        while (begin <= i - window) sum -= losses[begin++];
        smooth[i] = sum / (double)(i + 1 - begin);
    }
}

static void chart_write_axes(memo_text* text, const chart_axes* axes) {
    const double right = CHART_LEFT + CHART_WIDTH, bottom = CHART_TOP + CHART_HEIGHT;
    const double y_step = chart_tick(axes->y_high - axes->y_low, 6);
    const double x_step = fmax(1, chart_tick(axes->x_high, 8));
    for (double v = ceil(axes->y_low / y_step) * y_step; v <= axes->y_high + 1e-9; v += y_step) {
        svg_line(text, CHART_LEFT, chart_y(axes, v), right, chart_y(axes, v), "stroke='#e4e4e4'");
        svg_number(text, CHART_LEFT - 8, chart_y(axes, v) + 4, "end", v, "");
    }
    for (double v = 0; v <= axes->x_high + 1e-9; v += x_step) {
        svg_line(text, chart_x(axes, v), bottom, chart_x(axes, v), bottom + 5, "stroke='#333'");
        svg_number(text, chart_x(axes, v), bottom + 20, "middle", v, "");
    }
    svg_line(text, CHART_LEFT, CHART_TOP, CHART_LEFT, bottom, "stroke='#333'");
    svg_line(text, CHART_LEFT, bottom, right, bottom, "stroke='#333'");
    svg_text(text, CHART_LEFT + CHART_WIDTH / 2, bottom + 42, "middle", "training step");
    svg_text(text, CHART_LEFT, CHART_TOP - 8, "start", "loss (nats per token)");
}

static void chart_write_curve(memo_text* text, const chart_axes* axes, const double* values,
                              int64_t n, const char* style) {
    const int64_t stride = n / 4000 + 1; /* more points than pixels only make the file large */
    memo_text_put(text, "<polyline fill='none' %s points='", style);
    for (int64_t i = 0; i < n; i += stride)
        memo_text_put(text, "%.1f,%.1f ", chart_x(axes, (double)i + 1), chart_y(axes, values[i]));
    memo_text_put(text, "'/>\n");
}

/* A line of the legend, top right. */
static void chart_write_key(memo_text* text, int row, const char* style, const char* name,
                            double value) {
    const double x = CHART_LEFT + CHART_WIDTH - 300, y = CHART_TOP + 20 + 20 * row;
    char key[80];
    snprintf(key, sizeof key, "%s %.3f nats per token", name, value);
    svg_line(text, x, y - 4, x + 30, y - 4, style);
    svg_text(text, x + 40, y, "start", key);
}

static chart_axes chart_axes_of(const loss_chart* chart) {
    chart_axes axes = {(double)(chart->n_steps > 1 ? chart->n_steps : 2), chart->bigram_nats,
                       chart->unigram_nats};
    for (int64_t i = 0; i < chart->n_steps; i++) {
        axes.y_low = fmin(axes.y_low, chart->losses[i]);
        axes.y_high = fmax(axes.y_high, chart->losses[i]);
    }
    axes.y_low = fmax(0, floor(axes.y_low * 2 - 0.2) / 2);
    axes.y_high = ceil(axes.y_high * 2 + 0.2) / 2;
    return axes;
}

static memo_status loss_chart_write(const loss_chart* chart, const char* path, memo_error* error) {
    static const char raw[] = "stroke='#9dbbe0' stroke-width='1'";
    static const char fine[] = "stroke='#1f4e9c' stroke-width='2.2'";
    static const char unigram[] = "stroke='#b8860b' stroke-width='1.5' stroke-dasharray='7 4'";
    static const char bigram[] = "stroke='#b03030' stroke-width='1.5' stroke-dasharray='7 4'";
    const double right = CHART_LEFT + CHART_WIDTH;
    const chart_axes axes = chart_axes_of(chart);
    const double unigram_y = chart_y(&axes, chart->unigram_nats);
    const double bigram_y = chart_y(&axes, chart->bigram_nats);
    double* smooth = (double*)malloc((size_t)chart->n_steps * sizeof *smooth);
    memo_text text = {0};
    if (!smooth)
        return memo_error_set(error, MEMO_STATUS_OUT_OF_HOST_MEMORY, "no host memory for %.200s",
                              path);

    loss_smooth(chart->losses, chart->n_steps, smooth);
    svg_begin(&text, 880, 490, CHART_LEFT, chart->title);
    chart_write_axes(&text, &axes);
    svg_line(&text, CHART_LEFT, unigram_y, right, unigram_y, unigram);
    svg_line(&text, CHART_LEFT, bigram_y, right, bigram_y, bigram);
    chart_write_curve(&text, &axes, chart->losses, chart->n_steps, raw);
    chart_write_curve(&text, &axes, smooth, chart->n_steps, fine);

    /* The key. */
    memo_text_put(&text,
                  "<rect x='%.1f' y='%d' width='312' height='88' fill='white' fill-opacity='0.9' "
                  "stroke='#ccc'/>\n",
                  right - 312, CHART_TOP + 2);
    chart_write_key(&text, 0, raw, "loss of a step, last", chart->losses[chart->n_steps - 1]);
    chart_write_key(&text, 1, fine, "smoothed, last", smooth[chart->n_steps - 1]);
    chart_write_key(&text, 2, unigram, "unigram entropy", chart->unigram_nats);
    chart_write_key(&text, 3, bigram, "bigram entropy", chart->bigram_nats);
    memo_text_put(&text, "</svg>\n");
    free(smooth);
    return memo_text_write(&text, path, error);
}

#endif
