#!/bin/sh
# analyze.sh - static analysis of the headers by every analyser that is here; exit status 1 where one finds something.
set -u

source=tests/compile/implementation.c
lp_cflags=$(sed -n 's/^LP_SOLVE_CFLAGS := //p' build/config.mk 2>/dev/null)
ran=0 bad=0

has() { command -v "$1" >/dev/null 2>&1; }

analyser() { # NAME COMMAND...
    name=$1
    shift
    ran=$((ran + 1))
    echo "$name"
    if "$@"; then
        echo "  nothing found"
    else
        bad=1
    fi
}

if has clang; then
    analyser "clang --analyze" clang --analyze --analyzer-output text -Xclang -analyzer-werror \
        -std=c99 -I. $lp_cflags -o /dev/null $source
fi
if has cppcheck; then
    # It takes one of each header's options at a time: here, the implementations.
    analyser cppcheck cppcheck --quiet --std=c99 --error-exitcode=1 --inline-suppr \
        --enable=warning,performance,portability --suppress=missingIncludeSystem \
        -DMEMO_IMPLEMENTATION -DMEMO_PLAN_IMPLEMENTATION -DMEMO_SP_IMPLEMENTATION -D__GNUC__=12 \
        -I. $source
fi
if has gcc && echo 'int main(void) { return 0; }' | gcc -fanalyzer -x c -fsyntax-only - 2>/dev/null; then
    analyser "gcc -fanalyzer" gcc -fanalyzer -Werror -O1 -std=c99 -I. $lp_cflags -c $source -o /dev/null
fi
if [ $ran -eq 0 ]; then
    echo "make analyze: needs clang, cppcheck or gcc 10 (apt-get install clang cppcheck)" >&2
    exit 1
fi
exit $bad
