#!/bin/sh
# port.sh - puts memo into llm.c's trainers, and compares them with the originals bit by bit.
#
#   sh examples/llmc/port.sh FOLDER [cuda|bf16]    FOLDER: a clone of https://github.com/karpathy/llm.c at f1e2ace
#
# The patches are the ports (lines of llm.c in them: MIT license, Copyright (c) 2024 Andrej Karpathy).  Original and port
# train from the same random weights of a small model; the port keeps everything, works in two budgets and in the least, and once
# as a checked session.  Run it in memo's root; needs git, python3 and a C compiler.
#
#   train_gpt2.patch        the trainer for CPUs, without OpenMP: 41 steps
#   train_gpt2_fp32.patch   cuda: the trainer in CUDA.  nvcc compiles and links it, and its test, for sm_90.  They have not
#                           run on a GPU.  2 steps run on stand-ins for CUDA and cuBLAS (tests/cuda): kernels thread by
#                           thread on the CPU, in a fixed order, so that atomic additions keep their bits; with
#                           LLMC_ANY_ORDER=1 in any order, as on a GPU: the original then differs from itself
#   train_gpt2_cuda.patch   bf16: the trainer in CUDA for bf16 and several GPUs, with its test and its profile.  nvcc compiles
#                           and links them for sm_90, NCCL included.  Norms are computed again by rows; attention's parts, the
#                           residual and the MLP's product for all rows, since cuBLASLt chooses an algorithm by the shape.
#                           2 steps run on stand-ins.  On a machine with a GPU, 8 steps of -e d12 with 0.6 and 0.35 of the
#                           activations run there instead, and their times are printed
set -eu

