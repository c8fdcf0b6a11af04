#!/bin/sh
# cuda_wraps.sh - prints nvcc's flags for test_step.cu: a pair for each of its SYMBOLs, so that the linker redirects calls
# that are forbidden inside a step.
for name in $(sed -n 's/^SYMBOL[A-Z_]*(\([A-Za-z0-9]*\).*/\1/p' tests/cuda/test_step.cu); do
    printf ' -Xlinker --wrap=%s' "$name"
done
