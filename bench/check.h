/* check.h - ends a benchmark at its first error.  Include it after memo.h. */
#ifndef BENCH_CHECK_H
#define BENCH_CHECK_H

#include <stdio.h>
#include <stdlib.h>

static memo_error error;

static void check(memo_status status) {
    if (!status) return;
    fprintf(stderr, "bench: %s\n", error.message);
    exit(1);
}

#endif