target=${2:-cpu}
case $target in
cpu) name=train_gpt2 source=train_gpt2.c sizes="6 64 20000 300 384" options= budgets="8000000 3000000" ;;
cuda) name=train_gpt2_fp32 source=$name.cu sizes="4 128 600 300 384" options="-b 4 -t 64 -v 2 -m 1 -s 2 -g 3" budgets="5000000 2500000" ;;
bf16) name=train_gpt2_cuda source=train_gpt2.cu sizes="3 256 600 8200 8320" options="-e weights.bin -i train.bin -j val.bin -o log -b 1 -t 32 -v 1000 -s 0 -m 1 -n 1000 -x 2" budgets="500000 250000" ;;
*) source=none ;;
esac
[ $# -ge 1 ] && [ -f "$1/$source" ] || { echo "usage: sh examples/llmc/port.sh FOLDER [cuda|bf16]   (a clone of llm.c)" >&2; exit 2; }
root=$(pwd)
folder=$root/build/llm.c/$target
none="everything kept"
. "$root/examples/ports.sh"
mkdir -p "$folder"
for kind in original ported; do clone "$1" $kind f1e2ace; done
cd "$folder"
apply_port "examples/llmc/$name.patch"

printf '#define MEMO_IMPLEMENTATION\n#define MEMO_PLAN_IMPLEMENTATION\n#include "memo_plan.h"\n' >memo.c
if [ "$target" = cuda ]; then
    printf '#define MEMO_CUDA_IMPLEMENTATION\n#include "memo_cuda.cuh"\n' | cat memo.c - >memo.cu
    nvcc -arch=sm_90 -O2 -I"$root" -c memo.cu -o memo.o
    for program in train test; do
        nvcc -arch=sm_90 -O2 -w -I"$root" ported/${program}_gpt2_fp32.cu memo.o -lcublas -o ported/${program}_sm_90
    done
fi

if [ "$target" = bf16 ]; then
    # llm.c is written for CUDA 12; CUDA 13 has another cudaMemAdvise.
    [ "$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')" -lt 13 ] ||
        sed -i 's/PreferredLocation, cudaCpuDeviceId/PreferredLocation, cudaMemLocation{cudaMemLocationTypeHost, 0}/' ported/llmc/cuda_utils.cuh
    cp memo.c memo.cu && printf '#define MEMO_CUDA_IMPLEMENTATION\n#include "memo_cuda.cuh"\n' >>memo.cu
    flags="-arch=sm_90 -std=c++17 -O2 -w -I$root"
    nvcc $flags -c memo.cu -o memo.o # without --use_fast_math: rows keep NaN and -0
    for program in train test profile; do
        nvcc $flags --use_fast_math -DENABLE_BF16 -DMULTI_GPU ported/${program}_gpt2.cu memo.o -lcublas -lcublasLt -lnccl -o ported/${program}_sm_90
        echo "${program}_gpt2.cu compiles and links for sm_90, bf16, several GPUs"
    done
    # Below, kernels become functions; gpu.sh compiles the sources as they are here.
    rm -rf gpu && mkdir gpu && cp -r original ported memo.cu gpu
    if nvidia-smi -L >/dev/null 2>&1; then
        sh "$root/examples/llmc/gpu.sh" build "$root" gpu && sh "$root/examples/llmc/gpu.sh" run gpu
        exit
    fi
    # A state file ends with a generator whose seed_ is never set: bytes of the stack, which differ between two runs of the
    # original.  Losses with all bits.
    sed -i 's/mt19937_state shuffle_rng;$/mt19937_state shuffle_rng = {};/' */llmc/dataloader.h
    sed -i 's/loss %7.6f (%+.2fz)| norm/loss %a (%+.2fz)| norm/' */$source
fi

# Losses in all bits, and the parameters in a file, in both.  The first forward is a training step: measuring must leave its
# gradients as they are.  The compiler must not make a copy of the update for the constants of a caller: it would round otherwise.
[ "$target" = bf16 ] || sed -i -e 's/if (step % \(10\|val_loss_every\) == 0/if (step > 0 \&\& step % \1 == 0/' \
    -e 's/^void gpt2_update(/__attribute__((noipa)) &/' -e 's/step .*train loss %f (.*/step %d: train loss %a\\n", step, model.mean_loss);/' -e 's/GPT2_EOT 50256/GPT2_EOT 299/' \
    -e 's|^    gpt2_free(&model);|    fwrite(model.params_memory, 4, model.num_parameters, fopen("parameters", "wb"));\n&|' */$source
if [ "$target" != cpu ]; then
    # Kernels become functions of emulated_grid.h.
    python3 - */*.cu */llmc/*h <<'END'
import re, sys
for path in sys.argv[1:]:
    text = open(path).read()
    text = re.sub(r"#include <cooperative_groups.*|__has_include\(<nvml.h>\)", lambda m: "0" if m[0][0] == "_" else "", text)
    text = re.sub(r"extern __shared__ (.*?) *(\w+)\[\];", r"\1* \2 = (\1*)llmc_shared;", text)
    while launch := re.search(r"(\w+(?:<\w+>)?)<<<(.*?)>>>\s*\(", text, re.S):
        end, depth = launch.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        arguments = text[launch.end():end - 1]
        text = text[:launch.start()] + f"llmc_launch([=] {{ {launch[1]}({arguments}); }}, {launch[2]})" + text[end:]
    open(path, "w").write(text)
END
    [ "$target" = cuda ] || use="-DLLMC_CUBLASLT -DENABLE_BF16"
    flags="-x c++ -std=c++17 -O2 -I$root -I$root/tests/cuda ${use:-} -Xcompiler -w,-fno-strict-aliasing"
    nvcc $flags -DMEMO_TEST_OWN_MAIN -include emulated_grid.h -c memo.cu -o memo.o # checks look at rows by a kernel
    nvcc $flags -c "$root/tests/cuda/fake_cuda.cpp" -o fake_cuda.o
    for kind in original ported; do
        nvcc $flags -include llmc_stand_in.h -c $kind/$source -o $kind/train.o
        nvcc -cudart none $kind/train.o memo.o fake_cuda.o -o $kind/train -lpthread -lm
    done
else
    cc=${CC:-cc}
    $cc -O2 -I"$root" -c memo.c -o memo.o
    $cc -O3 -ffast-math -w original/$source -o original/train -lm
    $cc -O3 -ffast-math -w -I"$root" ported/$source memo.o -o ported/train -lpthread -lm
fi

python3 - $sizes <<'END'
import array, os, random, struct, sys
random.seed(1)
L, C, n_train, V, Vp = map(int, sys.argv[1:])  # train_gpt2.cu's softmax needs 8 words a thread of 1,024
T, NH = 64, 4
scales = [0.05] * 2 + [1, 0] + [0.05, 0] * 2 + [1, 0] + [0.05, 0] * 2 + [1, 0]  # 1, 0: a norm's weight and bias
sizes = [Vp * C, T * C] + [L * n * C for n in (1, 1, 3 * C, 3, C, 1, 1, 1, 4 * C, 4, 4 * C, 1)] + [C, C]
weights = [random.gauss(1 if s == 1 else 0, s if s == 0.05 else 0.02) for n, s in zip(sizes, scales) for _ in range(n)]
weights[V * C:Vp * C] = [0] * ((Vp - V) * C)  # of words that are none, as in llm.c's files
def write(path, code, head, numbers):
    with open(path, "wb") as file:
        file.write(struct.pack("256i", *(head + [0] * (256 - len(head)))))
        array.array(code, numbers).tofile(file)
for kind in "original", "ported":
    data = kind + "/dev/data/tinyshakespeare/tiny_shakespeare_"
    os.makedirs(os.path.dirname(data), exist_ok=True)
    write(kind + "/gpt2_124M.bin", "f", [20240326, 3, T, V, L, NH, C, Vp], weights)
    for name, n in ("train", n_train), ("val", n_train // 4 + 110):
        write(data + name + ".bin", "H", [20240520, 1, n], [(i * 7 + i // 50 * 5) % V for i in range(n)])
    bits = lambda x: struct.unpack("I", struct.pack("f", x))[0]  # bf16 for train_gpt2.cu, cut to 16 bits
    write(kind + "/weights.bin", "H", [20240326, 5, T, V, L, NH, C, Vp], [bits(w) >> 16 for w in weights])
    for name in "train", "val":
        os.link(data + name + ".bin", kind + "/" + name + ".bin")
    write(kind + "/gpt2_tokenizer.bin", "B", [20240328, 2, V, 0], sum(([1, 65 + i % 26] for i in range(V)), []))
END

# Losses and samples, and the files that the trainer leaves.
train() { (cd "$1" && rm -rf log && ./train $options >output && grep -v 'activations\|allocated\|average\|memo:\|memory\|maximum batch\|MFU' output >losses
    [ "$target" != bf16 ] || { grep -o '^step .*| norm [0-9.]*' output >losses && cat log/model_*.bin log/state_*.bin >parameters; }); }
# Kernels with atomic additions do not repeat their bits: then no comparison says anything.
train original
for file in losses parameters; do mv original/$file original/first-$file; done
train original
for file in losses parameters; do
    cmp -s original/first-$file original/$file ||
        { echo "the original differs from itself in a second run, so its bits are not compared" >&2; exit 1; }
done
grep 'activations' original/output
told() { :; }

# A budget that cannot be met is an error, which names a budget that works.
! (cd ported && MEMO_BYTES=1000 ./train $options >refused 2>&1) || { echo "MEMO_BYTES=1000 is not refused" >&2; exit 1; }
echo "MEMO_BYTES=1000 is refused: $(grep -o 'the smallest plan needs.*' ported/refused)"
least=$(sed -n 's/.*raise device_bytes to \([0-9]*\).*/\1/p' ported/refused)
compare losses parameters "losses, samples and parameters" "" MEMO_BYTES=$least $(printf 'MEMO_BYTES=%s ' $budgets) \
    "MEMO_BYTES=${budgets%% *} MEMO_CHECK=1"
