#include "gpt/show/report.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- numbers -------------------------------------------------------------------------------- */

const char* text_of(const char* format, ...) {
    static char ring[32][1024];
    static int next;
    va_list values;
    next = (next + 1) % 32;
    va_start(values, format);
    vsnprintf(ring[next], sizeof ring[next], format, values);
    va_end(values);
    return ring[next];
}

const char* path_text(const char* path, const char* name) {
    return path ? text_of("%s%s%s", path, *name == '.' ? "" : "/", name) : NULL;
}

/* Returns the unit of a size: 0 for bytes, 1 for KiB. */
static int bytes_unit(int64_t n_bytes) {
    int unit = 0;
    for (double n = (double)n_bytes; n >= 1024 && unit < 6; unit++) n /= 1024;
    return unit;
}
static const char* bytes_in(int64_t n_bytes, int unit) {
    static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    return text_of("%.*f %s", unit ? 1 : 0, ldexp((double)n_bytes, -10 * unit), units[unit]);
}

const char* bytes_name(int64_t n_bytes) { return bytes_in(n_bytes, bytes_unit(n_bytes)); }

const char* bytes_beside(int64_t n_bytes, int64_t other) {
    int unit = bytes_unit(n_bytes);
    while (unit && n_bytes != other && !strcmp(bytes_in(n_bytes, unit), bytes_in(other, unit)))
        unit--;
    return bytes_in(n_bytes, unit);
}

const char* bytes_option(int64_t n_bytes) {
    static const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
    int64_t size = 1024;
    int unit = 0;
    for (; unit < 3 && n_bytes / size >= 10240; unit++) size *= 1024;
    return text_of("%lld%s", (long long)((n_bytes + size - 1) / size), units[unit]);
}

double clock_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- progress ------------------------------------------------------------------------------- */

#define PROGRESS_LINES 25 /* in a file */

