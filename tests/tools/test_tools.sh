#!/bin/sh
# test_tools.sh - all tools with standard streams that are full, closed or missing; the run of the tests.  Output: TAP.
set -u

. tests/support/tap.sh

tap_folder build/tests/tools

# For each tool a command that prints much, and one that prints little.
commands() {
    for tool in plan_trace degrees_plan layout_plan; do
        echo "build/examples/$tool --help"
    done
    echo "build/tests/train_gpt --help"
    command -v python3 >/dev/null 2>&1 && echo "python3 examples/pytorch/snapshot_to_trace.py --help"
    echo "build/examples/layout_plan --top 0"
    echo "build/examples/plan_trace examples/layer.trace"
    echo "build/examples/degrees_plan --forward 1,1 --recompute 1,1 --backward 1,1 --comm 1,1"
    echo "build/tests/train_gpt --layers 1 --hidden 8 --heads 1 --seq 16 --batch 1 --dry-run"
}

# each FUNCTION: with every command, which must fail.
each() {
    commands >"$folder/commands"
    while read -r line; do
        if "$1" $line 2>"$folder/err" </dev/null; then
            echo "exit 0: $line"
            return 1
        fi
    done <"$folder/commands"
}

full() { "$@" >/dev/full; }
closed() { "$@" >&-; }
# Nobody reads any more: the reader has gone when the writer begins.
piped() {
    rm -f "$folder/go" "$folder/code"
    mkfifo "$folder/go"
    {
        cat "$folder/go" >/dev/null
        code=0
        "$@" || code=$?
        echo $code >"$folder/code"
    } | {
        exec <&-
        echo >"$folder/go"
    }
    return "$(cat "$folder/code")"
}

output_that_works() { # test
    commands >"$folder/commands"
    while read -r line; do
        $line >"$folder/out" 2>"$folder/err" </dev/null || { echo "$line"; cat "$folder/err"; return 1; }
    done <"$folder/commands"
}

# The log and the file of spilled rows get nothing that is printed, and the log is whole.
closed_output_stays_out_of_files() { # test
    printf '%0500d' 0 >"$folder/text"
    set -- build/tests/train_gpt --text "$folder/text" --layers 6 --hidden 8 --heads 1 --seq 32 --batch 1 --tile 8 --steps 30
    "$@" --policy keep --loss-log "$folder/open.log" >"$folder/out" || return 1
    set -- "$@" --policy swap --host-memory 24KiB --spill "$folder" --loss-log "$folder/closed.log"
    "$@" >"$folder/out" && grep 'through a file of' "$folder/out" || return 1
    rm "$folder/closed.log"
    "$@" >&- 2>"$folder/err" && return 1
    "$@" >&- 2>&- <&- && return 1
    [ ! -e "$folder/closed.log" ] || return 1
    "$@" >"$folder/out" 2>&- <&- && cmp "$folder/open.log" "$folder/closed.log"
}

# An output file gets its own content only.
closed_output_stays_out_of_a_csv() { # test
    build/examples/plan_trace examples/layer.trace --csv "$folder/open.csv" >"$folder/out" || return 1
    build/examples/plan_trace examples/layer.trace --csv "$folder/closed.csv" >&- 2>"$folder/err" && return 1
    [ ! -e "$folder/closed.csv" ] || cmp "$folder/open.csv" "$folder/closed.csv"
}

# The run of the tests itself.  The child ignores SIGTERM.
a_stopped_test_takes_its_children_along() { # test
    printf 'trap "" TERM\nsleep 1000 &\necho $! >"%s/child"\ntrap - TERM\nsleep 1000\n' "$folder" >"$folder/stopped.sh"
    MEMO_TEST_TIMEOUT=1 sh tests/run.sh "$folder/logs" "$folder/stopped.sh" >"$folder/out" && return 1
    [ ! -r /proc/self/stat ] || grep -q "FAIL .*stopped: hangs: no second of processor time in 1 s" "$folder/out" || return 1
    child=$(cat "$folder/child")
    tries=0
    while kill -0 "$child" 2>/dev/null && [ $tries -lt 300 ]; do sleep 0.1 && tries=$((tries + 1)); done
    ! kill "$child" 2>/dev/null
}

a_test_that_does_not_exist_is_named() { # test
    env -u MAKEFLAGS -u MFLAGS "${MAKE:-make}" --no-print-directory test TESTS="test_text test_typo" >"$folder/out" 2>&1 && return 1
    cat "$folder/out"
    grep -q "TESTS: no such test (test_typo)" "$folder/out" && ! grep -q "passed" "$folder/out" || return 1
    printf 'echo 1..0\n' >"$folder/empty.sh"
    sh tests/run.sh "$folder/logs" "$folder/empty.sh" >"$folder/out" && return 1
    cat "$folder/out"
    grep -q "No test ran" "$folder/out"
}

tools_have_a_version() { # test
    version=$(sed -n 's/^#define MEMO_VERSION_[A-Z]* //p' memo.h | paste -s -d .)
    for tool in examples/plan_trace examples/check_schedule examples/degrees_plan examples/layout_plan tests/train_gpt; do
        [ "$(build/$tool --version)" = "${tool#*/} of memo $version" ] || { echo "$tool"; return 1; }
    done
    [ "$(build/tests/train_gpt --spill . --version)" = "train_gpt of memo $version" ]
}

# The pictures of docs/memory.md are whole, and those of today's plans; a folder that does not exist is named.  Processors that
# fuse a product and a sum may find other plans.
pictures_of_memory_are_drawn() { # test
    build/examples/draw_memory "$folder" >"$folder/out" || return 1
    for name in rows arena tiers length; do
        [ "$(tail -n 1 "$folder/memory-$name.svg")" = "</svg>" ] || { echo "memory-$name.svg is not whole"; return 1; }
        [ "$(uname -m)" != x86_64 ] || cmp "$folder/memory-$name.svg" "docs/memory-$name.svg" ||
            { echo "draw it again: build/examples/draw_memory docs; docs/memory.md describes it"; return 1; }
    done
    build/examples/draw_memory "$folder/missing" 2>"$folder/err" && return 1
    grep -q "missing/memory-rows.svg" "$folder/err"
}

tests_of tests/tools/test_tools.sh
if [ -c /dev/full ]; then
    test_is full_output_is_a_failure each full
else
    skip full_output_is_a_failure "/dev/full is not there"
fi
test_is closed_output_is_a_failure each closed
test_is output_that_nobody_reads_is_a_failure each piped
tap_end
