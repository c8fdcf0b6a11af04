#!/bin/sh
# pytorch_cpu.sh - the trainer beside PyTorch on this CPU, both keeping everything: fp32, 6 layers of 512, two threads.
#
#   sh bench/pytorch_cpu.sh [TOKENS [ROUNDS]]     default: 4096 2.  PYTHON: a python with torch (default: python3)
#
# A round runs one after the other, so that both meet the same machine.  The rate is tokens for each second of processor
# time (user) of a step, which other programs disturb less than the clock: the trainer's from a run of three steps less one
# of one step, PyTorch's the median after one warm-up.  Memory is the largest resident size.
set -eu
cd "$(dirname "$0")/.."
unset OPENBLAS_CORETYPE # each library chooses kernels for this processor
tokens=${1:-4096} rounds=${2:-2}
log=build/pytorch_cpu.log
[ -x build/examples/train_gpt ] || { echo "pytorch_cpu.sh: build/examples/train_gpt is not built; make examples" >&2; exit 1; }

# Prints user seconds and KiB of the trainer's run of STEPS.
trainer() { # STEPS
    command time -f '%U %M' build/examples/train_gpt --random-tokens --vocabulary 256 --layers 6 --hidden 512 --heads 8 \
        --seq "$tokens" --batch 1 --policy keep --steps "$1" 2>&1 >"$log" | tail -n 1
}

echo "| way | tokens | tokens for each CPU second | resident memory |"
echo "|---|---|---|---|"
round=0
while [ $round -lt "$rounds" ]; do
    round=$((round + 1))
    one=$(trainer 1)
    OMP_WAIT_POLICY=passive "${PYTHON:-python3}" bench/pytorch_gpt.py --device cpu --policy keep --layers 6 --hidden 512 --heads 8 \
        --vocabulary 256 --tokens "$tokens" --steps 3 2>"$log" | awk -F' *[|] *' '{ printf "| %s | %s | %s | %s |\n", $2, $3, $8, $7 }'
    three=$(trainer 3)
    echo "$one $three" | awk -v tokens="$tokens" '{ printf "| memo, keep | %s | %.1f | %.2f GiB |\n", tokens, 2 * tokens / ($3 - $1), $4 / 1048576 }'
done
