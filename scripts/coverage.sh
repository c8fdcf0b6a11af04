#!/bin/sh
# coverage.sh - prints the line coverage of headers by all test programs, built with --coverage.
#
#   sh scripts/coverage.sh FOLDER_OF_PROGRAMS HEADER...
#
# Every program has its own copy of the headers; a line counts as run if it ran in any program.
# FOLDER/lines.txt lists the lines never run.
set -u

folder=$1
shift
rm -f "$folder/lines.gcov" "$folder/lines.txt"
for data in "$folder"/*.gcda; do
    [ -f "$data" ] || { echo "coverage: no program has run in $folder" >&2; exit 1; }
    gcov -t "$data" 2>/dev/null >>"$folder/lines.gcov" || { echo "coverage: gcov cannot read $data" >&2; exit 1; }
done
# A line of gcov's text: count:line:text, where the count is "-" (no code), "#####" (never run) or a number.
awk -v wanted="$*" -v lines="$folder/lines.txt" '
    BEGIN { n_wanted = split(wanted, names, " "); for (i = 1; i <= n_wanted; i++) is_wanted[names[i]] = 1 }
    {
        split($0, part, ":"); count = part[1]; line = part[2] + 0; gsub(/ /, "", count)
        if (part[3] == "Source" && line == 0) { file = part[4]; sub(/^\.\//, "", file); next }
        if (!(file in is_wanted) || count == "-" || line == 0) next
        if (count ~ /^[#=]/) { if (!((file, line) in hit)) hit[file, line] = 0 } else hit[file, line] = 1
    }
    END {
        for (key in hit) {
            split(key, part, SUBSEP); all[part[1]]++; run[part[1]] += hit[key]
            if (!hit[key]) print part[1] ":" part[2] | ("sort -t: -k1,1 -k2,2n >" lines)
        }
        for (i = 1; i <= n_wanted; i++) {
            name = names[i]; sum += all[name]; sum_run += run[name]
            if (!all[name]) continue
            printf "  %-28s %5d of %5d lines  %5.1f %%\n", name, run[name], all[name], 100 * run[name] / all[name]
        }
        if (sum) printf "  %-28s %5d of %5d lines  %5.1f %%\n", "all", sum_run, sum, 100 * sum_run / sum
    }' "$folder/lines.gcov"
echo "lines never run: $folder/lines.txt"
