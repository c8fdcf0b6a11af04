#!/bin/sh
# test_train_limits.sh - the trainer under limits: signals while a step does not end, a link that is too slow.  Every run
# ends, with one line if it fails.  Output: TAP.
# Environment: TRAIN_GPT   the program (default build/examples/train_gpt)

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

# The first signal waits for the end of the step, which does not come for minutes on this link.
second_signal_ends_at_once() { # SIGNAL STATUS
    rm -f begun
    "$program" $tiny --layers 4 --policy swap --link-bandwidth 1KB --loss-log begun >out 2>err </dev/null &
    child=$!
    while [ ! -e begun ] && kill -0 $child; do sleep 0.1; done
    sleep 1
    kill -"$1" $child
    sleep 0.5
    kill -0 $child || return # the first would end a program that does not save
    kill -"$1" $child
    (sleep 30 && kill -KILL $child) &
    killer=$!
    wait $child
    code=$?
    kill $killer
    [ $code -eq "$2" ]
}

# Everything fits, so that no session measures the link: the copies are the trainer's own.
slow_links_are_refused() {
    for policy in keep memo; do
        ends --policy $policy --link-bandwidth 1.5
        [ "$code" -eq 2 ] && one_line '--link-bandwidth 1: the tokens of a micro-batch, [0-9]* bytes, would take .* or more would work$' || return
    done
    least=$(sed -n 's/.* s; \([0-9]*\) or more would work$/\1/p' err)
    ends --policy keep --link-bandwidth $((least - 1))
    [ "$code" -eq 2 ] && ends --dry-run --link-bandwidth 1 && [ "$code" -eq 0 ]
    ends --policy keep --batch 1 --seq 4 --link-bandwidth 1KB && [ "$code" -eq 0 ]
}

test_is "a second SIGTERM ends a step that takes long" second_signal_ends_at_once TERM 143
test_is "a second SIGHUP ends a step that takes long" second_signal_ends_at_once HUP 129
test_is "a link too slow for the tokens is refused" slow_links_are_refused
tap_end
