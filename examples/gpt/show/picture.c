#include "gpt/show/picture.h"

#include <math.h>
#include <stdlib.h>

#include "gpt/model/gpt.h"
#include "gpt/show/report.h"

/* An SVG with two axes, of 0 to `most` and of `low` to `high`. */
typedef struct plot {
    double most, low, high;
    memo_text text;
} plot;
enum { PLOT_LEFT = 80, PLOT_RIGHT = 850, PLOT_TOP = 60, PLOT_BOTTOM = 430 };
#define PLOT_POINTS 4000 /* more points than pixels only take space */

static double plot_x(const plot* p, double x) {
    return PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * x / p->most;
}
static double plot_y(const plot* p, double y) {
    return PLOT_TOP + (PLOT_BOTTOM - PLOT_TOP) * (p->high - y) / (p->high - p->low);
}

/* anchor: start, middle or end. */
static void plot_text(plot* p, double x, double y, const char* anchor, const char* what) {
    memo_text_put(&p->text, "<text x='%.1f' y='%.1f' text-anchor='%s'>", x, y, anchor);
    memo_text_put_xml(&p->text, what);
    memo_text_put(&p->text, "</text>\n");
}

/* A line at y over all of the picture, with a label at its left or right end. */
static void plot_level(plot* p, double y, const char* style, const char* label, int at_right) {
    memo_text_put(&p->text, "<line x1='%d' y1='%.2f' x2='%d' y2='%.2f' %s/>\n", PLOT_LEFT,
                  plot_y(p, y), PLOT_RIGHT, plot_y(p, y), style);
    plot_text(p, at_right ? PLOT_RIGHT + 8 : PLOT_LEFT - 8, plot_y(p, y) + 4,
              at_right ? "start" : "end", label);
}

static plot plot_begin(double most, double low, double high, const char* title, const char* of_x) {
    plot p = {most, low, high, {0}};
    memo_text_put(&p.text, "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 1020 540' "
                           "width='1020' height='540' font-family='sans-serif' font-size='13' "
                           "fill='#222'>\n<rect width='1020' height='540' fill='white'/>\n");
    plot_text(&p, PLOT_LEFT, 27, "start", title);
    plot_text(&p, (PLOT_LEFT + PLOT_RIGHT) / 2, PLOT_BOTTOM + 42, "middle", of_x);
    return p;
}

static memo_status plot_end(plot* p, const char* path, memo_error* error) {
    memo_text_put(&p->text, "</svg>\n");
    return memo_text_write(&p->text, path, error);
}

/* Returns 1, 2 or 5 times a power of ten: the distance of ticks of which `range` has `n` at
 * most. */
static double tick_of(double range, int n) {
    double step = 1e-9;
    for (int k = 0; range / step > n; k++) step *= k % 3 == 1 ? 2.5 : 2;
    return step;
}

/* ---- loss over steps ------------------------------------------------------------------------ */

/* Means over the last `share`-th of the steps so far, at most a twentieth of all: they lag little
 * while the loss falls fast, and smooth well later.  share 0: the losses themselves. */
static double plot_losses(plot* p, const double* losses, int64_t n, int share, const char* style) {
    double sum = 0, mean = 0;
    int64_t begin = 0;
    memo_text_put(&p->text, "<polyline fill='none' %s points='", style);
    for (int64_t i = 0; i < n; i++) {
        const int64_t before = share ? gpt_min(i / share, n / 20) : 0;
        sum += losses[i];
        while (begin < i - before) sum -= losses[begin++];
        mean = sum / (double)(i + 1 - begin);
        if (i % (n / PLOT_POINTS + 1) == 0)
            memo_text_put(&p->text, "%.1f,%.1f ", plot_x(p, (double)i + 1), plot_y(p, mean));
    }
    memo_text_put(&p->text, "'/>\n");
    return mean;
}

memo_status loss_picture_write(const double* losses, int64_t n_steps, double unigram_nats,
                               double bigram_nats, const char* title, const char* path,
                               memo_error* error) {
    static const char entropy[] = "stroke='#b8860b' stroke-width='1.5' stroke-dasharray='7 4'";
    const double most = n_steps > 1 ? (double)n_steps : 2;
    double low = bigram_nats, high = unigram_nats;
    for (int64_t i = 0; i < n_steps; i++) {
        low = fmin(low, losses[i]);
        high = fmax(high, losses[i]);
    }
    plot p = plot_begin(most, fmax(0, floor(low - 0.1)), ceil(high + 0.1), title, "training step");
    for (double nats = p.low; nats <= p.high; nats += p.high - p.low > 4 ? 1 : 0.5)
        plot_level(&p, nats, "stroke='#e4e4e4'", text_of("%g", nats), 0);
    for (double step = 0; step <= most; step += fmax(1, tick_of(most, 10)))
        plot_text(&p, plot_x(&p, step), PLOT_BOTTOM + 20, "middle", text_of("%.9g", step));

    plot_losses(&p, losses, n_steps, 0, "stroke='#9dbbe0'");
    const double last = plot_losses(&p, losses, n_steps, 8, "stroke='#1f4e9c' stroke-width='2.2'");
    plot_text(&p, PLOT_LEFT, PLOT_TOP - 12, "start",
              text_of("nats per token, of each step, and smoothed: %.3f at the end", last));
    if (unigram_nats > bigram_nats) {
        plot_level(&p, unigram_nats, entropy, text_of("unigram entropy %.3f", unigram_nats), 1);
        plot_level(&p, bigram_nats, entropy, text_of("bigram entropy %.3f", bigram_nats), 1);
    } else {
        plot_level(&p, unigram_nats, entropy, text_of("a uniform guess %.3f", unigram_nats), 1);
    }
    return plot_end(&p, path, error);
}

