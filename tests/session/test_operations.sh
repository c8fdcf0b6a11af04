#!/bin/sh
# test_operations.sh - random sessions plan and enqueue the same each time: operations.c prints the same lines twice.  Output: TAP.
set -u

. tests/support/tap.sh

tap_folder build/tests/operations

n=15
! tests_all || n=60
are_the_same_twice() {
    make --no-print-directory -s build/tests/lib.a &&
        ${CC:-cc} -O1 -std=gnu11 -DLINKED -DMEMO_TEST_OWN_MAIN -I. -Itests/support -Itests/session tests/session/operations.c \
            build/tests/lib.a -o "$folder/operations" $(sed -n 's/^LP_SOLVE_LIBS := //p' build/config.mk) -lpthread -lm || return 1
    echo "# seed $tap_seed"
    "$folder/operations" $n "$tap_seed" >"$folder/first" && "$folder/operations" $n "$tap_seed" >"$folder/second" || return 1
    [ "$(grep -c ' operations, ' "$folder/first")" -ge $((n / 3)) ] && cmp "$folder/first" "$folder/second"
}

test_is "operations are the same twice" are_the_same_twice
tap_end
