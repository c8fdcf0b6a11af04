#!/bin/sh
# port.sh - puts memo's hooks into InfiniTrain's GPT-2, and compares it with the original bit by bit.
#
#   sh examples/infinitrain/port.sh FOLDER    FOLDER: a clone of https://github.com/InfiniTensor/InfiniTrain with b24d92f
#
# If the clone also has e594d9c, the branch feat/activation_checkpointing, InfiniTrain's own recomputation runs beside it.
#
# gpt2.patch is the port (lines of InfiniTrain in it: MIT license, Copyright (c) InfiniTensor): what autograd saves goes
# through extras/memo_hooks.h.  Original and port train from the same random weights of a small model on the CPU; the port
# without memo, in three budgets, and once with hashes.  Run it in memo's root.  It needs git, python3, a compiler of C++20
# and, as packages of the system, glog, gflags and Eigen; fmt too, if the compiler has no <format>.
set -eu

[ $# -eq 1 ] && git -C "$1" cat-file -e b24d92f:example/gpt2/main.cc 2>/dev/null ||
    { echo "usage: sh examples/infinitrain/port.sh FOLDER   (a clone of InfiniTrain)" >&2; exit 2; }
root=$(pwd)
folder=$root/build/infinitrain
cxx=${CXX:-c++}
mkdir -p "$folder/shim"
rm -rf "$folder/recomputed" # of another clone
none="without memo"
. "$root/examples/ports.sh"
kinds="original ported"
! git -C "$1" cat-file -e e594d9c:example/gpt2/main.cc 2>/dev/null || kinds="$kinds recomputed"
for kind in $kinds; do
    commit=b24d92f
    [ $kind != recomputed ] || commit=e594d9c
    clone "$1" $kind $commit
done
cd "$folder"
apply_port examples/infinitrain/gpt2.patch

# Losses in all bits, the bytes that the heap gained in the last forward, and the parameters in a file.
sed -i -e '1i\
#include <malloc.h>\
static size_t heap_bytes() { const auto now = mallinfo2(); return now.uordblks + now.hblkhd; }\
static size_t heap_begin = 0, heap_gained = 0;' \
    -e 's/^\( *\)auto logits = /\1heap_begin = heap_bytes();\n&/' \
    -e 's/^\( *\)loss->Backward();/\1heap_gained = heap_bytes() - heap_begin;\n&/' \
    -e 's/train loss {:.6f}/train loss {:a}/' -e '/Save LoRA weights if enabled/i\
    LOG(ERROR) << "the forward leaves " << heap_gained << " bytes"; \
    std::unique_ptr<FILE, int (*)(FILE *)> file(fopen("parameters", "wb"), fclose);\
    for (auto \&parameter : model->Parameters()) { fwrite(parameter->DataPtr(), 1, parameter->SizeInBytes(), file.get()); }' \
    */example/gpt2/main.cc

# The library once for the original and the port, which changes the example alone.
flags="-std=c++20 -O1 -w -include algorithm -include iomanip -I/usr/include/eigen3"
if ! printf '#include <format>\nint main() { return (int)std::format("").size(); }\n' | $cxx -std=c++20 -x c++ -fsyntax-only - 2>/dev/null; then
    printf '#pragma once\n#include <fmt/format.h>\nnamespace std { using fmt::format; }\n' >shim/format
    flags="$flags -DFMT_HEADER_ONLY -I../shim -include format"
fi
compile() ( # KIND FOLDER: the objects of a tree's library
    mkdir -p "$2"
    cd "$1"
    export cxx flags objects="$2"
    find infini_train/src example/common example/gpt2/checkpoint_loader.cc -name '*.cc' | grep -v /cuda/ |
        xargs -P "$(getconf _NPROCESSORS_ONLN)" -I{} sh -c 'o=$objects/$(echo "$1" | tr / _).o
            [ -s "$o" ] || { $cxx $flags -I. -c "$1" -o "$o.new" && mv "$o.new" "$o"; }' sh {}
)
compile original "$folder/objects"
[ ! -d recomputed ] || compile recomputed "$folder/objects-recomputed"
printf '#define MEMO_IMPLEMENTATION\n#define MEMO_HOOKS_IMPLEMENTATION\n#include "memo_hooks.h"\n' >memo.c
${CC:-cc} -O1 -I"$root" -I"$root/extras" -c memo.c -o memo.o
for kind in $kinds; do
    objects=objects
    [ $kind != recomputed ] || objects=objects-recomputed
    (cd $kind && $cxx $flags -I. -I"$root" -I"$root/extras" example/gpt2/main.cc ../$objects/*.o ../memo.o -o train -lglog -lgflags -lpthread)
done

python3 - <<'END'
import array, random, struct
random.seed(1)
L, C, T, V, NH = 6, 96, 64, 300, 12  # 12 heads: the example refuses others
scales = [0.05] * 2 + [1, 0] + [0.05, 0] * 2 + [1, 0] + [0.05, 0] * 2 + [1, 0]  # 1, 0: a norm's weight and bias
sizes = [V * C, T * C] + [L * n * C for n in (1, 1, 3 * C, 3, C, 1, 1, 1, 4 * C, 4, 4 * C, 1)] + [C, C]
weights = [random.gauss(1 if s == 1 else 0, s if s == 0.05 else 0.02) for n, s in zip(sizes, scales) for _ in range(n)]
def write(path, code, head, numbers):
    with open(path, "wb") as file:
        file.write(struct.pack("256i", *(head + [0] * (256 - len(head)))))
        array.array(code, numbers).tofile(file)
write("model.bin", "f", [20240326, 3, T, V, L, NH, C, V], weights)
write("train.bin", "H", [20240520, 1, 6000], [(i * 7 + i // 50 * 5) % V for i in range(6000)])
END

train() { # KIND [FLAG...]: losses of 4 steps of 2 micro-batches
    (cd "$1" && shift && GLOG_logtostderr=1 ./train --device cpu --input_bin ../train.bin --llmc_filepath ../model.bin --num_iteration 4 \
        --batch_size 2 --sequence_length 64 --total_batch_size 256 --learning_rate 0.1 "$@" >output 2>&1) || { tail "$1/output"; exit 1; }
    sed -n 's/.*\(train loss [^ ]*\).*/\1/p' "$1/output" >"$1/losses"
    [ "$(wc -l <"$1/losses")" -eq 4 ]
}
told() { sed -n 's/.* memo: \(.*each way\)$/; \1/p' ported/output; }
train original
compare losses parameters "losses and parameters" "" ${BUDGETS:-MEMO_BYTES=12000000 MEMO_BYTES=7000000 MEMO_BYTES=4700000} \
    "MEMO_BYTES=4700000 MEMO_CHECK=1"

# Its own recomputation of whole layers: what the forward leaves for the backward, beside the original.
left() { sed -n 's/.*the forward leaves \([0-9]*\) bytes.*/\1/p' "$1/output"; }
[ -d recomputed ] || exit 0
echo "the original's forward leaves $(left original) bytes"
for flags in "--recompute_method=uniform --recompute_num_layers=1" "--recompute_method=block --recompute_num_layers=3"; do
    rm -f recomputed/parameters
    train recomputed --activation_recompute $flags
    same="losses and parameters differ"
    ! { cmp -s original/losses recomputed/losses && cmp -s original/parameters recomputed/parameters; } ||
        same="all losses and parameters are bitwise the same"
    echo "its own recomputation, $flags: $same; the forward leaves $(left recomputed) bytes"
done
