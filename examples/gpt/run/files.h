/* files.h - the files of a run: checked before it begins, opened, and written at its end. */
#ifndef TRAIN_FILES_H
#define TRAIN_FILES_H

#include "gpt/run/run.h"

/* fault: made, read or written. */
memo_status bad_path(const char* name, const char* path, const char* fault, memo_error* error);

/* Returns whether files can be made in a folder; otherwise errno has the cause. */
int is_writable(const char* folder);

/* Makes the directory of --output with its parents.  is_test: only tests that it is writable, or
 * that it could be made. */
memo_status make_directory(const char* name, const char* path, int is_test, memo_error* error);
const char* output_path(const job* j, const char* name);

/* Checks that no output file is also an input, or another output.  Files that are read or written
 * beside those of options count. */
memo_status check_files(const job* j, memo_error* error);
int64_t last_step(const train_options* o);

/* A real number is kept by its bits. */
void kept_numbers(train_options o, const train_text* text, int64_t kept[GPT_RUN_NUMBERS]);

/* Writes "--steps 6 (now 9), no --window (now 64), another text"; nothing of an equal run. */
void put_changes(const job* j, memo_text* text);

/* Checks all files before the run plans and measures.  Changes none, and leaves none behind but the
 * lock of --save, until the end.  An old loss log stays open and locked.  The text is loaded. */
memo_status check_outputs(job* j, memo_error* error);

/* The last step before training, so that an earlier error leaves no files behind.  --output is
 * created when it is written, or now for a loss log in it. */
memo_status open_outputs(job* j, memo_error* error);
memo_status write_outputs(const job* j, memo_error* error);

void print_outputs(const job* j);

#endif
