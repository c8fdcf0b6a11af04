#!/bin/sh
# run.sh - runs test programs that print TAP, shows a line for each test, counts them.
#
#   sh tests/run.sh LOG_FOLDER PROGRAM...
#
# A program is an executable or a shell script (*.sh).  One that is missing (it did not build), crashes, hangs,
# ends early or exits nonzero without a failed test counts as a failed test of its own name.
# Environment: MEMO_TEST_WRAPPER  put before each executable (valgrind, ...)
#              MEMO_TEST_ARGS     given to each program: [NAME] [--seed N]
#              MEMO_TEST_TIMEOUT  seconds for a program, default 600
#              MEMO_TEST_ALL      not empty: `make test-all`; scripts and programs run their slow tests too
# The last line is "N passed, N failed", with ", N skipped" where some were.  Exit status 1 on a failure.
set -u

logs=$1
shift
mkdir -p "$logs" || exit 1
limit_s=${MEMO_TEST_TIMEOUT:-600}
limit=
if command -v timeout >/dev/null 2>&1; then
    limit="timeout $limit_s"
    # In the foreground, so that Ctrl-C reaches the program; busybox lacks the option.
    timeout --foreground -k 10 5 true 2>/dev/null && limit="timeout --foreground -k 10 $limit_s"
fi

passed=0 failed=0 skipped=0 total_s=0
: >"$logs/failures"

# Reads one program's output; leaves the counts and the number of tests it promised in $log.counts.
show() {
    ok=0 bad=0 skip=0 promised=none
    while IFS= read -r line || [ -n "$line" ]; do
        printf '%s\n' "$line" >&3
        case $line in
        "ok "*"# SKIP"*)
            skip=$((skip + 1))
            line=${line#ok * - }
            printf '  skip  %s: %s\n' "${line%% # SKIP*}" "${line##*# SKIP }"
            ;;
        "ok "*)
            ok=$((ok + 1))
            printf '  ok    %s\n' "${line#ok * - }"
            ;;
        "not ok "*)
            bad=$((bad + 1))
            printf '  FAIL  %s\n' "${line#not ok * - }"
            printf '  %s: %s\n' "$name" "${line#not ok * - }" >>"$logs/failures"
            ;;
        "1.."*) promised=${line#1..} ;;
        "# $program --seed "*) ;;
        *) printf '        %s\n' "$line" ;;
        esac
    done
    echo "$ok $bad $skip $promised" >"$log.counts"
}

fail() {
    failed=$((failed + 1))
    printf '  FAIL  %s: %s\n' "$name" "$1"
    printf '  %s: %s\n' "$name" "$1" >>"$logs/failures"
}

for program; do
    name=$(basename "$program" .sh)
    log=$logs/$name
    echo "$name"
    begun_s=$(date +%s)
    case $program in
    *.sh) command="$limit sh $program" ;;
    *) command="$limit ${MEMO_TEST_WRAPPER:-} $program" ;;
    esac
    if [ ! -f "$program" ]; then
        fail "did not build"
        continue
    fi
    rm -f "$log.status" "$log.counts"
    {
        $command ${MEMO_TEST_ARGS:-} 2>&1
        echo $? >"$log.status"
    } | show 3>"$log.log"
    status=$(cat "$log.status")
    read -r ok bad skip promised <"$log.counts"
    rm -f "$log.status" "$log.counts"
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    if [ "$status" = 124 ] || [ "$status" = 137 ]; then
        fail "stopped after $limit_s s, or killed"
    elif [ "$status" -gt 128 ]; then
        fail "crashed, signal $((status - 128))"
    elif [ "$promised" = none ] || [ "$promised" -ne $((ok + bad + skip)) ]; then
        fail "ended early, exit status $status"
    elif [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        fail "exit status $status although no test failed"
    fi
    elapsed_s=$(($(date +%s) - begun_s))
    total_s=$((total_s + elapsed_s))
    [ $elapsed_s -lt 2 ] || echo "        $elapsed_s s"
    if [ "$bad" -gt 0 ] && [ "${program%.sh}" = "$program" ]; then
        echo "        to repeat: $program NAME $(sed -n '1s/.*\(--seed [0-9]*\)$/\1/p' "$log.log")"
    fi
done

echo
if [ -s "$logs/failures" ]; then
    echo "Failed:"
    cat "$logs/failures"
    echo
fi
echo "$total_s s of tests"
if [ $skipped -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ $failed -eq 0 ]