void progress_show(progress* p, int64_t step, double loss) {
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

void progress_end(const progress* p) {
    if (p->is_terminal) printf("\n");
    fflush(stdout);
}

/* What a session logs while it measures, plans and takes memory: on a terminal, one line that is rewritten
 * and then cleared. */
static void starting_write(void* user, const char* message) {
    (void)user;
    printf("\r\033[K%.78s", message);
    fflush(stdout);
}
memo_log starting_log(void) {
    memo_log log = {starting_write, NULL};
    if (!isatty(STDOUT_FILENO)) log.write = NULL;
    return log;
}
void starting_end(memo_log log) {
    if (log.write) log.write(log.user, "");
}

/* ---- generated text ------------------------------------------------------------------------- */

void print_bytes(const uint8_t* bytes, int64_t n_bytes) {
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

/* ---- pieces of an SVG: a picture with a title, a line, a text ------------------------------ */

void svg_begin(memo_text* t, int width, int height, int left, const char* title) {
    memo_text_put(t,
                  "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' "
                  "height='%d' font-family='sans-serif' font-size='13' fill='#222'>\n"
                  "<rect width='%d' height='%d' fill='white'/>\n"
                  "<text x='%d' y='27' font-size='16' font-weight='bold'>",
                  width, height, width, height, width, height, left);
    memo_text_put_xml(t, title);
    memo_text_put(t, "</text>\n");
}

void svg_line(memo_text* t, double x1, double y1, double x2, double y2, const char* style) {
    memo_text_put(t, "<line x1='%.1f' y1='%.2f' x2='%.1f' y2='%.2f' %s/>\n", x1, y1, x2, y2, style);
}

void svg_text(memo_text* t, double x, double y, const char* anchor, const char* what) {
    memo_text_put(t, "<text x='%.1f' y='%.1f' text-anchor='%s'>%s</text>\n", x, y, anchor, what);
}

void svg_key(memo_text* t, double x, double y, const char* color, const char* label) {
    memo_text_put(t, "<rect x='%.0f' y='%.0f' width='12' height='12' fill='%s'/>\n", x, y, color);
    svg_text(t, x + 17, y + 11, "start", label);
}

double svg_tick(double range, int most) {
    double step = 1e-9;
    for (int k = 0; range / step > most; k++) step *= k % 3 == 1 ? 2.5 : 2;
    return step;
}

/* ---- loss over steps, as SVG ---------------------------------------------------------------- */

enum { CHART_LEFT = 70, CHART_RIGHT = 850, CHART_TOP = 60, CHART_BOTTOM = 430 };

static double chart_x(const loss_chart* c, double step) {
    return CHART_LEFT +
           (CHART_RIGHT - CHART_LEFT) * step / (double)(c->n_steps > 1 ? c->n_steps : 2);
}
static double chart_y(const loss_chart* c, double nats) {
    return CHART_TOP + (CHART_BOTTOM - CHART_TOP) * (c->high - nats) / (c->high - c->low);
}

static void chart_put_axes(loss_chart* c) {
    const double n = (double)(c->n_steps > 1 ? c->n_steps : 2), tick = fmax(1, svg_tick(n, 10));
    for (double nats = c->low; nats <= c->high; nats += c->high - c->low > 4 ? 1 : 0.5) {
        svg_line(&c->text, CHART_LEFT, chart_y(c, nats), CHART_RIGHT, chart_y(c, nats),
                 "stroke='#e4e4e4'");
        svg_text(&c->text, CHART_LEFT - 8, chart_y(c, nats) + 4, "end", text_of("%g", nats));
    }
    for (double step = 0; step <= n; step += tick) {
        svg_line(&c->text, chart_x(c, step), CHART_BOTTOM, chart_x(c, step), CHART_BOTTOM + 5,
                 "stroke='#333'");
        svg_text(&c->text, chart_x(c, step), CHART_BOTTOM + 20, "middle", text_of("%.9g", step));
    }
    svg_text(&c->text, (CHART_LEFT + CHART_RIGHT) / 2, CHART_BOTTOM + 42, "middle",
             "training step");
    svg_text(&c->text, CHART_LEFT, CHART_TOP - 12, "start", "loss (nats per token)");
}

/* Its label stands beside the chart, where no curve is, so far below the line. */
static void chart_put_entropy(loss_chart* c, const char* name, double nats, double below) {
    svg_line(&c->text, CHART_LEFT, chart_y(c, nats), CHART_RIGHT, chart_y(c, nats),
             "stroke='#b8860b' stroke-width='1.5' stroke-dasharray='7 4'");
    svg_text(&c->text, CHART_RIGHT + 8, chart_y(c, nats) + below, "start",
             text_of("%s %.3f", name, nats));
}

/* Means over the last `share`-th of the steps so far, at most a twentieth of all: they lag little
 * while the loss falls fast, and smooth well later.  share 0: the losses themselves. */
static double chart_put_curve(loss_chart* c, int share, const char* style) {
    const int64_t stride = c->n_steps / 4000 + 1; /* more points than pixels only take space */
    double sum = 0, mean = 0;
    int64_t begin = 0;
    memo_text_put(&c->text, "<polyline fill='none' %s points='", style);
    for (int64_t i = 0; i < c->n_steps; i++) {
        const int64_t before = !share                        ? 0
                               : i / share < c->n_steps / 20 ? i / share
                                                             : c->n_steps / 20;
        sum += c->losses[i];
        while (begin < i - before) sum -= c->losses[begin++];
        mean = sum / (double)(i + 1 - begin);
        if (i % stride == 0)
            memo_text_put(&c->text, "%.1f,%.1f ", chart_x(c, (double)i + 1), chart_y(c, mean));
    }
    memo_text_put(&c->text, "'/>\n");
    return mean;
}

memo_status loss_chart_write(loss_chart* c, const char* title, const char* path,
                             memo_error* error) {
    double last;
    c->low = c->bigram_nats;
    c->high = c->unigram_nats;
    for (int64_t i = 0; i < c->n_steps; i++) {
        c->low = fmin(c->low, c->losses[i]);
        c->high = fmax(c->high, c->losses[i]);
    }
    c->low = fmax(0, floor(c->low - 0.1));
    c->high = ceil(c->high + 0.1);
    svg_begin(&c->text, 1020, 490, CHART_LEFT, title);
    chart_put_axes(c);
    chart_put_curve(c, 0, "stroke='#9dbbe0'");
    last = chart_put_curve(c, 8, "stroke='#1f4e9c' stroke-width='2.2'");
    svg_text(&c->text, CHART_RIGHT, CHART_TOP - 12, "end",
             text_of("of each step, and smoothed: %.3f at the end", last));
    if (c->unigram_nats > c->bigram_nats) {
        chart_put_entropy(c, "unigram entropy", c->unigram_nats, 0);
        chart_put_entropy(c, "bigram entropy", c->bigram_nats, 12);
    } else {
        chart_put_entropy(c, "a uniform guess", c->unigram_nats, 0);
    }
    memo_text_put(&c->text, "</svg>\n");
    return memo_text_write(&c->text, path, error);
}
