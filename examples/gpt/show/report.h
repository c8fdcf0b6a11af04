/* report.h - the trainer's output: sizes, a progress line, generated text, a picture of the
 * loss. */
#ifndef TRAIN_REPORT_H
#define TRAIN_REPORT_H

#include <stdint.h>
#include "memo.h"

/* ---- numbers -------------------------------------------------------------------------------- */

/* Returns a short text, such as a size or a path, valid during the next 31 calls. */
MEMO_PRINTF(1, 2) const char* text_of(const char* format, ...);

/* Returns "FOLDER/NAME", or a file beside another: "FILE.profile".  NULL stays NULL. */
const char* path_text(const char* path, const char* name);

/* "12.3 MiB" */
const char* bytes_name(int64_t n_bytes);

/* The same beside another size: in a smaller unit if both would have the same text. */
const char* bytes_beside(int64_t n_bytes, int64_t other);

/* Returns the smallest size with a suffix that is at least n_bytes, in the form of an option:
 * "72MiB". */
const char* bytes_option(int64_t n_bytes);

double clock_s(void);

/* ---- progress ------------------------------------------------------------------------------- */

typedef struct progress {
    int64_t first, n_steps, step_tokens; /* first: the number of the first one, from 0 */
    double begin_s, shown_s;
    int is_terminal;
} progress;

/* On a terminal, one line that is rewritten at most five times a second; otherwise a line at
 * intervals. */
void progress_show(progress* p, int64_t step, double loss);

/* Leaves the terminal at the start of an empty line, even after an error. */
void progress_end(const progress* p);
memo_log starting_log(void);
void starting_end(memo_log log);

/* ---- generated text ------------------------------------------------------------------------- */

/* Prints printable bytes and line ends unchanged, other bytes as \xNN, with a margin.  A terminal
 * can show the text safely. */
void print_bytes(const uint8_t* bytes, int64_t n_bytes);

/* ---- pieces of an SVG: a picture with a title, a line, a text ------------------------------ */

void svg_begin(memo_text* t, int width, int height, int left, const char* title);

void svg_line(memo_text* t, double x1, double y1, double x2, double y2, const char* style);

/* anchor: start, middle or end. */
void svg_text(memo_text* t, double x, double y, const char* anchor, const char* what);

/* A color of the legend, and what it means. */
void svg_key(memo_text* t, double x, double y, const char* color, const char* label);

/* Returns 1, 2 or 5 times a power of ten: the distance of ticks of which `range` has `most` at
 * most. */
double svg_tick(double range, int most);

/* ---- loss over steps, as SVG ---------------------------------------------------------------- */

typedef struct loss_chart {
    const double* losses; /* nats per token, one a step */
    int64_t n_steps;
    double unigram_nats, bigram_nats; /* equal: of random tokens */
    double low, high;                 /* nats of the axis */
    memo_text text;
} loss_chart;

memo_status loss_chart_write(loss_chart* c, const char* title, const char* path, memo_error* error);

#endif
