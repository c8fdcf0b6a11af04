#!/bin/sh
# test_cuda.sh - memo_cuda.cuh without a GPU: its host side on a runtime that keeps everything in host memory and fails
# on demand (tests/cuda/fake_cuda.cpp), its kernels thread by thread on the CPU (tests/cuda/emulated_grid.h), and the
# compilation of all sources for GPUs.  Output: TAP.
set -u

. tests/support/tap.sh
. tests/support/heads.sh

folder=build/tests/cuda
mkdir -p "$folder" || exit 1

if ! command -v nvcc >/dev/null 2>&1; then
    skip "memo_cuda.cuh on a runtime without a GPU" "nvcc is not installed; developer.nvidia.com/cuda-downloads"
    skip "the row kernels on an emulated grid" "nvcc is not installed; developer.nvidia.com/cuda-downloads"
    skip "programs for GPUs compile" "nvcc is not installed; developer.nvidia.com/cuda-downloads"
    tap_end
    exit
fi

flags="-std=c++17 -O1 -I. -Itests/support -DMEMO_ASSERT(condition)=assert(condition) -Werror all-warnings -Xcompiler -Wall,-Wextra,-Wshadow,-Werror"
# Calls that must not happen inside a step are intercepted by the linker.
wraps=$(sh tests/cuda/cuda_wraps.sh)

# memo's implementations of the other tests, and the runtime, for all programs here.
library=build/tests/lib.a
fake=$PWD/build/strict/tests/fake_cuda.o
make --no-print-directory -s $library build/strict/tests/fake_cuda.o >&2 || exit 1
links="$fake -Xlinker $library $(sed -n 's/^LP_SOLVE_LIBS *:= *//p' build/config.mk) -lpthread -lm"

# No kernel runs there, and the optimizer would take longer than it saves.
on_the_fake() { # NAME FLAGS...
    program=$folder/$1_fake source=tests/cuda/$1.cu
    shift
    nvcc -gencode arch=compute_90,code=compute_90 -Xcicc -O0 $flags -O0 -DFAKE_CUDA -DLINKED -cudart none "$@" "$source" $links -o "$program" && "$program"
}

# On streams that are threads, with random delays (tests/cuda/queues.h): each run prints its seed.
strictly() { # SEEDS PROGRAM [NAME]
    seeds=$1
    shift
    for k in $(seq "$seeds"); do
        FAKE_CUDA_MODE=strict STRICT_SEED=$((tap_seed + k)) "$@" || return 1
    done
}
on_the_fake_and_strictly() { # SEEDS NAME FLAGS...
    runs=$1
    shift
    on_the_fake "$@" && strictly "$runs" "$program"
}
# Tests of sessions, with memo_cuda.cuh in the place of the host device (tests/cuda/instead.cpp).  Each night runs all of them.
sessions_on_strict_streams() {
    set -- test_budgets test_states
    make -f .ci/checks.mk --no-print-directory -s VARIANT=strict TESTS="$*" $(printf 'build/strict/tests/%s ' "$@") &&
        strictly 3 build/strict/tests/test_budgets two_sessions && strictly 1 build/strict/tests/test_states made_states
}

# An example without kernels prints the same as on a GPU.
prints_its_head() { # SOURCE
    program=$folder/$(basename "$1" .cu)
    nvcc -arch=sm_90 $flags -DMEMO_STATIC -cudart none "$1" "$fake" -o "$program" && "$program" >"$program.txt" || return 1
    section "$1" "Expected output" >"$program.expected"
    cat "$program.txt"
    matches "$program.expected" "$program.txt"
}

