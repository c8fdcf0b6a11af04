#!/bin/sh
# test_operations.sh - random sessions plan and enqueue the same each time: operations.c prints the same lines twice.  Output: TAP.
set -u

. tests/support/tap.sh

tap_folder build/tests/operations

are_the_same_twice() {
    ${CC:-cc} -O1 -std=gnu11 -DMEMO_TEST_OWN_MAIN -I. -Itests/support -Itests/session tests/session/operations.c \
        -o "$folder/operations" -lpthread -lm || return 1
    echo "# seed $tap_seed"
    "$folder/operations" 30 "$tap_seed" >"$folder/first" && "$folder/operations" 30 "$tap_seed" >"$folder/second" || return 1
    [ "$(grep -c ' operations, ' "$folder/first")" -ge 10 ] && cmp "$folder/first" "$folder/second"
}

test_is "operations are the same twice" are_the_same_twice
tap_end
