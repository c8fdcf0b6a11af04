#!/bin/sh
# gpu_sizes.sh - the picture of the README: tokens a second over the memory of the GPU, as dry runs predict them.
#
#   sh bench/gpu_sizes.sh >docs/gpu-sizes.svg      a minute of processor time
#   sh bench/gpu_sizes.sh --points [GIB...]        its numbers alone: a policy, GiB of the plan, tokens a second.  GIB: memo in these
#                                                  budgets instead of all
#
# One model with its states, 14 bytes a parameter.  `keep` and `recompute` have all states on the GPU, and their one plan; memo has a
# plan for each budget, from the least one that fits.  Every size computes and copies like an H200, so that memory alone differs.
# Nothing runs, and no GPU is needed.  Environment: TRAIN_GPT   the program (default build/examples/train_gpt)
set -u

program=${TRAIN_GPT:-build/examples/train_gpt}
[ -x "$program" ] || { echo "gpu_sizes.sh: $program is missing: make build/examples/train_gpt" >&2; exit 1; }
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT
model=llama3.2-3b seq=32768 host_gib=112

planned() { # POLICY --device-memory BUDGET [OPTION...]
    "$program" --dry-run --model $model --seq $seq --batch 1 --states bf16 --deterministic 0 --cluster h200 \
        --host-memory ${host_gib}GiB --policy "$@" >"$out" 2>&1
}

point() { # POLICY BUDGET: its line, or an error
    planned "$1" --device-memory "$2" || { cat "$out" >&2; return 1; }
    rows=$(sed -n 's/^faster .* slices of \([0-9]*\) rows.*/\1/p' "$out")
    [ -z "$rows" ] || planned "$1" --device-memory "$2" --slice-rows "$rows" || { cat "$out" >&2; return 1; }
    awk -v policy="$1" '/^memory /{ table = 1 } table && /^  device/ { gib = $(NF - 3) } /^rate / { print policy, gib, $2 }' "$out"
}

points() {
    point keep 1TiB && point recompute 1TiB || return 1
    if [ $# -eq 0 ]; then
        ! planned memo --device-memory 1GiB || return 1
        point memo "$(sed -n 's/.*try --device-memory \([0-9]*[MG]iB\).*/\1/p' "$out" | head -n 1)" || return 1
        set -- 10 11 12 13 15 19 23 27 31 39 47 55 63 79 95 111 138
    fi
    for gib in "$@"; do point memo "${gib}GiB" || return 1; done
}

draw() { # numbers of `points` to a picture
    awk -v model="Llama 3.2 3B" '
        function x(gib) { return left + width * log(gib / least) / log(most / least) }
        function y(rate) { return top + height * (1 - rate / rates) }
        function text(at_x, at_y, anchor, words, color) {
            printf "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", at_x, at_y, anchor, color, words
        }
        function line(x1, y1, x2, y2, look) { printf "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2, look }
        function flat(policy, color, look,    gib) { # one plan: from the GPU that holds it on
            gib = bytes[policy] + libraries
            line(x(gib), y(speed[policy]), x(most), y(speed[policy]), "stroke=\"" color "\" stroke-width=\"3\" " look)
            printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\"/>\n", x(gib), y(speed[policy]), color
        }
        BEGIN {
            left = 60; top = 54; width = 404; height = 196; least = 9; most = 160; rates = 16000; libraries = 1
            keep = "#505050"; recompute = "#c05040"; memo = "#2868b0"
        }
        $1 != "memo" { bytes[$1] = $2; speed[$1] = $3 }
        $1 == "memo" { n++; gib[n] = $2 + libraries; rate[n] = $3 }
        { data = data "\n" $0 }
        END {
            print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 480 296\" font-family=\"sans-serif\" font-size=\"14\">"
            print "<title>Predicted training speed over the memory of the GPU</title>"
            print "<desc>policy, GiB of the plan, tokens/s" data "\n</desc>"
            print "<rect width=\"480\" height=\"296\" fill=\"#ffffff\"/>"
            print "<text x=\"8\" y=\"18\" font-size=\"15\" font-weight=\"bold\">" model ", 32K tokens, AdamW: predicted speed</text>"
            text(8, 38, "start", "tokens/s", "#404040")
            for (i = 0; i <= 4; i++) {
                line(left, y(4000 * i), left + width, y(4000 * i), "stroke=\"#d0d0d0\"")
                text(left - 6, y(4000 * i) + 5, "end", i ? 4 * i ",000" : "0", "#404040")
            }
            split("12 16 24 32 48 80 141", names, " ")
            split("12288 16303 24564 32607 49140 81559 143771", sizes, " ") # MiB, as nvidia-smi shows them
            for (i = 1; i in sizes; i++) {
                line(x(sizes[i] / 1024), top, x(sizes[i] / 1024), y(0), "stroke=\"#b0b0b0\" stroke-dasharray=\"3 4\"")
                text(x(sizes[i] / 1024), y(0) + 18, "middle", names[i], "#404040")
            }
            text(left + width / 2, y(0) + 38, "middle", "memory of the GPU, as sold, GB", "#404040")
            flat("keep", keep, ""); flat("recompute", recompute, "")
            printf "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"3\" points=\"", memo
            for (i = 1; i <= n; i++) printf "%.1f,%.1f ", x(gib[i]), y(rate[i])
            printf "%.1f,%.1f\"/>\n", x(most), y(rate[n])
            printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\"/>\n", x(gib[1]), y(rate[1]), memo
            text(x(most), y(speed["keep"]) - 12, "end", sprintf("everything kept: from %.0f GiB", bytes["keep"]), keep)
            text(x(most), y(speed["recompute"]) + 22, "end", sprintf("layers recomputed: from %.0f GiB", bytes["recompute"]), recompute)
            text(x(gib[1]), y(rate[1]) + 26, "start", sprintf("memo: from %.1f GiB", bytes_of_memo), memo)
            print "</svg>"
        }
        $1 == "memo" && n == 1 { bytes_of_memo = $2 }'
}

if [ "${1:-}" = --points ]; then
    shift
    points "$@"
else
    points >"$out.points" && draw <"$out.points"
    status=$?
    rm -f "$out.points"
    exit $status
fi
