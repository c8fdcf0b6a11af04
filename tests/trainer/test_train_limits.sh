#!/bin/sh
# test_train_limits.sh - the trainer with little address space and little stack.  Every run ends, with one line if it fails.
# Output: TAP.
# Environment: TRAIN_GPT   the program (default build/tests/train_gpt)

. tests/support/tap.sh
. tests/trainer/train.sh

tiny="--layers 1 --hidden 16 --heads 1 --seq 16 --batch 4 --steps 1 --random-tokens"

# ends ARGUMENT...: runs the program with $tiny; output in out, messages in err, exit status in $code.  One that hangs is
# killed: its status is 124 or 137.
limit="timeout -k 1 60"
timeout -k 1 5 true 2>/dev/null || limit="timeout 60"
ends() {
    $limit "$program" $tiny "$@" >out 2>err </dev/null
    code=$?
    cat err
    [ $code -ne 124 ] && [ $code -ne 137 ]
}
one_line() { [ "$(wc -l <err)" -eq 1 ] && grep -q "^train_gpt: $1" err; }

# OpenBLAS itself would request its buffers in an endless loop, and no signal that is handled would end it.
little_address_space() { # ARGUMENT...
    n_refused=0
    for kib in 20000 40000 60000 80000 100000 120000 140000 160000 200000 250000 300000 340000 400000 600000 800000 1000000 4000000; do
        echo "ulimit -v $kib"
        (ulimit -v $kib && ends "$@" && echo $code >code) || return
        code=$(cat code)
        [ "$code" -eq 0 ] && [ ! -s err ] && continue
        [ "$code" -eq 1 ] && one_line ".*; \`ulimit -v\` is $kib KiB of address space, and a larger limit would work$" || return
        n_refused=$((n_refused + 1))
    done
    [ "$code" -eq 0 ] && [ $n_refused -gt 0 ]
}

# Threads bring their own stack, the main thread's has a least size.
little_stack() {
    for kib in 128 256 1023; do
        (ulimit -s $kib && ends && [ "$code" -eq 1 ] && one_line "\`ulimit -s\` is $kib KiB of stack; 1024 or more would work$") || return
    done
    for more in "" "--ring 4 --policy memo" --dry-run; do
        (ulimit -s 1024 && ends $more && [ "$code" -eq 0 ] && [ ! -s err ]) || return
    done
}

test_is "little address space is refused" little_address_space
test_is "so it is with ranks" little_address_space --ring 4
test_is "a small stack is refused, or suffices" little_stack
tap_end
