#!/bin/sh
# test_kann.sh - KANN's recurrent model by memo's arena and hooks has the bits of the original, in three budgets.
#
# KANN=FOLDER, or build/kann-clone, is a clone of KANN.  Output: TAP.
set -u

. tests/support/tap.sh

clone=${KANN:-build/kann-clone}
tap_folder build/tests/kann

is_bitwise_the_same() {
    sh examples/kann/port.sh "$clone" >"$folder/out" 2>&1 && cat "$folder/out" &&
        [ "$(grep -c '^[Mw].*: all costs and weights are bitwise the same' "$folder/out")" -eq 5 ] || { cat "$folder/out"; return 1; }
    # Arena and places fit the budget, and smaller budgets move more.  With the rows on the host and all bookkeeping a step
    # takes less of the heap than the original's.
    awk '/^a step takes/ { whole = $4 }
        /^MEMO_BYTES=/ { split($1, budget, /[=:]/); for (i = 2; i < NF; i++) { if ($i == "arena") arena = $(i + 1)
            if ($i == "places") places = $(i + 1); if ($i == "bytes,") moved = $(i + 1) }
            n++; if (arena + places > budget[2] || moved < last || !/CHECK/ && $(NF - 3) >= whole) bad = 1
            last = moved }
        END { exit bad || n != 4 || last <= 0 }' "$folder/out"
}

refuses_another_folder() {
    sh examples/kann/port.sh "$folder" >"$folder/out" 2>"$folder/err"
    [ $? -eq 2 ] && grep -q '^usage: .*a clone of KANN' "$folder/err"
}

test_is "a folder that is no clone is refused" refuses_another_folder
if git -C "$clone" cat-file -e e260712:kann.c 2>/dev/null; then
    test_is "costs and weights of KANN" is_bitwise_the_same
else
    skip "costs and weights of KANN" "there is no clone of KANN with e260712; KANN=FOLDER names one"
fi
tap_end