/* ---- device memory over a micro-batch, by owner ---------------------------------------------- */

/* By memo_owner. */
static const char* const owners[][2] = {{"weights", "#3b5f94"},
                                        {"gradients", "#8fa8cc"},
                                        {"moments and master weights", "#1f3b63"},
                                        {"places of states that come and go", "#c5d3e8"},
                                        {"activations", "#9aa3ad"},
                                        {"buffers of the whole run", "#e6dcae"},
                                        {"buffers of a micro-batch", "#c9b458"}};
MEMOB_TABLE_OF(MEMO_N_OWNERS, owners);

memo_status memory_picture_write(const memo_step_plan* plan, const char* path, memo_error* error) {
    const int64_t* bands = plan->bytes[MEMO_TIER_DEVICE];
    const memo_plan* a = plan->addresses;
    const double limit = (double)plan->device_budget_bytes;
    const int64_t stride = a->n_times / PLOT_POINTS + 1;
    double *live = (double*)calloc((size_t)a->n_times + 1, sizeof *live), bytes = 0, below = 0;
    if (!live) return gpt_no_memory("--output", error);
    for (int64_t i = 0; i < a->n_buffers; i++) {
        if (a->buffers[i].memory_class == MEMO_CLASS_PERSISTENT) continue;
        live[a->buffers[i].begin] += (double)a->buffers[i].size_bytes;
        live[a->buffers[i].end] -= (double)a->buffers[i].size_bytes;
    }

    plot p = plot_begin(
        (double)(a->n_times - a->body_begin), 0, 1.06 * fmax(limit, (double)plan->device_bytes),
        text_of("Device memory of a micro-batch by owner: %s", bytes_name(plan->device_bytes)),
        "requests of memory, from the first forward to the last backward");
    for (int i = 0; i < MEMO_OWNER_MICRO_BATCH; below += (double)bands[i++])
        memo_text_put(&p.text, "<rect x='%d' y='%.2f' width='%d' height='%.2f' fill='%s'/>\n",
                      PLOT_LEFT, plot_y(&p, below + (double)bands[i]), PLOT_RIGHT - PLOT_LEFT,
                      plot_y(&p, 0) - plot_y(&p, (double)bands[i]), owners[i][1]);
    memo_text_put(&p.text, "<path fill='%s' d='M%d %.2f", owners[MEMO_OWNER_MICRO_BATCH][1],
                  PLOT_LEFT, plot_y(&p, below));
    for (int64_t i = a->body_begin; i < a->n_times; i++) {
        double highest = bytes += live[i];
        for (; i + 1 < a->n_times && (i + 1) % stride; highest = fmax(highest, bytes))
            bytes += live[++i];
        memo_text_put(&p.text, "V%.2fH%.1f", plot_y(&p, below + highest),
                      plot_x(&p, (double)(i + 1 - a->body_begin)));
    }
    memo_text_put(&p.text, "V%.2fZ'/>\n", plot_y(&p, below));
    free(live);

    /* The axis, the limit and the legend. */
    const double tick = p.high > 2e9 ? 1 << 30 : p.high > 2e6 ? 1 << 20 : 1 << 10;
    for (double y = 0; y < p.high; y += tick_of(p.high / tick, 6) * tick)
        plot_level(&p, y, "stroke='#e4e4e4'", bytes_name(llround(y)), 0);
    if (limit > 0)
        plot_level(&p, limit, "stroke='#222' stroke-dasharray='7 4'", "--device-memory", 1);
    for (int i = 0, n = 0; i < MEMO_N_OWNERS; i++) {
        if (!bands[i]) continue;
        const int x = PLOT_LEFT + n % 3 * 260, y = PLOT_BOTTOM + 58 + n++ / 3 * 20;
        memo_text_put(&p.text, "<rect x='%d' y='%d' width='12' height='12' fill='%s'/>\n", x, y,
                      owners[i][1]);
        plot_text(&p, x + 17, y + 11, "start", owners[i][0]);
    }
    return plot_end(&p, path, error);
}
