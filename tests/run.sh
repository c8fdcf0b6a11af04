#!/bin/sh
# run.sh - runs test programs that print TAP, shows a line for each test, counts them.
#
#   sh tests/run.sh LOG_FOLDER PROGRAM...
#
# A program is an executable or a shell script (*.sh).  One that is missing (it did not build), crashes, hangs,
# ends early or exits nonzero without a failed test counts as a failed test with the program's name.
# Environment: MEMO_TEST_WRAPPER  put before each executable (valgrind, ...)
#              MEMO_TEST_ARGS     given to each program: [NAME] [--seed N]
#              MEMO_TEST_JOBS     programs at a time, default: one more than processors
#              MEMO_TEST_TIMEOUT  seconds of processor time for a program and what it starts, default 600.  A program also ends if
#                                 it uses less than a second of them in as many seconds of the clock: it hangs.  Without /proc
#                                 all seconds are those of the clock
#              MEMO_TEST_ALL      not empty: `make test-all`; scripts and programs run their slow tests too.  1/10: a tenth of all
#                                 random cases.  rest: scripts run only what `make test` leaves out
# The last line is "N passed, N failed", with ", N skipped" if any were.  Exit status 1 on a failure.
set -u

logs=$1
shift
mkdir -p "$logs" || exit 1
limit_s=${MEMO_TEST_TIMEOUT:-600}
limit=
if command -v timeout >/dev/null 2>&1; then
    limit="timeout $limit_s"
    timeout -k 10 5 true 2>/dev/null && limit="timeout -k 10 $limit_s" # an old busybox lacks the option
    # 0: a process group without a limit by the clock.
    [ ! -r /proc/self/stat ] || ! timeout 0 true 2>/dev/null || limit="timeout 0"
fi
hertz=$(getconf CLK_TCK 2>/dev/null || echo 100)

passed=0 failed=0 skipped=0 used_all_s=0
: >"$logs/failures"

# Programs run side by side, and are shown in order: one for each processor, and one more, as some wait for clocks.
jobs=${MEMO_TEST_JOBS:-$(($(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1))}
# A shell lets background programs ignore Ctrl-C: pass it on to all of them.  Each `start` passes it on to its timeout, whose
# process group has the program and all that the program has started.
trap 'trap - TERM; kill 0; exit 130' INT
begun_s=$(date +%s)

# Ends a process group at the limit, and prints why.  On a busy machine a program may take long by the clock.
watch() { # PROCESS GROUP
    seen_s=0 seen_at=$(date +%s)
    while sleep 5; do
        # utime, stime, and both of children that ended, behind the name, which may contain blanks.
        now_s=$(cat /proc/[0-9]*/stat | awk -v group="$1" -v hertz="$hertz" \
            '{ sub(/.*\) /, "") } $3 == group { used += $12 + $13 + $14 + $15 } END { print int(used / hertz) }')
        [ "$now_s" -eq $seen_s ] || seen_s=$now_s seen_at=$(date +%s)
        if [ "$now_s" -ge "$limit_s" ]; then
            echo "stopped after $now_s s of processor time"
        elif [ $(($(date +%s) - seen_at)) -ge "$limit_s" ]; then
            echo "hangs: no second of processor time in $limit_s s"
        else
            continue
        fi
        kill "$1"
        sleep 5 >&-
        kill -9 "-$1" # whoever goes on
        return
    done
}

# Runs one program; leaves its output in LOG.log, its exit status, seconds and seconds of processor time in LOG.status.
start() { # PROGRAM LOG
    case $1 in
    *.sh) command="$limit sh $1" ;;
    *) command="$limit ${MEMO_TEST_WRAPPER:-} $1" ;;
    esac
    start_s=$(date +%s)
    $command ${MEMO_TEST_ARGS:-} >"$2.log" 2>&1 &
    child=$! watcher=
    trap 'kill $child $watcher; exit 143' HUP TERM
    if [ "$limit" = "timeout 0" ]; then
        watch $child >"$2.stopped" 2>/dev/null &
        watcher=$!
    fi
    wait $child
    status=$?
    # Not waited for, as `times` would count it, unless it ends the group.
    if [ -s "$2.stopped" ]; then
        wait $watcher
    elif [ "$watcher" ]; then
        kill $watcher 2>/dev/null
    fi
    times >"$2.times" # of this process's children; a pipe would have its own
    used_s=$(awk '{ for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); s += 60 * t[1] + t[2] } } END { printf "%.0f", s }' "$2.times")
    rm -f "$2.times"
    echo "$status $(($(date +%s) - start_s)) $used_s" >"$2.done" # a status file is whole once it has its name
    mv "$2.done" "$2.status"
}

