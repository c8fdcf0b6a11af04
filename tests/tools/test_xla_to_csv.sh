#!/bin/sh
# test_xla_to_csv.sh - CSVs from XLA's buffer assignment, and refusals.  XLA is not needed.  Output: TAP.
set -u

. tests/support/tap.sh

tool="python3 examples/tools/xla_to_csv.py"
planner=build/examples/plan_trace
tap_folder build/tests/xla_to_csv

# Two temporaries share bytes in place at 9; the third lives beside them.  Parameters and outputs are no temporaries.
cat >"$folder/m.jit_f.cpu_after_optimizations-buffer-assignment.txt" <<'EOF'
BufferAssignment:
allocation 0: size 32768, maybe-live-out:
 value: <32 dot @0> (size=32768,offset=0): f32[64,128]{1,0}
allocation 1: size 32768, parameter 0, shape |f32[64,128]| at ShapeIndex {}:
 value: <24 w1.1 @0> (size=32768,offset=0): f32[64,128]{1,0}
allocation 6: size 10240, preallocated-temp:
 value: <29 broadcast_multiply_fusion @0> (size=2048,offset=8192): f32[16,32]{1,0}
 value: <30 fusion{1} @0> (size=8192,offset=0): f32[16,128]{1,0}
 value: <31 multiply_add_fusion @0> (size=8000,offset=0): f32[16,125]{1,0}

Total bytes used: 112656 (110.0KiB)
EOF
cat >"$folder/m.jit_f.cpu_after_optimizations-live-range.txt" <<'EOF'
HloLiveRange (max 12):
  InstructionSequence:
    0:w1.1
  BufferLiveRange:
    w1.1{}:0-12
    broadcast_multiply_fusion{}:6-8
    fusion{1}:7-9
    multiply_add_fusion{}:9-10
    dot{}:10-12
  Live ranges at 10 (peak):
    dot{}: 32768 bytes (cumulative: 32768 bytes)
EOF
dump=$folder/m.jit_f.cpu_after_optimizations-buffer-assignment.txt

writes_buffers() { # test
    run 0 "$dump" || return 1
    printf "%s\n" "# XLA's heap: 10240 bytes" id,lower,upper,size,alignment '"broadcast_multiply_fusion",6,9,2048,64' \
        '"fusion{1}",7,11,8192,64' | diff - "$folder/out"
}

# The planner takes them, and accepts XLA's own offsets.
is_planned() { # test
    for options in "" --offsets; do
        $tool "$dump" $options -o "$folder/heap.csv" || return 1
        $planner "$folder/heap.csv" --quiet | grep '^peak_bytes: 10240$' || return 1
    done
}

refuses() { # PATTERN ARGUMENTS...
    pattern=$1
    shift
    run 2 "$@" && grep -q -e "$pattern" "$folder/err" && [ "$(wc -l <"$folder/err")" -eq 1 ] && [ ! -s "$folder/out" ]
}

test_is writes_buffers writes_buffers
if [ -x $planner ]; then test_is is_planned is_planned; else skip is_planned "needs $planner"; fi
printf 'allocation 0: size 8, parameter 0:\n' >"$folder/none-buffer-assignment.txt"
sed '/offset=8192/d' "$dump" >"$folder/cut-buffer-assignment.txt"
test_is cut_dumps_are_refused refuses 'values end at 8192, the heap at 10240: the file is cut' "$folder/cut-buffer-assignment.txt"
test_is no_heap_is_refused refuses 'no preallocated-temp allocation' "$folder/none-buffer-assignment.txt"
test_is no_lives_are_refused refuses 'No such file' "$dump" --live-range "$folder/missing"
sed '/fusion{1}/d' "$folder/m.jit_f.cpu_after_optimizations-live-range.txt" >"$folder/short"
test_is unknown_value_is_refused refuses 'fusion{1}: no live range' "$dump" --live-range "$folder/short"
test_is alignment_is_refused refuses '--align 3: not a power of two' "$dump" --align 3
tap_end