# Kernels are compiled as C++.  The trainer's kernels and attention run on stand-ins for cuBLASLt and cuDNN too
# (tests/cuda/cudnn_frontend.h).  Under `make test-all` sanitizers, if installed, find accesses outside the arrays, with each push
# those of memo's own kernels; compiling with them and with the optimizer would take longer than it saves.
sanitizers=,-fsanitize=address,-fsanitize=undefined,-fno-sanitize-recover=all
echo 'int main() {}' >"$folder/probe.cpp"
nvcc -Xcompiler ${sanitizers#,} "$folder/probe.cpp" -o "$folder/probe" 2>/dev/null && "$folder/probe" || sanitizers=
on_the_emulated_grid() { # SOURCE FLAGS...
    program=$folder/$(basename "${1%.*}")_emulated source=$1
    shift
    nvcc -x c++ $flags -Iexamples -Itests/cuda -DLINKED -Xcompiler -fno-strict-aliasing "$@" -c "$source" -o "$program.o" &&
        nvcc -cudart none ${sanitized:+-Xcompiler ${sanitized#,}} "$program.o" $links -o "$program" && "$program"
}
is_sanitized() { # COMMAND...
    sanitized=$sanitizers
    "$@" -g -Xcompiler -O0$sanitized
}

# Memory of a thread's own, spilled registers or a copied desc, would cost the row kernels their bandwidth.
keeps_to_registers() {
    nvcc -arch=sm_90 -std=c++17 -O3 -I. -DMEMO_IMPLEMENTATION -DMEMO_SP_IMPLEMENTATION -DMEMO_CUDA_IMPLEMENTATION \
        -include memo_sp.h '-DHEADER="memo_cuda.cuh"' -Xptxas -v -x cu -cubin tests/compile/alone.c -o "$folder/kernels.cubin" >"$folder/ptxas" 2>&1 || {
        cat "$folder/ptxas"
        return 1
    }
    awk '/Compiling entry function/ { name = $6 }
        / Used [0-9]+ registers/ && $5 > 84 { print name ": " $5 " registers"; bad = 1 }
        / bytes stack frame/ { n++; if ($1 + $5 + $9) { print name ": " $0; bad = 1 } }
        END { if (n < 6) { print "no kernels found"; bad = 1 } exit bad }' "$folder/ptxas"
}

# A whole example on the emulated grid, with every activation kept and in a budget: the plan after the steps that are timed.
learns_on_the_emulated_grid() {
    nvcc -x c++ $flags -O0 -Itests/cuda -Xcompiler -fno-strict-aliasing -DN_STEPS=7 -DMEMO_TEST_OWN_MAIN \
        -include emulated_grid.h -c examples/19_gpt.cu -o "$folder/19_gpt.o" &&
        nvcc -cudart none "$folder/19_gpt.o" "$fake" -o "$folder/19_gpt" -lpthread -lm &&
        "$folder/19_gpt" >"$folder/19_gpt.txt" || return 1
    cat "$folder/19_gpt.txt"
    grep -q '^device .* MiB, host 0[.][1-9]' "$folder/19_gpt.txt" && grep -q 'bitwise the same' "$folder/19_gpt.txt"
}

# Every part and case prints its commands, and builds sources that exist.
benchmarks_print_their_commands() {
    rm -f "$folder/commands.txt"
    for part in A B C "C 131072" "C 262144"; do
        CUDNN=none sh bench/device.sh --dry-run $part >>"$folder/commands.txt" || return 1
    done
    CUDNN=none sh bench/device.sh --dry-run pack >>"$folder/commands.txt" || return 1
    for case in build 512k 1m slices 8b pytorch-8b pytorch-512k; do
        sh bench/device_long.sh $case --dry-run >>"$folder/commands.txt" || return 1
    done
    cat "$folder/commands.txt"
    for source in $(grep -o '[a-z/]*/[a-z0-9_]*[.]\(cu\|c\|py\) ' "$folder/commands.txt" | sort -u); do
        [ -f "$source" ] || { echo "$source: missing"; return 1; }
    done
    # Of each list of programs one command compiles memo, before those that take it.
    awk '/-c examples[/]gpt[/]memo.c/ { n++; has = 1 } /memo[.]o -lpthread/ && !has { exit 1 } /pids= bad/ { has = 0 }
        END { exit n != 3 }' "$folder/commands.txt" || return 1
    grep -q 'train_gpt_cuda --policy memo' "$folder/commands.txt" && ! sh bench/device.sh D 2>/dev/null
}

# A packed program is used as long as none of its own sources changes; one that is stale ends the call at once.
stale_programs_are_refused() {
    cat >"$folder/pack.sh" <<'END'
. bench/device_common.sh
arch=sm_90 pack=$1/pack
rm -rf "$pack" && mkdir -p "$pack" "$1/own" || exit 1
printf '#include "own.h"\n#include "memo.h"\n' >"$1/own/own.cu" && : >"$1/own/own.h"
for program in own test_step; do : >"$pack/$program" && chmod +x "$pack/$program"; done
sources_of "$1/own/own.cu" | pack_mark own
sources_of tests/cuda/test_step.cu -Iexamples | pack_mark test_step
sources_of tests/cuda/test_step.cu -DLINKED | grep -x examples/gpt/memo.c || exit 1 # shared by programs
sources_of examples/13_cudnn_attention.cu -DATTENTION_LINKED | grep -x examples/cudnn_graphs.h || exit 1
grep ' memo.h$' "$pack/own.sources" && grep ' memo_cuda.cuh$' "$pack/test_step.sources" || exit 1
check_pack own test_step absent && is_packed own && ! is_packed absent || exit 1
echo '/* a comment */' >>"$1/own/own.h"
check_pack test_step || exit 1
(check_pack own) 2>"$1/err" && exit 1
grep 'pack/own is stale: .*own/own.h has changed; sh bench/device.sh pack builds it again' "$1/err" || exit 1
arch=sm_80
! (check_pack test_step) 2>"$1/err" && grep 'test_step is stale: built for something else than sm_80' "$1/err"
END
    sh "$folder/pack.sh" "$folder"
}

# The ratios of part C, from recorded rows: of the best way but keeping, and with what the plan recomputes.
ratios_come_from_the_rows() {
    cat >"$folder/goals.sh" <<'END'
. bench/device_common.sh
folder=$1/goals
mkdir -p "$folder"
cat >"$folder/trainer.md" <<'ROWS'
| memo, memo | 65536 | 8 | 2000.0 ms | 32768.0 | 50 % | device 100 GiB |
| PyTorch, layers recomputed, attention kept, eager | 65536 | 8 | 2200.0 ms | 29789.1 | | device 90 GiB at most |
| products and attention alone, forward and backward | 65536 | 8 | 1800.0 ms | 36408.9 | | device 9 GiB at most |
| PyTorch, layers recomputed, eager | 65536 | 8 | 2500.0 ms | 26214.4 | | device 80 GiB at most |
| PyTorch, everything kept, eager | 65536 | 8 | 1950.0 ms | 33608.2 | | device 130 GiB at most |
| memo, swap | 131072 | 8 | 1.0 ms | 1.0 | 50 % | device 1 GiB |
| memo, keep | 65536 | 8 | does not fit |  |  |  |
ROWS
echo 'predicted 2010.0 ms a step, of which 0.0 ms stalled and 100.0 ms recomputing' >"$folder/memo-65536.log"
trainer_goals 65536
END
    sh "$folder/goals.sh" "$folder" >"$folder/goals.md"
    cat "$folder/goals.md"
    grep -q '^| 65536 | 1.250 | 1.100 (layers recomputed, attention kept, eager) | 0.975 (everything kept, eager) | not measured | not measured | 1.053 |$' \
        "$folder/goals.md"
}

# One architecture; tests/tools/test_compile.sh compiles memo_cuda.cuh for all of them.
# The host's half is most of the time: it is checked and not translated, and test_compile.sh shows the optimizer's warnings of
# headers.
compiles() { # SOURCE
    nvcc -arch=sm_90 $(echo "$flags" | sed 's/-O1/-O0/') -Xcompiler -fsyntax-only -Iexamples -c "$1" -o "$folder/compiles.o"
}

# Benchmarks in C that nvcc compiles too, linked as in the pack; their times mean nothing here.
c_benchmarks_run() {
    sh bench/device.sh --dry-run pack >"$folder/pack.txt" || return 1
    on_the_fake_runtime() { # SOURCE ARGUMENT...
        program=$folder/$(basename "$1" .c)_fake source=$1
        shift
        nvcc -arch=sm_90 $flags $(grep " $source " "$folder/pack.txt" | grep -o -e -DLINKED) -x cu -c "$source" -o "$program.o" &&
            nvcc -cudart none "$program.o" $links -o "$program" &&
            "$program" "$@" >"$program.txt" && cat "$program.txt"
    }
    on_the_fake_runtime bench/calls.c 3 && grep -q '^| memo_session_forward_begin | [0-9.]* |' "$program.txt" &&
        on_the_fake_runtime bench/spill.c "$folder" 16 0.1 && grep -q '^| 16 MiB | engine | [0-9.]* |' "$program.txt" &&
        on_the_fake_runtime bench/arena.c 0.01 && grep -q '^cudaMallocAsync  *[0-9.]* ' "$program.txt"
}

has_cudnn() { [ -f "${CUDNN:-}/include/cudnn_frontend.h" ]; }
compiles_with_cudnn() { # SOURCE FLAGS...; its headers are not free of warnings
    source=$1
    shift
    nvcc -arch=sm_90 -std=c++17 -O1 -I. -Iexamples -I"$CUDNN/include" "$@" -c "$source" -o "$folder/compiles.o"
}

tap_jobs=$tap_processors
test_is "the device table, pinned memory, phantom memory on a runtime without a GPU, also a strict one" \
    on_the_fake_and_strictly 1 test_device -Xlinker --wrap=madvise
slow_test_is "a step with swaps, call by call and as a graph, on a runtime without a GPU, also a strict one" \
    on_the_fake_and_strictly 3 test_step $wraps
slow_test_is "sessions on a strict runtime without a GPU" sessions_on_strict_streams
nightly_test_is "examples/08_cuda_phantom.cu prints what its head says, on a runtime without a GPU" \
    prints_its_head examples/08_cuda_phantom.cu
perhaps_sanitized=$(tests_all && echo is_sanitized)
slow_test_is "the row kernels as their host twins, on an emulated grid" \
    $perhaps_sanitized on_the_emulated_grid tests/cuda/test_kernels.cu
nightly_test_is "examples/19_gpt.cu trains in a budget as without, on an emulated grid" learns_on_the_emulated_grid
nightly_test_is "the row kernels within their arrays, beyond 32 bits" is_sanitized on_the_emulated_grid tests/cuda/test_emulated_grid.cpp
test_is "bench/device.sh and device_long.sh print their commands" benchmarks_print_their_commands
test_is "a stale packed program is refused" stale_programs_are_refused
test_is "the ratios of part C come from its rows" ratios_come_from_the_rows
has_cublaslt() {
    echo '#include <cublasLt.h>' >"$folder/probe.cu"
    nvcc -c "$folder/probe.cu" -o "$folder/probe_lt.o" 2>/dev/null
}
if has_cublaslt; then
    nightly_test_is "the trainer's model on a GPU: close to the host, the same bits under every policy, on stand-ins" \
        is_sanitized on_the_emulated_grid tests/cuda/test_gpt.cu
    nightly_test_is "cuDNN's attention in the trainer and over ranks, on stand-ins" \
        is_sanitized on_the_emulated_grid tests/cuda/test_cudnn.cpp
else
    skip "the trainer's model on a GPU, on stand-ins" "cuBLASLt's header is not installed; apt-get install libcublas-dev-*"
fi
if ! tests_all; then
    skip "every program for GPUs compiles" "run make test-all"
    tap_end
    exit
fi
tap_more=1
test_is "the row kernels keep to registers, sm_90" keeps_to_registers
nightly_test_is "the benchmarks in C run on a runtime without a GPU" c_benchmarks_run
test_is "memo_cuda.cuh compiles with NVTX ranges" nvcc -arch=sm_90 $flags -DMEMO_CUDA_NVTX -DMEMO_IMPLEMENTATION \
    -DMEMO_CUDA_IMPLEMENTATION '-DHEADER="memo_cuda.cuh"' -x cu -c tests/compile/alone.c -o "$folder/nvtx.o"
for source in tests/cuda/test_*.cu tests/cuda/nccl_*.cu examples/*.cu examples/gpt/*/*.cu bench/*.cu; do
    [ -f "$source" ] || continue
    case $source in tests/cuda/test_device.cu | tests/cuda/test_step.cu | examples/08_cuda_phantom.cu) continue ;; esac
    case $source in
    *cudnn*) # of the real library
        has_cudnn || { skip "$source compiles" "CUDNN= names no folder of cudnn-frontend; make -f .ci/checks.mk test-cuda CUDNN=folder"; continue; }
        test_is "$source compiles" compiles_with_cudnn "$source"
        continue ;;
    *nccl*)
        echo '#include <nccl.h>' >"$folder/probe.cu"
        nvcc -c "$folder/probe.cu" -o "$folder/probe.o" 2>/dev/null || {
            skip "$source compiles" "nccl.h is not installed; apt-get install libnccl-dev"
            continue
        } ;;
    bench/cuda_chain.cu | examples/*gemm* | */test_gpt.cu | */kernels/cuda.cu)
        has_cublaslt || { skip "$source compiles" "cuBLASLt's header is not installed; apt-get install libcublas-dev-*"; continue; } ;;
    esac
    case $source in
    examples/gpt/* | examples/19_gpt.cu | *nccl.cu) test_is "$source compiles" compiles "$source" ;;
    *) nightly_test_is "$source compiles" compiles "$source" ;; # short, a test, or a benchmark
    esac
    [ "$source" != bench/cuda_chain.cu ] || ! has_cudnn ||
        test_is "$source compiles with cuDNN's attention" compiles_with_cudnn "$source" -DCHAIN_CUDNN
done
tap_end
