#!/bin/sh
# test_tsan.sh - ordering under ThreadSanitizer: no report with all waits, and a report if any wait is dropped.
# Every wait of the engine is necessary (memo.h, chapter 8), so each must be reported: where all layers have a place in host memory,
# and where they share one.  It runs with each push (MEMO_TEST_ALL=rest) and each night, not under `make test`.
set -u

. tests/support/tap.sh

tap_folder build/tests/tsan
skip_all() {
    skip "no report with all waits" "$1"
    skip "a report of every dropped wait" "$1"
    tap_end
    exit
}
tests_all || skip_all "run make test-all"
compiler=
for c in "${CC:-cc}" gcc clang; do
    # shellcheck disable=SC2086
    $c -std=c99 -g -O1 -fsanitize=thread -I. -Itests/support tests/memo/tsan_swap.c -o "$folder/tsan_swap" -lpthread -lm 2>"$folder/build.log" &&
        compiler=$c && break
done
[ -n "$compiler" ] || skip_all "no compiler here links with -fsanitize=thread; apt-get install libtsan2"
TSAN_OPTIONS="history_size=7 exitcode=66"
export TSAN_OPTIONS
# Some kernels place memory in the race detector's address ranges, unless address randomization is off.
detector=$folder/tsan_swap
if ! $detector >"$folder/out" 2>"$folder/log" && grep -q "unexpected memory mapping" "$folder/log"; then
    command -v setarch >/dev/null 2>&1 || skip_all "the race detector does not start on this kernel; setarch (util-linux) would start it"
    detector="setarch $(uname -m) -R $detector"
fi
n_silent=20 tap_more=1

is_silent() { # PLACES
    for i in $(seq $n_silent); do
        $detector -1 $((i % 2 * 20000)) "$1" >"$folder/out" 2>"$folder/log" || { cat "$folder/log"; return 1; }
    done
}

# The detector remembers few accesses, so it may miss a race: one report in a few tries is enough.
reports() { # PLACES
    $detector -1 0 "$1" >"$folder/out" 2>"$folder/log"
    n=$(sed -n 's/^waits //p' "$folder/out") missed=
    [ "${n:-0}" -ge 20 ] || { echo "only ${n:-0} waits to drop"; return 1; }
    for k in $(seq 0 $((n - 1))); do
        missed="$missed $k"
        for try in $(seq 10); do
            $detector "$k" $((try % 2 * 20000)) "$1" >"$folder/out" 2>"$folder/log.$k"
            [ $? -ne 66 ] || { missed=${missed% *} && break; }
        done
    done
    [ -z "$missed" ] || { echo "not reported:$missed"; return 1; }
}

# The three layers that are moved have a place each in host memory (0), or share one.
for places in 0 1; do
    spilled=$([ $places -eq 0 ] || echo ", $places of 3 layers fit in host memory")
    test_is "no report with all waits$spilled" is_silent $places
    test_is "a report of every dropped wait$spilled" reports $places
done
tap_end
