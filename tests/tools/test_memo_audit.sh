#!/bin/sh
# test_memo_audit.sh - the audit of PyTorch names what differs, in each case that it demonstrates.
#
# It needs a Python with PyTorch; PYTHON=... names another than python3.  Output: TAP.
set -u

. tests/support/tap.sh

python=${PYTHON:-python3}
tap_folder build/tests/memo_audit

# Exit status and lines: those of a layer that match PATTERN, and of all layers.
finds() { # CASE STATUS PATTERN LINES
    $python examples/pytorch/memo_audit.py --case "$1" >"$folder/out" 2>"$folder/err"
    [ $? -eq "$2" ] || { cat "$folder/out" "$folder/err"; return 1; }
    [ "$(grep -c "^$3" "$folder/out")" -eq "$4" ] && [ "$(grep -c '^Tensor' "$folder/out")" -eq "$4" ] && return
    cat "$folder/out"
    return 1
}

# A PyTorch that mends pytorch#190758 has no findings there.
finds_or_mended() {
    finds compile 1 'Tensor [0-9]* of layer [0-3] differs after recomputation (.* bytes): \(rand\|gt\|.*bernoulli.*\)$' 8 ||
        finds compile 0 none 0
}

# Without dropout the same graphs are recomputed, and compared: nothing differs.
finds_nothing_without_dropout() {
    $python examples/pytorch/memo_audit.py --dropout 0 >"$folder/out" 2>"$folder/err" && cat "$folder/out" &&
        grep -q '^compile.* 0 findings; [1-9][0-9]* tensors were recomputed$' "$folder/out"
}

without_torch() {
    mkdir -p "$folder/none" && echo 'raise ImportError("none here")' >"$folder/none/torch.py"
    PYTHONPATH=$folder/none python3 examples/pytorch/memo_audit.py >"$folder/out" 2>"$folder/err"
    [ $? -eq 2 ] && [ "$(cat "$folder/err")" = "memo_audit: none here" ] && [ ! -s "$folder/out" ]
}

if ! command -v python3 >/dev/null 2>&1; then
    skip memo_audit "python3 is not installed"
else
    test_is "without PyTorch it says so" without_torch
    if ! $python -c 'import torch._dynamo' >/dev/null 2>&1; then
        skip "the cases" "$python has no PyTorch; PYTHON=... names one that has"
    else
        test_is "dropout under a memory budget" finds_or_mended
        test_is "no dropout" finds_nothing_without_dropout
        test_is "a checkpoint that draws other numbers" finds checkpoint 1 \
            'Tensor [0-9]* of layer [0-3] differs after recomputation (.* bytes): aten\.\(bernoulli_\.float\|div_\.Scalar\)$' 8
        test_is "an activation that is changed" finds change 1 'Tensor 0 of layer 2 changed between forward and backward' 1
        test_is "a checkpoint as it should be" finds clean 0 none 0
    fi
fi
tap_end
