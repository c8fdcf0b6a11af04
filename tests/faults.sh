#!/bin/sh
# faults.sh - makes one call of a test program fail, of the device, for host memory or of a trainer's function, and looks how the
# program ends: with a status that it reads, or as if nothing had been.  A crash, a hang, an error of AddressSanitizer or a leak is
# a bug.
#
#   sh tests/faults.sh [--seed N] [--each N] [PROGRAM ...]    programs of tests/, such as test_swap; default: all but those of .ci/exceptions
#
# Of each program --each calls (20) fail, one a run, drawn from the seed (from the clock).  MEMO_FAULT=K is the switch
# (tests/support/faults.h).  The last line is `N passed, N failed`, and a failure names the command that repeats it.
set -u

seed=$(date +%s) each=20
while [ $# -gt 0 ]; do
    case $1 in
    --seed) seed=$2 && shift ;;
    --each) each=$2 && shift ;;
    *) break ;;
    esac
    shift
done
excepted=$(awk '$1 == "faults" { print $2 }' .ci/exceptions)
[ $# -gt 0 ] || set -- $(for path in tests/*/test_*.c; do basename "$path" .c; done | grep -v _mpi | grep -vxF "$excepted")
folder=build/faults/tests passed=0 failed=0
echo "seed $seed"
make --no-print-directory -k VARIANT=faults $(printf "$folder/%s " "$@") >&2

ends() { # PROGRAM K; its exit status
    MEMO_FAULT=$2 timeout -k 10 900 "$folder/$1" >"$folder/$1.log" 2>&1 <&-
}
for name; do
    n_read=0 n_failed=0
    ends "$name" 0 || { failed=$((failed + 1)) && echo "  FAIL  $name: did not build, or fails without a fault" && continue; }
    n=$(sed -n 's/^# calls \([0-9]*\).*/\1/p' "$folder/$name.log")
    # As many small numbers as large ones, so that creation fails as often as training.
    for k in $(awk -v n="${n:-0}" -v each="$each" -v seed="$seed$(echo "$name" | cksum | cut -c1-4)" 'BEGIN {
        srand(seed); for (i = 0; i < each && n > 0; i++) print int(i % 2 ? 1 + rand() * n : exp(rand() * log(n + 1))) }' | sort -nu); do
        if ends "$name" "$k"; then
            passed=$((passed + 1)) n_read=$((n_read + $(grep -c '^# the status of' "$folder/$name.log")))
        else
            status=$? failed=$((failed + 1)) n_failed=$((n_failed + 1))
            echo "  FAIL  MEMO_FAULT=$k $folder/$name: exit status $status"
            grep -E 'ERROR|SUMMARY|runtime error|Assertion|leak of|^    #[0-9] ' "$folder/$name.log" | head -n 12
        fi
    done
    echo "$name: ${n:-no} calls, $n_read statuses read, $n_failed failed"
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
