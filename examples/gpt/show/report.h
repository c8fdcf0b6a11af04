/* report.h - the trainer's output: sizes, a progress line, generated text. */
#ifndef TRAIN_REPORT_H
#define TRAIN_REPORT_H

#include <stdint.h>
#include "memo.h"

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

/* "90 s", "12.5 min", "3.2 h", "40 days" */
const char* duration_name(double duration_s);
double clock_s(void);

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

/* Prints printable bytes and line ends unchanged, other bytes as \xNN, with a margin.  A terminal
 * can show the text safely. */
void print_bytes(const uint8_t* bytes, int64_t n_bytes);

#endif
