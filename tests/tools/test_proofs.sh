#!/bin/sh
# test_proofs.sh - the cases of test_proofs.py: what examples/tools/check_proof.py accepts is true.  Needs
# build/examples/plan_trace, which writes true proofs.  Output: TAP.
set -u

. tests/support/tap.sh

needs_program build/examples/plan_trace
tap_folder build/tests/proofs

echo "# seed $tap_seed"
for case in false_proofs refused_lines unread_problems mutants; do
    test_with python3 $case python3 -B tests/tools/test_proofs.py $case "$tap_seed" "$folder"
done
tap_end
