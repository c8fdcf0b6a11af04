#!/bin/sh
# analyze.sh - static analysis of the headers by each analyzer that is installed; exit status 1 if cppcheck or gcc finds
# something.
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
        echo "  no answer within $limit_s s; ANALYZE_SECONDS=3600 gives it an hour"
    elif [ $status -eq 0 ]; then
        echo "  done"
    else
        bad=1
    fi
}

if has clang; then
    # Its findings are to be read, and do not fail: it does not follow memo_error_set, which takes any number of
    # arguments, and so believes that a call that failed may return OK.
    analyzer "clang --analyze" clang --analyze -Xclang -analyzer-opt-analyze-headers -std=c99 -I. $lp_cflags \
        -o /dev/null $source
fi
if has cppcheck; then
    # It takes one of each header's options at a time: here, the implementations.  The suppressed checks see no
    # difference between a loop that may run and one that must; clang and the sanitizers do.
    analyzer cppcheck cppcheck --quiet --std=c99 --error-exitcode=1 --inline-suppr \
        --enable=warning,performance,portability --suppress=missingIncludeSystem \
        --suppress=uninitvar --suppress=legacyUninitvar --suppress=nullPointerRedundantCheck \
        --suppress=invalidPointerCast -DUINTPTR_MAX=0xffffffffffffffffu \
        -DMEMO_IMPLEMENTATION -DMEMO_PLAN_IMPLEMENTATION -DMEMO_SP_IMPLEMENTATION -D__GNUC__=12 \
        -I. $source
fi
if has gcc && echo 'int main(void) { return 0; }' | gcc -fanalyzer -x c -fsyntax-only - 2>/dev/null; then
    analyzer "gcc -fanalyzer" gcc -fanalyzer -Werror -O1 -std=c99 -I. $lp_cflags -c $source -o /dev/null
fi
if [ $ran -eq 0 ]; then
    echo "make analyze: needs clang, cppcheck or gcc 10 (apt-get install clang cppcheck)" >&2
    exit 1
fi
exit $bad
