#!/bin/sh
# test_tsan.sh - ordering under ThreadSanitizer: no report with all waits, and a report if any wait is dropped.
# Every wait of the engine is necessary (memo.h, chapter 8), so each must be reported.  `make test` drops every other wait
# where all layers have a place in host memory, and the rest where they share one; `make test-all` drops all in both.
set -u
dir=build/tests/tsan
mkdir -p "$dir"
skip() {
    echo "ok 1 - tsan_is_silent_with_all_waits # SKIP $1"
    echo "ok 2 - tsan_reports_every_dropped_wait # SKIP $1"
    echo "1..2"
    exit 0
}
compiler=""
for c in "${CC:-cc}" gcc clang; do
    # shellcheck disable=SC2086
    if $c -std=c99 -g -O1 -fsanitize=thread -I. -Itests tests/tsan_swap.c -o "$dir/tsan_swap" \
        -lpthread -lm 2>"$dir/build.log"; then
        compiler=$c
        break
    fi
done
[ -n "$compiler" ] || skip "no compiler here links with -fsanitize=thread; apt-get install libtsan2"
TSAN_OPTIONS="history_size=7 exitcode=66"
export TSAN_OPTIONS
# Some kernels place memory in the race detector's address ranges, unless address randomization is off.
run="$dir/tsan_swap"
if ! $run >"$dir/out" 2>"$dir/log" && grep -q "unexpected memory mapping" "$dir/log"; then
    command -v setarch >/dev/null 2>&1 || skip "the race detector does not start on this kernel; setarch (util-linux) would start it"
    run="setarch $(uname -m) -R $dir/tsan_swap"
    $run >"$dir/out" 2>"$dir/log"
fi
step=2 n_silent=6
[ -z "${MEMO_TEST_ALL:-}" ] || step=1 n_silent=20
failures=0
number=0
# The three layers that are moved have a place each in host memory (0), or share one.
for places in 0 1; do
    spilled=$([ $places -eq 0 ] || echo ", $places of 3 layers fit in host memory")
    number=$((number + 1))
    silent=1
    i=0
    while [ $i -lt $n_silent ]; do
        if ! $run -1 $((i % 2 * 20000)) $places >"$dir/out" 2>"$dir/log"; then
            echo "# a report although no wait was dropped: $dir/log"
            silent=0
            break
        fi
        i=$((i + 1))
    done
    [ $silent -eq 1 ] || failures=1
    [ $silent -eq 1 ] && echo "ok $number - tsan_is_silent_with_all_waits$spilled" ||
        echo "not ok $number - tsan_is_silent_with_all_waits$spilled"
    number=$((number + 1))
    n=$(sed -n 's/^waits //p' "$dir/out")
    missed=""
    k=$((places % step))
    [ "${n:-0}" -ge 20 ] || missed="only ${n:-0} waits to drop"
    while [ $k -lt "${n:-0}" ]; do
        # The detector remembers few accesses, so it may miss a race: one report in a few tries is enough.
        seen=0
        try=0
        while [ $try -lt 10 ] && [ $seen -eq 0 ]; do
            $run $k $((try % 2 * 20000)) $places >"$dir/out" 2>"$dir/log.$k"
            [ $? -eq 66 ] && seen=1
            try=$((try + 1))
        done
        [ $seen -eq 1 ] || missed="$missed $k"
        k=$((k + step))
    done
    if [ -z "$missed" ]; then
        echo "ok $number - tsan_reports_every_dropped_wait$spilled"
    else
        echo "# not reported: $missed"
        echo "not ok $number - tsan_reports_every_dropped_wait$spilled"
        failures=1
    fi
done
echo "1..$number"
exit $failures
