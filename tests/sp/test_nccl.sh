#!/bin/sh
# test_nccl.sh - the NCCL back end of memo_cuda.cuh without a GPU: the cases of test_comm_nccl.c on a stand-in for NCCL
# (tests/cuda/fake_nccl.h), with a process per rank.  The headers of CUDA and NCCL are real.  Output: TAP.
set -u

. tests/support/tap.sh

folder=build/tests/nccl
mkdir -p "$folder" || exit 1
cuda=${CUDA_HOME:-/usr/local/cuda}/include
flags="-std=c++17 -O0 -DLINKED -DFAKE_NCCL -DMEMO_CUDA_NCCL -I. -Itests/support -Wall -Wextra -Werror -Wno-missing-field-initializers"

on_ranks() { # RANKS [VARIABLE=VALUE]...
    ranks_=$1
    shift
    env MASTER_PORT=$((29000 + $$ % 500)) "$@" "$folder/test_comm_nccl" "$ranks_"
}

printf '#include <cuda_runtime.h>\n#include <nccl.h>\n' >"$folder/probe.cpp"
if ${CXX:-c++} -I"$cuda" -fsyntax-only "$folder/probe.cpp" 2>/dev/null; then
    set -- build/tests/lib.a build/strict/tests/fake_cuda.o # of the other tests
    make --no-print-directory -s "$@" >&2 || exit 1
    test_is "the NCCL back end builds on a stand-in" ${CXX:-c++} $flags -isystem "$cuda" -x c++ tests/sp/test_comm_nccl.c \
        -x none "$@" -o "$folder/test_comm_nccl" $(sed -n 's/^LP_SOLVE_LIBS := //p' build/config.mk) -pthread -lm
    nightly_test_is "comm over a stand-in for NCCL, 1 rank" on_ranks 1
    test_is "2 ranks; a lost peer ends a plain wait for the stream" on_ranks 2 MEMO_TEST_WAIT=plain
    nightly_test_is "3 ranks; communicators take turns where NCCL does not order them" on_ranks 3 NCCL_LAUNCH_ORDER_IMPLICIT=0
    for ranks in $(tests_all && echo 4 8); do
        test_is "comm over a stand-in for NCCL, $ranks ranks" on_ranks $ranks
    done
else
    skip "the NCCL back end on a stand-in" "nccl.h or cuda_runtime_api.h is not installed; apt-get install libnccl-dev, and the CUDA toolkit"
fi
tap_end
