#!/bin/sh
# gpu.sh - llm.c's trainer for bf16, and its port, on a GPU: same bits, and times of a step.
#
#   sh examples/llmc/gpu.sh build MEMO FOLDER    FOLDER: build/llm.c/bf16/gpu of `port.sh FOLDER bf16`, with both sources; needs nvcc
#   sh examples/llmc/gpu.sh run FOLDER           on the machine with the GPU; needs python3
#
# GPT-2 124M, 8 sequences of 1024 tokens, 8 steps after random weights; MEMO_BYTES is 0.6 and 0.35 of the 4,033 MiB of its
# layers' activations.  The original runs twice: equal bits are a control.
set -eu

case ${1:-} in
build)
    root=$(cd "$2" && pwd)
    cd "$3"
    # A state file ends with a generator whose seed_ is never set.  Losses have all bits.
    sed -i 's/mt19937_state shuffle_rng;$/mt19937_state shuffle_rng = {};/' */llmc/dataloader.h
    sed -i 's/loss %7.6f (%+.2fz)| norm/loss %a (%+.2fz)| norm/' */train_gpt2.cu
    [ "$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')" -lt 13 ] ||
        sed -i 's/PreferredLocation, cudaCpuDeviceId/PreferredLocation, cudaMemLocation{cudaMemLocationTypeHost, 0}/' */llmc/cuda_utils.cuh
    flags="-arch=sm_90 -std=c++17 -O3 -w -I$root"
    nvcc $flags -c memo.cu -o memo.o
    nvcc $flags --use_fast_math -DENABLE_BF16 original/train_gpt2.cu -lcublas -lcublasLt -o original/gpu
    nvcc $flags --use_fast_math -DENABLE_BF16 ported/train_gpt2.cu memo.o -lcublas -lcublasLt -o ported/gpu
    exit ;;
run) cd "$2" ;;
*) sed -n '2,5s/^# *//p' "$0" && exit 2 ;;
esac

python3 - <<'END'
import array, random, struct
random.seed(1)
for name, n in ("train16", 12 * 8192 + 1), ("val16", 2 * 8192 + 1):
    with open(name + ".bin", "wb") as file:
        file.write(struct.pack("256i", *([20240520, 1, n] + [0] * 253)))
        array.array("H", [min(int(random.paretovariate(0.4)), 50256) for _ in range(n)]).tofile(file)
END
failed=0
train() { # NAME KIND VARIABLES...
    name=$1 kind=$2 code=0 bad=
    shift 2
    mkdir -p "run/$name"
    (cd "run/$name" && rm -rf log && exec env "$@" timeout 90 "../../$kind/gpu" -e d12 -i ../../train16.bin -j ../../val16.bin -b 8 -t 1024 \
        -x 8 -v 1000 -m 1 -s 0 -n 1000 -o log >output 2>&1) || code=$?
    sed -n 's/^step .*| loss \([-0-9a-fx.p+]*\) .*/\1/p' "run/$name/output" >"run/$name/losses"
    ms=$(sed -n 's/^step .*| \([0-9.]*\) ms |.*/\1/p' "run/$name/output" | tail -n +3 | sort -n | awk '{ t[NR] = $1 } END { if (NR) print t[int((NR + 1) / 2)] }')
    for file in losses log/model_00000008.bin log/state_00000008_00000.bin; do
        [ -s "run/$name/$file" ] || { bad="$bad no $file;" && continue; }
        cmp -s "run/original/$file" "run/$name/$file" || bad="$bad $file differs in $(cmp -l "run/original/$file" "run/$name/$file" 2>&1 | wc -l) bytes;"
    done
    [ -z "$bad" ] && [ $code -eq 0 ] || failed=1
    [ "$name" = original ] && [ -n "$ms" ] && first_ms=$ms
    echo "$name: exit $code, median step $ms ms ($(echo "${ms:-0} ${first_ms:-1}" | awk '{ printf "%.3f", $1 / $2 }') of the original),${bad:- bits of the original}"
    sed -n 's/^memo: /    memo: /p' "run/$name/output" | tail -n 6 | cut -c1-250
    [ $code -eq 0 ] || tail -n 4 "run/$name/output" | cut -c1-300
    [ "$name" = original ] || rm -rf "run/$name/log"
}
train original original A=
train original-again original A=
train all-memory ported A=
train 0.60 ported MEMO_BYTES=2537000000
train 0.35 ported MEMO_BYTES=1480000000
train checked ported MEMO_BYTES=2537000000 MEMO_CHECK=1
exit $failed
