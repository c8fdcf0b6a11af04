#!/bin/sh
# test_session_in_tensor.sh - sessions in one torch tensor have the bits of sessions with memory of their own.
#
# PyTorch is a stand-in whose tensors are bytes; a Python that has PyTorch (PYTHON=...) runs the example with that too.
# Output: TAP.
set -u

. tests/support/tap.sh

python=${PYTHON:-python3}
tap_folder build/tests/session_in_tensor
example=examples/pytorch/session_in_tensor.py

mkdir -p "$folder/stand_in" "$folder/none"
cat >"$folder/stand_in/torch.py" <<'END'
import ctypes
uint8 = "uint8"
class cuda:
    is_available = staticmethod(lambda: False)
class Tensor:
    def __init__(self, n):
        self.bytes = ctypes.create_string_buffer(n + 64)
    def data_ptr(self):
        return ctypes.addressof(self.bytes) // 64 * 64 + 64
def empty(n, dtype, device="cpu", pin_memory=False):
    assert dtype == uint8 and device == "cpu" and not pin_memory
    return Tensor(n)
END
echo 'raise ImportError("none here")' >"$folder/none/torch.py"

has_the_same_bits() {
    "$@" "$example" --device cpu >"$folder/out" 2>"$folder/err" || { cat "$folder/out" "$folder/err"; return 1; }
    grep -q '^in the block: .*; the device gave 0 KiB$' "$folder/out" && grep -q '^gradients are bitwise the same$' "$folder/out"
}
without_torch() {
    PYTHONPATH=$folder/none python3 "$example" >"$folder/out" 2>"$folder/err"
    [ $? -eq 2 ] && [ "$(cat "$folder/err")" = "session_in_tensor: none here" ] && [ ! -s "$folder/out" ]
}

if ! command -v python3 >/dev/null 2>&1; then
    skip session_in_tensor "python3 is not installed"
else
    test_is "without PyTorch it says so" without_torch
    nightly_test_is "in a stand-in's tensor" has_the_same_bits env PYTHONPATH="$folder/stand_in" python3
    if $python -c 'import torch' >/dev/null 2>&1; then
        test_is "in a tensor" has_the_same_bits "$python"
    else
        skip "in a tensor" "$python has no PyTorch; PYTHON=... names one that has"
    fi
fi
tap_end