fail() {
    failed=$((failed + 1))
    printf '  FAIL  %s: %s\n' "$name" "$1"
    printf '  %s: %s\n' "$name" "$1" >>"$logs/failures"
}

# Shows the output of a program that has ended, and counts its tests.
show() { # PROGRAM LOG
    name=$(basename "$1" .sh) ok=0 bad=0 skip=0 promised=none status=0 elapsed_s=0
    if [ ! -f "$1" ]; then
        echo "$name"
        fail "did not build"
        return
    fi
    read -r status elapsed_s program_s <"$2.status"
    rm -f "$2.status"
    used_all_s=$((used_all_s + program_s))
    echo "$name, $elapsed_s s, of processor time $program_s s"
    while IFS= read -r line || [ -n "$line" ]; do
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
        "1..0 # SKIP "*) # the whole program
            promised=1 skip=1
            printf '  skip  %s\n' "${line#1..0 # SKIP }"
            ;;
        "1.."*) promised=${line#1..} ;;
        "# $1 --seed "*) ;;
        *) printf '        %s\n' "$line" ;;
        esac
    done <"$2.log"
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))

    if [ -s "$2.stopped" ]; then
        fail "$(cat "$2.stopped")"
    elif [ "$status" = 124 ] || [ "$status" = 137 ]; then
        fail "stopped after $limit_s s, or killed"
    elif [ "$status" -gt 128 ]; then
        fail "crashed, signal $((status - 128))"
    elif [ "$promised" = none ] || [ "$promised" -ne $((ok + bad + skip)) ]; then
        fail "ended early, exit status $status"
    elif [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        fail "exit status $status although no test failed"
    fi
    if [ "$bad" -gt 0 ] && [ "${1%.sh}" = "$1" ]; then
        echo "        to repeat: ${MEMO_TEST_ALL:+MEMO_TEST_ALL=$MEMO_TEST_ALL }$1 NAME $(sed -n '1s/.*\(--seed [0-9]*\)$/\1/p' "$2.log")"
    fi
}

# Shows the programs that have ended, in order, up to the first that has not.
show_ended() {
    while [ $n_shown -lt $n ]; do
        eval "program=\$program_$((n_shown + 1)) log=\$log_$((n_shown + 1))"
        [ ! -f "$program" ] || [ -f "$log.status" ] || return 0
        n_shown=$((n_shown + 1))
        show "$program" "$log"
    done
}

# How many are under way.
count_running() {
    running=0 i=$n_shown
    while [ $i -lt $n ]; do
        i=$((i + 1))
        eval "program=\$program_$i log=\$log_$i"
        [ ! -f "$program" ] || [ -f "$log.status" ] || running=$((running + 1))
    done
}

# A shell cannot wait for whichever program ends first, so it looks.
wait_until_below() { # PROGRAMS
    show_ended
    count_running
    while [ $running -ge "$1" ]; do
        sleep 0.2
        show_ended
        count_running
    done
}

# The last first: what takes long begins early, and short programs, and scripts that use all processors, are left for the end.
n=0 n_shown=0
while [ $n -lt $# ]; do
    eval "next=\${$(($# - n))}"
    n=$((n + 1))
    eval "program_$n=\$next log_$n=\$logs/$(basename "$next" .sh)"
    eval "log=\$log_$n"
    rm -f "$log.status" "$log.done" "$log.stopped"
    [ ! -f "$next" ] || start "$next" "$log" &
    wait_until_below "$jobs"
done
wait_until_below 1
wait

echo
if [ -s "$logs/failures" ]; then
    echo "Failed:"
    cat "$logs/failures"
    echo
fi
[ $((passed + failed + skipped)) -gt 0 ] || echo "No test ran: no name has \`${MEMO_TEST_ARGS:-}\`, or the variant has none."
echo "$(($(date +%s) - begun_s)) s, of processor time $used_all_s s"
if [ $skipped -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ $failed -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
