#!/bin/sh
# cuda_wraps.sh - what nvcc needs so that test_step.cu sees the calls that must not happen inside a step: one flag pair for each
# of its SYMBOLs, which the linker then lets it intercept.
for name in $(sed -n 's/^SYMBOL[A-Z_]*(\([A-Za-z0-9]*\).*/\1/p' tests/cuda/test_step.cu); do
    printf ' -Xlinker --wrap=%s' "$name"
done
