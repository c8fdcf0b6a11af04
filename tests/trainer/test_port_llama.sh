#!/bin/sh
# test_port_llama.sh - a Llama trainer with memo has the bits of the same trainer without, in a quarter of its memory.  Output: TAP.
set -u

. tests/support/tap.sh

tap_folder build/tests/port_llama

is_bitwise_the_same() {
    sh examples/llama/port.sh >"$folder/out" 2>&1 && cat "$folder/out" &&
        [ "$(grep -c 'all losses and weights are bitwise the same' "$folder/out")" -eq 4 ] || { cat "$folder/out"; return 1; }
    awk '/^original:/ { whole = $2 + $9 } /^the least: / { least = $11 } /^verified; 11 tensors/ { n++ }
        END { exit !(n == 1 && least > 0 && 3.8 * least < whole) }' "$folder/out"
}

slow_test_is "losses and weights of a Llama" is_bitwise_the_same
tap_end
