#!/bin/sh
# test_examples.sh - the heads of the short examples: the build line builds, and the output matches.
#
# `make test-all` builds with the build line as it is.  `make test` takes the implementations from the library of the other tests,
# and builds with -O1: without the optimizer, 22_states compiles in 0.15 s less and runs 3.2 s longer.
#
# In a head, "Build:", "Run:" (default: the program without arguments) and "Expected output:" are followed by indented
# lines; "..." in the output stands for any text.  Output: TAP.
set -u

. tests/support/tap.sh
. tests/support/heads.sh

tap_folder build/tests/examples
root=$(pwd)
library=$root/build/tests/lib.a lp_solve=$(sed -n 's/^LP_SOLVE_LIBS := //p' build/config.mk)
tests_all || make --no-print-directory -s build/tests/lib.a >&2 || exit 1

# The implementations must come before the first header of memo.
defined_in_time() { # FILE
    awk '/^#include "(memo|extras)/ { n++ } /^#define MEMO_[A-Z]*_*IMPLEMENTATION/ { if (n) { print FILENAME ": defined too late: " $2; exit 1 } }' "$1"
}

# Builds and runs in a separate folder, with links to the sources at the same relative paths.
example() { # FILE
    name=$(basename "${1%.*}")
    place=$folder/$name
    mkdir -p "$place"
    for entry in "$root"/*.h "$root"/parts "$root"/extras "$root"/examples; do
        [ -e "$entry" ] && ln -s "$entry" "$place/"
    done
    section "$1" "Build" >"$place/build"
    section "$1" "Run" >"$place/run"
    section "$1" "Expected output" >"$place/expected"
    [ -s "$place/build" ] || { echo "no build line in its head"; return 1; }
    [ -s "$place/expected" ] || { echo "no expected output in its head"; return 1; }
    [ -s "$place/run" ] || echo "./$name" >"$place/run"
    # The head says cc; the compiler may be another.
    object=
    if tests_all; then
        : # as it is
    elif grep -q '^#include "extras/memo_pack' "$1"; then # the library has no pack
        object="s| -O2 | -O0 |"
    else
        defined_in_time "$1" || return 1
        rm "$place/examples" && mkdir "$place/examples" && ln -s "$root"/examples/* "$place/examples/" && rm "$place/$1" &&
            sed 's/^#define MEMO_[A-Z_]*IMPLEMENTATION$//' "$1" >"$place/$1" || return 1
        object="s|$1|& $library|; s|-lm|$lp_solve -lm|"
        [ "$name" = 19_gpt ] || object="s| -O2 | -O1 |; $object" # which computes much
    fi
    sed -i.head "s|^cc |${CC:-cc} |; s|^c++ |${CXX:-c++} |; $object" "$place/build" && rm -f "$place/build.head"
    (cd "$place" && sh ./build >log 2>&1) || { cat "$place/log"; return 1; }
    (cd "$place" && sh ./run >output 2>log) || { echo "exit status $?"; cat "$place/output" "$place/log"; return 1; }
    matches "$place/expected" "$place/output" || {
        echo "the output differs from the one in the head; expected:"
        cat "$place/expected"
        echo "got:"
        cat "$place/output"
        return 1
    }

    # Checked each night, its sessions find no mistake; one makes some.
    if tests_all && grep -q memo_session_run "$1" && [ "$name" != 27_checked_session ]; then
        (cd "$place" && MEMO_CHECK=1 sh ./run >log 2>&1) || { echo "MEMO_CHECK=1: exit status $?"; cat "$place/log"; return 1; }
    fi

    # Away from the sources it names what it lacks.
    if [ "$name" = 19_gpt ]; then
        (cd "$folder" && "$root/$place/$name" 2>"$root/$place/log")
        [ $? -eq 1 ] && grep -q "examples/19_gpt.c: cannot be read: by default it is read from memo's root; .19_gpt FILE. reads" "$place/log" || { cat "$place/log"; return 1; }
    fi

    # An option that an example does not have is a usage error, not the name of a file.
    grep -q argv "$1" || return 0
    (cd "$place" && "./$name" --help >log 2>&1)
    [ $? -eq 2 ] && grep -q usage "$place/log" && [ ! -e "$place/--help" ] || { echo "--help: no usage"; return 1; }
}

# examples/README.md has a line for each file, and no other.
listed() {
    sed -n 's/^| \[\([0-9][^]]*\)\].*/\1/p' examples/README.md >"$folder/listed"
    (cd examples && ls [0-9]*) | diff - "$folder/listed"
}
test_is "examples/README.md lists all examples" listed

for file in examples/[0-9]*.c; do
    test_is "$(basename "$file" .c)" example "$file"
done
for file in examples/[0-9]*.cpp; do
    if command -v ${CXX:-c++} >/dev/null 2>&1; then
        test_is "$(basename "$file" .cpp)" example "$file"
    else
        skip "$(basename "$file" .cpp)" "there is no C++ compiler"
    fi
done
tap_end
