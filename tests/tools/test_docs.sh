#!/bin/sh
# test_docs.sh - what pages promise: links lead somewhere, commands and tests that they name exist, pages stay short, and the
# picture of the README is of today's planner.  Output: TAP.
set -u

. tests/support/tap.sh

tap_folder build/tests/docs
find . -name '*.md' ! -path './build*' | sed 's|^\./||' | sort >"$folder/pages"

# A heading's anchor, as hosts of repositories make it.
anchors() { # PAGE
    awk '/^```/ { is_code = !is_code } !is_code && /^#+ /' "$1" |
        sed -E 's/^#+ +//; s/\[([^]]*)\]\([^)]*\)/\1/g; s/[^A-Za-z0-9 _-]//g; s/ /-/g' | tr '[:upper:]' '[:lower:]'
}

links_lead_somewhere() { # test
    while read -r page; do
        grep -oE '\]\([^)]+\)' "$page" | sed 's/^](//; s/)$//' | grep -v '^https*:' | while read -r link; do
            file=$(dirname "$page")/${link%%#*}
            [ -n "${link%%#*}" ] || file=$page
            [ -e "$file" ] || { echo "$page: $link: no such file" && continue; }
            case $link in
            *.md\#* | \#*) anchors "$file" | grep -qxF -e "${link#*#}" || echo "$page: $link: no such heading" ;;
            esac
        done
    done <"$folder/pages" >"$folder/lost"
    [ "$(wc -l <"$folder/pages")" -gt 10 ] || { echo "no pages found"; return 1; }
    ! grep . "$folder/lost"
}

# Words of a page, without the bars and rules of tables.
words() { sed 's/|[-|]*|//; s/|/ /g' "$1" | wc -w; }
is_short() { # PAGE WORDS
    [ "$(words "$1")" -le "$2" ] || echo "$1: $(words "$1") words, at most $2"
}
pages_are_short() { # test
    { is_short README.md 1020 && is_short docs/porting.md 1500 && is_short docs/porting-more.md 2000 && is_short docs/proofs.md 2935; } >"$folder/long"
    [ "$(wc -l <Makefile)" -le 300 ] || echo "Makefile: more than 300 lines; what continuous integration alone calls belongs in .ci/checks.mk" >>"$folder/long"
    ! grep . "$folder/long"
}

# In pages but the changelog: targets of make, programs of build/, scripts.
commands_exist() { # test
    grep -v changelog "$folder/pages" | xargs grep -ohE '`[^`]+`|^(make|sh|bash|build|python3) .*' | tr -d '`' |
        sed 's/^make -f .ci.checks.mk/make/; s/^checks /make /' >"$folder/commands"
    grep -oE '^(make|bash|sh|python3) [a-z./_0-9-]+' "$folder/commands" | sort -u | while read -r tool name; do
        case $tool in
        make) grep -qE "^([a-z-]+ )*$name( [a-z-]+)*:" Makefile .ci/checks.mk || case $name in build/*) ;; *) echo "make $name: no such target" ;; esac ;;
        *) [ -e "$name" ] || [ "${name#-}" != "$name" ] || echo "$tool $name: no such file" ;;
        esac
    done >"$folder/lost"
    find examples bench -name '*.c' -o -name '*.cu' | sed 's|.*/||; s|\.cu*$||' >"$folder/sources"
    grep -oE 'build/(examples|bench)/[a-z_0-9]+' "$folder/commands" | sort -u | while read -r program; do
        grep -qxF "${program##*/}" "$folder/sources" || cat Makefile .ci/checks.mk | grep -qE "^([a-z_/]+ )*$program( [a-z_/]+)*:" || echo "$program: no source"
    done >>"$folder/lost"
    [ "$(wc -l <"$folder/commands")" -gt 500 ] || { echo "no commands found"; return 1; }
    ! grep . "$folder/lost"
}

# Tests that pages name, and in docs/proofs.md their cases, too, as filters find them: `test_swap`, (`in_flight`).
tests_exist() { # test
    grep -v changelog "$folder/pages" | xargs grep -ohE '`test_[a-z_0-9]+' | tr -d '`' | sort -u | while read -r name; do
        ls tests/*/"$name".* >/dev/null 2>&1 || echo "$name: no such test"
    done >"$folder/lost"
    grep -oE '`test_[a-z_]+` \(`[^)]*\)' docs/proofs.md | grep -oE '`[a-z_ ]+`' | tr -d '`' | grep -v '^test_' | sort -u >"$folder/cases"
    while read -r name; do
        grep -rqE "$(echo "$name" | sed 's/[_ ]/[_ ]/g')" tests || echo "$name: no such case"
    done <"$folder/cases" >>"$folder/lost"
    [ "$(wc -l <"$folder/cases")" -gt 30 ] || { echo "no cases found"; return 1; }
    ! grep . "$folder/lost"
}

# Two points in `make test`, all of them in `make test-all`.  Processors that fuse a product and a sum may find other plans.
picture_of_the_readme_is_of_today() { # more test
    [ "$(tail -n 1 docs/gpu-sizes.svg)" = "</svg>" ] || return 1
    if tests_each_night && [ "$(uname -m)" = x86_64 ]; then
        sh bench/gpu_sizes.sh >"$folder/gpu-sizes.svg" && cmp "$folder/gpu-sizes.svg" docs/gpu-sizes.svg
    else
        sh bench/gpu_sizes.sh --points 15 >"$folder/points" && [ "$(wc -l <"$folder/points")" -eq 3 ] && cat "$folder/points" || return 1
        while read -r policy gib rate; do
            awk -v policy="$policy" -v gib="$gib" -v rate="$rate" '$1 == policy && $2 == gib { found = $3 > 0.99 * rate && $3 < 1.01 * rate }
                END { exit !found }' docs/gpu-sizes.svg || { echo "draw it again: sh bench/gpu_sizes.sh >docs/gpu-sizes.svg"; return 1; }
        done <"$folder/points"
    fi
}

# Device and pinned bytes of docs/memory.md; the heap may differ between machines.
what_a_budget_leaves_out_is_as_measured() { # nightly test
    MAKEFLAGS= make --no-print-directory build/bench/left_out && build/bench/left_out >"$folder/left_out" && cat "$folder/left_out" || return 1
    awk 'NF > 3 && $NF ~ /[0-9]$/ { printf "| %.1f | %.1f |\n", $(NF - 2), $(NF - 1) }' "$folder/left_out" >"$folder/rows"
    [ "$(wc -l <"$folder/rows")" -eq 5 ] || return 1
    while read -r row; do
        grep -qF "$row" docs/memory.md || { echo "docs/memory.md lacks $row"; return 1; }
    done <"$folder/rows"
}

TRAIN_GPT=build/tests/train_gpt
export TRAIN_GPT
needs_program $TRAIN_GPT
tests_of tests/tools/test_docs.sh
tap_end
