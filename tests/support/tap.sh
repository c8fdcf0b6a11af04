# tap.sh - the frame of the tests that are shell scripts:  . tests/support/tap.sh
#
#   test_is NAME COMMAND...   passes if the command succeeds; otherwise its output is shown.  A test that takes 3 s of
#                             processor time or more, its programs included, prints them
#   tap_jobs=N                from here on, runs N tests at a time, shown in order; each has its own $folder in $folder
#   run STATUS ARGUMENTS...   runs $tool, wants this exit status, leaves its output in $folder/out and $folder/err
#   tap_folder PATH          makes $folder, empty
#   test_with PROGRAM NAME COMMAND...   test_is if the program is installed; otherwise skips the test
#   tests_of SCRIPT [COMMAND...]   test_is, slow_test_is or more_test_is, in order, for each function with "# test", "# slow test"
#                             or "# more test" behind its first line; a COMMAND gets the function's name.  Blanks replace _ in names
#   needs_program PROGRAM     ends the script if the program is not built
#   skip NAME REASON
#   slow_test_is NAME COMMAND...   test_is under `make test-all`, which runs slow tests too; otherwise skips it
#   more_test_is NAME COMMAND...   test_is that does more under `make test-all`; with tap_more=1 all are, from there on.  With
#                             MEMO_TEST_ALL=rest these and slow tests run alone: what `make test` leaves out
#   nightly_test_is NAME COMMAND...   test_is where tests_each_night; otherwise skips it
#   wait_for FILE [SECONDS]   returns when the file is there and not empty, or after SECONDS (120)
#   tests_all                 succeeds under `make test-all`, which runs slow tests too
#   tests_each_night          succeeds there but for MEMO_TEST_ALL=rest, which runs with each push
#   tap_end                   the last line; its status is the script's
#
# Arguments of the script: [NAME] [--seed N]   NAME: only tests whose name contains it; N: for $tap_seed, by default from
# the clock.  Run from the project's root.

tap_filter= tap_seed=$(date +%s)
while [ $# -gt 0 ]; do
    case $1 in
    --seed) [ $# -gt 1 ] && shift && tap_seed=$1 ;;
    *) tap_filter=$1 ;;
    esac
    shift
done
tap_n=0 tap_failed=0
tap_jobs=1 tap_n_shown=0 # those behind tap_n_shown are under way
tap_more=
mkdir -p build/tests || exit 1
tap_log=$PWD/build/tests/$(basename "$0" .sh).log # scripts may leave this folder
tap_processors=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

tap_folder() {
    folder=$1
    rm -rf "$folder"
    mkdir -p "$folder" || exit 1
}

test_is() {
    tap_name=$1
    shift
    case $tap_name in *"$tap_filter"*) ;; *) return ;; esac
    [ "${MEMO_TEST_ALL:-}" != rest ] || [ -n "$tap_more" ] || return 0
    tap_n=$((tap_n + 1))
    if [ "$tap_jobs" -gt 1 ]; then
        (
            folder=$folder/$tap_n
            mkdir -p "$folder" && tap_time "$tap_log.$tap_n" "$@"
        ) >"$tap_log.$tap_n" 2>&1 &
        eval "tap_name_$tap_n=\$tap_name tap_process_$tap_n=$!"
        [ $((tap_n - tap_n_shown)) -lt "$tap_jobs" ] || tap_show
        return
    fi
    tap_time "$tap_log" "$@" >"$tap_log" 2>&1
    tap_report $? $tap_n "$tap_name" "$tap_log"
    tap_n_shown=$tap_n
}

# Leaves the lines of `times` before and after in LOG.times.  A pipe would count in another process.
tap_time() { # LOG COMMAND...
    tap_times=$1.times
    shift
    times >"$tap_times"
    "$@"
    set -- $?
    times >>"$tap_times"
    return "$1"
}

tap_report() { # STATUS NUMBER NAME LOG
    awk -v name="$3" '{ for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); used += (NR > 2 ? 1 : -1) * (60 * t[1] + t[2]) } }
        END { if (used >= 3) printf "# %s: %.1f s of processor time\n", name, used }' "$4.times"
    rm -f "$4.times"
    if [ "$1" -eq 0 ]; then
        echo "ok $2 - $3"
    else
        tap_failed=$((tap_failed + 1))
        head -n 30 "$4" | sed 's/^/# /'
        echo "not ok $2 - $3"
    fi
}

# Waits for the first that is under way.
tap_show() {
    tap_n_shown=$((tap_n_shown + 1))
    eval "tap_name=\$tap_name_$tap_n_shown tap_process=\$tap_process_$tap_n_shown"
    wait "$tap_process"
    tap_report $? $tap_n_shown "$tap_name" "$tap_log.$tap_n_shown"
    rm -f "$tap_log.$tap_n_shown"
}
tap_show_all() { while [ $tap_n_shown -lt $tap_n ]; do tap_show; done; }

run() {
    tap_wanted=$1 tap_status=0
    shift
    $tool "$@" >"$folder/out" 2>"$folder/err" || tap_status=$?
    cat "$folder/out" "$folder/err"
    [ $tap_status -eq "$tap_wanted" ]
}

skip() {
    case $1 in *"$tap_filter"*) ;; *) return ;; esac
    tap_show_all
    tap_n=$((tap_n + 1)) tap_n_shown=$((tap_n_shown + 1))
    echo "ok $tap_n - $1 # SKIP $2"
}

slow_test_is() {
    if tests_all; then more_test_is "$@"; else skip "$1" "run make test-all"; fi
}

nightly_test_is() {
    if tests_each_night; then test_is "$@"; else skip "$1" "run make test-all"; fi
}

more_test_is() {
    tap_before=$tap_more
    tap_more=1
    test_is "$@"
    tap_more=$tap_before
}

test_with() {
    tap_program=$1
    shift
    if command -v "$tap_program" >/dev/null 2>&1; then test_is "$@"; else skip "$1" "$tap_program is not installed"; fi
}

tests_of() {
    tap_script=$1
    shift
    for tap_marked in $(sed -n 's/^\([a-z_0-9]*\)() [{(].*# \([a-z]*\) *test$/\2:\1/p' "$tap_script"); do
        tap_kind=${tap_marked%:*} tap_marked=${tap_marked#*:}
        ${tap_kind:+${tap_kind}_}test_is "$(echo "$tap_marked" | tr _ ' ')" "$@" "$tap_marked"
    done
}

needs_program() {
    [ -x "$1" ] && return
    echo "Bail out! $1 is not built; make examples"
    exit 1
}

wait_for() {
    waited=0
    while [ $waited -lt $((${2:-120} * 10)) ] && ! [ -s "$1" ]; do
        sleep 0.1
        waited=$((waited + 1))
    done
}

tests_all() { [ -n "${MEMO_TEST_ALL:-}" ]; }
tests_each_night() { tests_all && [ "$MEMO_TEST_ALL" != rest ]; }

tap_end() {
    tap_show_all
    echo "1..$tap_n"
    [ $tap_failed -eq 0 ]
}
