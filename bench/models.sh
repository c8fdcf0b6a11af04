#!/bin/sh
# models.sh - the table of docs/models.md: tokens a second that dry runs predict for models that people have.
#
#   sh bench/models.sh [MODEL...]       lines of a table, in Markdown; MODEL: a name of train_gpt --model (default: those below)
#
# A model has two lines of the whole model with 14 bytes of states a parameter, two with 6 bytes, --states 8bit, and two of adapters,
# --lora 16; experts have none, so that theirs are of attention.  A cell is the faster plan of two: all of the MLP at once, or 4,096
# rows at a time.  If RAM lacks, the same with a disk: d.  The files of frozen weights are in RAM as well, or else read from the disk.
# Nothing runs, and no GPU is needed.  Environment: TRAIN_GPT   the program (default build/examples/train_gpt)
set -u

program=${TRAIN_GPT:-build/examples/train_gpt}
[ -x "$program" ] || { echo "models.sh: $program is missing: make build/examples/train_gpt" >&2; exit 1; }
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT

# GPU, GiB of it beside libraries (1 GiB), GiB of RAM that is pinned (seven eighths).
machines='rtx5080:15:56 rtx4090:23:112 rtx5090:31:112 h100:79:224 h200:138:224'
disk_rate=6GB/s

# planned OPTIONS: tokens a second in $rate; empty: it does not fit.
planned() {
    rate=
    # shellcheck disable=SC2086
    "$program" --dry-run --batch 1 --states bf16 --deterministic 0 $1 >"$out" 2>&1
    case $? in
    0) rate=$(sed -n 's/^rate *\([0-9.]*\) tokens.*/\1/p' "$out") ;;
    2) grep -q 'cannot hold this run' "$out" || { cat "$out" >&2; exit 1; } ;;
    *) cat "$out" >&2; exit 1 ;;
    esac
}

# fastest OPTIONS: the best of both plans, in $best.
fastest() {
    best=
    for rows in '' '--mlp-rows 4096'; do
        planned "$1 $rows"
        best=$(echo "$best $rate" | awk '{ for (i = 1; i <= NF; i++) if ($i > most) most = $i; if (most) printf "%.0f", most }')
    done
}

# 1234567 -> 1,234,567
grouped() { echo "$1" | sed ':a
s/\([0-9]\)\([0-9]\{3\}\)\($\|,\)/\1,\2\3/
ta'; }

# GiB of frozen weights, rounded up: of a plan's words in $out.
frozen() { sed -n 's/^frozen *\([0-9.]*\) GiB .*/\1/p' "$out" | awk '{ printf "%d", $1 + 0.999 }'; }

line() { # MODEL TOKENS TRAINED OPTIONS
    printf '| %s | %s | %s |' "$1" "$3" "$(grouped "$2")"
    files=0
    if [ "$3" = LoRA ]; then
        planned "--model $1 --seq 1024 --cluster b200 --host-memory 2TiB $4"
        files=$(frozen)
    fi
    for machine in $machines; do
        memory=${machine#*:} mark='' best=''
        plan="--model $1 --seq $2 --cluster ${machine%%:*} --device-memory ${memory%:*}GiB $4"
        left=$((${memory#*:} - ${files:-0}))
        [ $left -le 0 ] || fastest "$plan --host-memory ${left}GiB"
        [ -n "$best" ] || { mark=' d' && fastest "$plan --host-memory ${memory#*:}GiB --spill /none --spill-bandwidth $disk_rate"; }
        if [ -n "$best" ]; then printf ' %s |' "$(grouped "$best")$mark"; else printf ' no |'; fi
    done
    echo
}

echo '| model | trained | tokens | rtx5080, 16 + 64 | rtx4090, 24 + 128 | rtx5090, 32 + 128 | h100, 80 + 256 | h200, 141 + 256 |'
echo '|---|---|---|---|---|---|---|---|'
all=$([ $# -gt 0 ] || echo llama3-8b qwen3-8b qwen3-14b qwen3-32b qwen3-30b-a3b)
for model in ${all:-"$@"}; do
    for tokens in 32768 131072; do
        line "$model" $tokens whole ''
        line "$model" $tokens 'whole, 8bit' '--states 8bit'
        case $model in *-a[0-9]*) targets='--lora-targets q,k,v,o' ;; *) targets= ;; esac
        line "$model" $tokens LoRA "--lora 16 $targets"
    done
done
