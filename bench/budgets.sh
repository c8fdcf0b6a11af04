#!/bin/sh
# budgets.sh - steps that dry runs predict in more and more memory of the device: none is slower than one in less.
#
#   sh bench/budgets.sh [MODEL...]      a line for each model and kind of training; MODEL: a name of train_gpt --model (default: those below)
#
# A line has a step in ms for each budget, `-` where no plan fits.  Exit status 1: a step is slower than one with less memory, marked `*`.
# Every size computes and copies like an H200, so that memory alone differs.  Where a dry run says that slices are faster, its step is theirs.
# Nothing runs, and no GPU is needed.
# Environment: TRAIN_GPT   the program (default build/examples/train_gpt): that for GPUs, on stand-ins, too
#              BUDGETS     GiB of the device (default: ten)   HOST   GiB of the host (default 112)   SEQ   tokens (default 32768)
set -u

program=${TRAIN_GPT:-build/examples/train_gpt}
[ -x "$program" ] || { echo "budgets.sh: $program is missing: make build/examples/train_gpt" >&2; exit 1; }
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT
budgets=${BUDGETS:-12 15 19 23 27 31 47 63 95 138}
slower=0

planned() { # OPTIONS
    # shellcheck disable=SC2086
    "$program" --dry-run --batch 1 --states bf16 --deterministic 0 --cluster h200 --seq "${SEQ:-32768}" \
        --host-memory "${HOST:-112}GiB" $1 >"$out" 2>&1
}

# step OPTIONS: its ms in $ms; empty: it does not fit.
step() {
    ms=
    planned "$1"
    case $? in
    0)
        rows=$(sed -n 's/^faster .* slices of \([0-9]*\) rows.*/\1/p' "$out")
        [ -z "$rows" ] || planned "$1 --slice-rows $rows" || { cat "$out" >&2; exit 1; }
        ms=$(sed -n 's/^predicted \([0-9.]*\) ms a step.*/\1/p' "$out")
        ;;
    2) grep -q 'cannot hold this run' "$out" || { cat "$out" >&2; exit 1; } ;;
    *) cat "$out" >&2; exit 1 ;;
    esac
}

line() { # MODEL TRAINED OPTIONS
    printf '%-12s %-6s' "$1" "$2"
    least=
    for gib in $budgets; do
        mark=' '
        step "--model $1 --device-memory ${gib}GiB $3"
        if [ -n "$least" ] && echo "${ms:-inf} $least" | awk '{ exit !($1 == "inf" || $1 > $2) }'; then
            mark='*'
            slower=1
        fi
        printf ' %9s%s' "${ms:--}" "$mark"
        [ -z "$ms" ] || least=$(echo "$ms ${least:-$ms}" | awk '{ print $1 < $2 ? $1 : $2 }')
    done
    echo
}

printf '%-12s %-6s' GiB ''
for gib in $budgets; do printf ' %9s ' "$gib"; done
echo
[ $# -gt 0 ] || set -- llama3.2-3b llama3-8b qwen3-8b qwen3-14b
for model in "$@"; do
    line "$model" whole ''
    line "$model" 8bit '--states 8bit'
    line "$model" LoRA '--lora 16'
done
exit $slower
