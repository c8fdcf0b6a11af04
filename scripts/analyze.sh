#!/bin/sh
# analyze.sh - runs each installed static analyzer on the headers; exit status 1 if cppcheck or gcc finds something.
#
# An analyzer is stopped after ANALYZE_SECONDS (300): gcc's takes more than ten minutes for headers of this size.
set -u

source=tests/compile/implementation.c
lp_cflags=$(sed -n 's/^LP_SOLVE_CFLAGS := //p' build/config.mk 2>/dev/null)
ran=0 bad=0

has() { command -v "$1" >/dev/null 2>&1; }

limit_s=${ANALYZE_SECONDS:-300}
limit=
has timeout && limit="timeout $limit_s"

analyzer() { # NAME COMMAND...
    name=$1
    shift
    ran=$((ran + 1))
    echo "$name"
    $limit "$@"
    status=$?
    if [ -n "$limit" ] && [ $status -eq 124 ]; then
        echo "  stopped after $limit_s s; set ANALYZE_SECONDS=3600 to wait an hour"
    elif [ $status -eq 0 ]; then
        echo "  done"
    else
        bad=1
    fi
}

if has clang; then
    # It does not follow variadic functions, and assumes that a failed call may return OK.  In copies of the headers, a
    # macro therefore replaces the two variadic functions that return a status.
    copies=build/analyze
    mkdir -p "$copies/extras" && cp "$source" "$copies/" || exit 1
    for header in memo.h memo_plan.h memo_sp.h extras/*.h; do
        sed -E 's/\bmemo_status (memo_error_set|memob_line_error)\((memo_error\*|const memob_reader)/memo_status (\1)(\2/' \
            $header >"$copies/$header" || exit 1
    done
    # Its findings do not fail the run, because it does not know what a caller has checked.
    analyzer "clang --analyze" clang --analyze -Xclang -analyzer-opt-analyze-headers -Xclang -analyzer-output=text \
        -std=c99 -I"$copies" -I"$copies/extras" $lp_cflags -include stdio.h -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE \
        '-Dmemo_error_set(error,status,...)=((void)(error),printf(__VA_ARGS__),(memo_status)(status))' \
        '-Dmemob_line_error(reader,error,status,...)=((void)(reader),(void)(error),printf(__VA_ARGS__),(memo_status)(status))' \
        -o /dev/null "$copies/${source##*/}"
fi
if has cppcheck; then
    # cppcheck gets one set of options: the implementations.  The suppressed checks give false findings after loops that
    # always run; clang and the sanitizers check the same.
    analyzer cppcheck cppcheck --quiet --std=c99 --error-exitcode=1 --inline-suppr \
        --enable=warning,performance,portability --suppress=missingIncludeSystem \
        --suppress=uninitvar --suppress=legacyUninitvar --suppress=nullPointerRedundantCheck \
        --suppress=invalidPointerCast -DUINTPTR_MAX=0xffffffffffffffffu \
        -DMEMO_IMPLEMENTATION -DMEMO_PLAN_IMPLEMENTATION -DMEMO_SP_IMPLEMENTATION -DMEMO_LOOK_IMPLEMENTATION \
        -D__GNUC__=12 \
        -I. $source
fi
if has gcc && echo 'int main(void) { return 0; }' | gcc -fanalyzer -x c -fsyntax-only - 2>/dev/null; then
    analyzer "gcc -fanalyzer" gcc -fanalyzer -Werror -O1 -std=c99 -I. $lp_cflags -c $source -o /dev/null
fi
if [ $ran -eq 0 ]; then
    echo "analyze: needs clang, cppcheck or gcc 10 (apt-get install clang cppcheck)" >&2
    exit 1
fi
exit $bad
