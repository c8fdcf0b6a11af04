#!/bin/sh
# port.sh - puts memo's arena and hooks into KANN, and compares it with the original bit by bit.
#
#   sh examples/kann/port.sh FOLDER    FOLDER: a clone of https://github.com/attractivechaos/kann with e260712
#
# kann.patch is the port (lines of KANN in it: MIT license, Copyright (c) 2018-2019 Dana-Farber Cancer Institute, 2016-2018
# Broad Institute): while kann_cost computes a gradient, values and gradients of internal nodes lie in memo's arena, and the
# values that the backward reads go through extras/memo_hooks.h, in one budget.  Original and port train an unrolled recurrent
# model on the CPU: the port without memo, in three budgets, and once checked.  Run it in memo's root; needs git and a C compiler.
set -eu

[ $# -eq 1 ] && git -C "$1" cat-file -e e260712:kann.c 2>/dev/null ||
    { echo "usage: sh examples/kann/port.sh FOLDER   (a clone of KANN)" >&2; exit 2; }
root=$(pwd)
folder=$root/build/kann
none="without memo"
. "$root/examples/ports.sh"
mkdir -p "$folder"
for kind in original ported; do clone "$1" $kind e260712; done
cd "$folder"
apply_port examples/kann/kann.patch

# Two layers of 48 numbers, 48 steps in time, 6 updates; costs in all bits, the weights in a file.
cat >train.c <<'END'
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include "kann.h"
enum { STEPS = 48, BATCH = 16, IN = 24, OUT = 10, HIDDEN = 48 };
int main(void) {
    float *x[STEPS], *y[STEPS], *r;
    kad_srand(0, 11);
    kad_node_t* t = kann_layer_rnn(kann_layer_gru(kann_layer_input(IN), HIDDEN, 0), HIDDEN, 0);
    kann_t *ann = kann_new(kann_layer_cost(t, OUT, KANN_C_CEM), 0), *ua;
    const int n_var = kann_size_var(ann);
    r = (float*)calloc(n_var, sizeof(float));
    for (int k = 0; k < STEPS; ++k) x[k] = (float*)calloc(BATCH * IN, 4), y[k] = (float*)calloc(BATCH * OUT, 4);
    ua = kann_unroll(ann, STEPS);
    struct mallinfo2 before = mallinfo2(), after;
    kann_set_batch_size(ua, BATCH);
    kann_feed_bind(ua, KANN_F_IN, 0, x);
    kann_feed_bind(ua, KANN_F_TRUTH, 0, y);
    kann_switch(ua, 1);
    for (int i = 0; i < 6; ++i) {
        int base, n_err;
        for (int k = 0; k < STEPS; ++k)
            for (int b = 0; b < BATCH; ++b) {
                const int c = (b * 7 + k * 3 + i) % OUT;
                for (int j = 0; j < IN; ++j) x[k][b * IN + j] = (float)((b * 31 + k * 17 + j * 5 + i) % 13) / 13 - 0.5f;
                for (int j = 0; j < OUT; ++j) y[k][b * OUT + j] = j == c;
            }
        const float cost = kann_cost(ua, 0, 1);
        n_err = kann_class_error(ua, &base);
        kann_RMSprop(n_var, 0.003f, 0, 0.9f, ua->g, ua->x, r);
        printf("step %d: cost %a, %d of %d wrong\n", i, cost, n_err, base);
    }
    after = mallinfo2();
    fprintf(stderr, "a step takes %lld bytes of the heap\n", (long long)(after.uordblks + after.hblkhd - before.uordblks - before.hblkhd));
    printf("a forward alone: %a\n", kann_cost(ua, 0, 0));
    fwrite(ann->x, 4, n_var, fopen("weights", "wb"));
    return 0;
}
END

cc=${CC:-cc}
printf '#define MEMO_IMPLEMENTATION\n#define MEMO_PLAN_IMPLEMENTATION\n#define MEMO_HOOKS_IMPLEMENTATION\n#include "memo_plan.h"\n#include "extras/memo_hooks.h"\n' >memo.c
$cc -O2 -I"$root" -c memo.c -o memo.o
$cc -std=gnu99 -O2 -w -Ioriginal train.c original/kann.c original/kautodiff.c -o original/train -lm -lpthread
$cc -std=gnu99 -O2 -w -Iported -I"$root" train.c ported/kann.c ported/kautodiff.c memo.o -o ported/train -lm -lpthread

train() { (cd "$1" && ./train >output 2>log) || { cat "$1/log"; exit 1; }; }
train original
cat original/log
told() { sed -n -e 's/^memo:/;/p' -e 's/^a step takes \(.*\) bytes of the heap/, \1 of the heap/p' ported/log | tr -d '\n'; }
compare output weights "costs and weights" "" ${BUDGETS:-MEMO_BYTES=4000000 MEMO_BYTES=2000000 MEMO_BYTES=1000000} \
    "MEMO_BYTES=1000000 MEMO_CHECK=1"
