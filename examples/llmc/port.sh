#!/bin/sh
# port.sh - puts memo into llm.c's trainer for CPUs, and compares it with the original bit by bit.
#
#   sh examples/llmc/port.sh FOLDER    FOLDER: a clone of https://github.com/karpathy/llm.c at f1e2ace
#
# train_gpt2.patch is the port (lines of llm.c in it: MIT license, Copyright (c) 2024 Andrej Karpathy).  Both trainers run
# 41 steps from the same random weights of a small model, without OpenMP; the ported one keeps everything, then works in
# two budgets, and once as a checked session.  Run it in memo's root; needs git, python3 and a C compiler.
set -eu

[ $# -eq 1 ] && [ -f "$1/train_gpt2.c" ] || { echo "usage: sh examples/llmc/port.sh FOLDER   (a clone of llm.c)" >&2; exit 2; }
root=$(pwd)
port=$root/examples/llmc/train_gpt2.patch
folder=$root/build/llm.c
rm -rf "$folder"
mkdir -p "$folder"
for kind in original ported; do
    git clone -q "$1" "$folder/$kind"
    git -C "$folder/$kind" checkout -q f1e2ace
done
cd "$folder"
git -C ported apply "$port"
echo "changed lines:$(git -C ported diff --shortstat)"

# Losses in all bits, and the parameters in a file, in both.
sed -i -e 's/train loss %f (took %f ms)\\n", step, model.mean_loss,.*/train loss %a\\n", step, model.mean_loss);/' \
    -e 's|^    gpt2_free(&model);|    fwrite(model.params_memory, 4, model.num_parameters, fopen("parameters", "wb"));\n&|' */train_gpt2.c
printf '#define MEMO_IMPLEMENTATION\n#define MEMO_PLAN_IMPLEMENTATION\n#include "memo_plan.h"\n' >memo.c
cc=${CC:-cc}
$cc -O2 -I"$root" -c memo.c -o memo.o
$cc -O3 -ffast-math -w original/train_gpt2.c -o original/train -lm
$cc -O3 -ffast-math -w -I"$root" ported/train_gpt2.c memo.o -o ported/train -lpthread -lm

python3 - <<'END'
import array, os, random, struct
random.seed(1)
T, V, L, NH, C, Vp = 64, 300, 6, 4, 64, 384
scales = [0.05] * 2 + [1, 0] + [0.05, 0] * 2 + [1, 0] + [0.05, 0] * 2 + [1, 0]  # 1, 0: a norm's weight and bias
sizes = [Vp * C, T * C] + [L * n * C for n in (1, 1, 3 * C, 3, C, 1, 1, 1, 4 * C, 4, 4 * C, 1)] + [C, C]
def write(path, code, head, numbers):
    with open(path, "wb") as file:
        file.write(struct.pack("256i", *(head + [0] * (256 - len(head)))))
        array.array(code, numbers).tofile(file)
for kind in "original", "ported":
    data = kind + "/dev/data/tinyshakespeare/tiny_shakespeare_"
    os.makedirs(os.path.dirname(data), exist_ok=True)
    random.seed(2)
    write(kind + "/gpt2_124M.bin", "f", [20240326, 3, T, V, L, NH, C, Vp],
          [random.gauss(1 if s == 1 else 0, s if s == 0.05 else 0.02) for n, s in zip(sizes, scales) for _ in range(n)])
    for name, n in ("train", 20000), ("val", 5000):
        write(data + name + ".bin", "H", [20240520, 1, n], [(i * 7 + i // 50 * 5) % V for i in range(n)])
    write(kind + "/gpt2_tokenizer.bin", "B", [20240328, 2, V, 0], sum(([1, 65 + i % 26] for i in range(V)), []))
END

train() { (cd "$1" && ./train >output); }
train original
grep num_activations original/output
for run in "" "MEMO_BYTES=4000000" "MEMO_BYTES=1400000" "MEMO_BYTES=4000000 MEMO_CHECK=1"; do
    (export ${run:-MEMO_BYTES=0} && train ported)
    for kind in original ported; do grep -v num_activations $kind/output >$kind/losses; done
    cmp original/losses ported/losses
    cmp original/parameters ported/parameters
    echo "${run:-everything kept}: all losses, samples and parameters are bitwise the same"
done
