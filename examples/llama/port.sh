#!/bin/sh
# port.sh - trains a small Llama without memo and with it, and compares losses and weights bit by bit.
#
#   sh examples/llama/port.sh
#
# train_llama_memo.c is the port: weights, gradients, moments and activations in one budget, the norm of all gradients clipped, two
# micro-batches a step.  It keeps everything, works in half of that and in the least, and once as a checked session, after
# memo_session_verify.  Run it in memo's root; needs git and a C compiler.
set -eu

root=$(pwd)
folder=$root/build/llama
mkdir -p "$folder"
${CC:-cc} -std=c99 -O1 examples/llama/train_llama.c -o "$folder/train_llama" -lm
${CC:-cc} -std=c99 -O1 -I. examples/llama/train_llama_memo.c -o "$folder/train_llama_memo" -lpthread -lm
echo "changed lines:$(git diff --no-index --shortstat examples/llama/train_llama.c examples/llama/train_llama_memo.c || true)"
echo "original: $("$folder/train_llama" memo.h "$folder/losses" "$folder/weights")"
"$folder/train_llama_memo" memo.h >"$folder/table"
echo "verified; $(grep -c 'MEMO_ITEM' "$folder/table") tensors as seen are in ${folder#"$root"/}/table"

# WORDS BYTES
compare() {
    told=$("$folder/train_llama_memo" memo.h "$folder/losses_memo" "$folder/weights_memo" "$2" 2>"$folder/log")
    cmp "$folder/losses" "$folder/losses_memo"
    cmp "$folder/weights" "$folder/weights_memo"
    echo "$1: all losses and weights are bitwise the same; $told"
}
compare "everything kept" 100000000
compare "half" 2000000
compare "the least" 0
(export MEMO_CHECK=1 && compare "the least, checked" 0)
