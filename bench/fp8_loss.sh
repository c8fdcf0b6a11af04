#!/bin/sh
# The loss of FP8 beside bf16: trains the model, text and steps of `make run` with seeds 1 to N in
# both types, by turns, and prints the mean loss of the last 100 steps, with the mean difference and
# its standard error.  Usage: bench/fp8_loss.sh [N [TRAINER]]
set -eu
n=${1:-10}
trainer=${2:-build/examples/train_gpt}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

last_100() { # LOG
    tail -n 100 "$1" | awk '{ sum += $2 } END { printf "%.6f", sum / NR }'
}

echo "| seed | bf16 | fp8 | fp8 to bf16 |"
echo "|---|---|---|---|"
for seed in $(seq "$n"); do
    for type in bf16 fp8; do
        "$trainer" --policy keep --dropout 0.02 --steps 400 --seed "$seed" --type "$type" --loss-log "$folder/$type" >/dev/null
    done
    echo "$seed $(last_100 "$folder/bf16") $(last_100 "$folder/fp8")"
done | awk '
    { d = 100 * ($3 / $2 - 1); sum += d; squares += d * d; printf "| %d | %.3f | %.3f | %+.1f %% |\n", $1, $2, $3, d; fflush() }
    END { mean = sum / NR; printf "mean %+.2f %%, standard error %.2f %%\n", mean, sqrt((squares - NR * mean * mean) / (NR - 1) / NR) }'
