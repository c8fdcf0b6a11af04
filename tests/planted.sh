#!/bin/sh
# planted.sh - do the assertions hold what the heads of the rooms state?  Each change of tests/planted.txt, made alone, must
# trip the assertion that it names.  All changes are compiled into one copy of src/, and a variable of the environment says
# which is made.  Output: TAP, and how many assertions of each room have a change.
#
#   sh tests/planted.sh [PART ...]   only changes whose first line contains a PART, such as memo/arena.h
set -u

. tests/support/plant.sh

folder=$PWD/build/planted
plant_changes tests/planted.txt "$folder" || exit 1

# The tests, with the changed headers in front of the others.
lp=$(sed -n 's/^LP_SOLVE_CFLAGS *:= *//p' build/config.mk) libraries=$(sed -n 's/^LP_SOLVE_LIBS *:= *//p' build/config.mk)
compile() { # ARGUMENTS of the compiler
    ${CC:-cc} -std=c99 -O0 -w -DPLANTED_ASSERTS -include "$folder/planted.h" -I"$folder" -I"$folder/tests/support" -I. -Iexamples -pthread -D_POSIX_C_SOURCE=200809L \
        -D_DEFAULT_SOURCE $lp "$@"
}
tab=$(printf '\t')
chosen=$(chosen_changes "$folder" "$@")
command -v nvcc >/dev/null 2>&1 || chosen=$(echo "$chosen" | grep -v "[.]cu$tab")
[ -n "$chosen" ] || { echo "planted.sh: $*: no such change" >&2; exit 1; }
compile -c "$folder/tests/lib/memo.c" -o "$folder/memo.o" && compile -c "$folder/tests/lib/scarce.c" -o "$folder/scarce.o" || exit 1
compile -c "$folder/planted.c" -o "$folder/planted.o" && ar rcs "$folder/lib.a" "$folder/memo.o" "$folder/scarce.o" || exit 1
for test in $(echo "$chosen" | cut -f 3 | sort -u); do
    case $test in
    *.cu) # on the runtime of tests/cuda/test_cuda.sh
        for source in "fake_cuda.cpp -x c++ -c -o $folder/fake_cuda.o" "$test $folder/fake_cuda.o $folder/planted.o -o $folder/bin/$test"; do
            nvcc -arch=sm_90 -std=c++17 -O0 -w -DPLANTED_ASSERTS -include "$folder/planted.h" -I"$folder" -I. -DFAKE_CUDA -DLINKED -cudart none \
                -Xlinker --wrap=madvise "$folder/tests/cuda/"$source -Xlinker "$folder/lib.a" $libraries -lpthread -lm || exit 1
        done
        continue
        ;;
    esac
    compile "$folder"/tests/*/"$test.c" "$folder/planted.o" -o "$folder/bin/$test" "$folder/lib.a" $libraries -lm || exit 1
done

echo "$chosen" >"$folder/chosen"
failed=0 n=0
while IFS=$tab read -r number file test names condition; do
    n=$((n + 1)) result="not ok"
    [ "$names" != - ] || names=
    # 120 s of processor time; on a busy machine these may be many of the clock.
    (ulimit -t 120 && MEMO_PLANTED=$number exec timeout 1800 "$folder/bin/$test" ${names:+"$names"}) <&- >"$folder/out" 2>"$folder/err"
    # A test that counts in MEMO_ASSERT itself ends in assert.
    found=$(sed -n -e 's/^tripped: //p' -e "s/.*: Assertion .\(.*\)' failed.*/\1/p" "$folder/err" | head -n 1)
    case $found in "$condition"*) result=ok ;; esac
    [ "$result" = ok ] || failed=$((failed + 1))
    echo "$result $n - $file, $test, change $number: $condition"
    [ "$result" = ok ] || echo "#   found: ${found:-no assertion}, $(tail -n 1 "$folder/out")"
done <"$folder/chosen"
echo "1..$n"

# The conditions of each room, without comments, beside those that changes name.
cut -f 5 "$folder/changes" >"$folder/named"
for room in $(cd src && grep -lr '^ *MEMO_ASSERT(' . ../extras | sort); do
    sed 's|/\*.*\*/||' "src/$room" | awk -v room="${room#./}" '
        FNR == NR { named[++n] = $0; next }
        sub(/^ *MEMO_ASSERT\(/, "") { text = ""; is_inside = 1 }
        is_inside {
            sub(/^ +/, "")
            sub(/ +$/, "")
            text = text (text == "" || text ~ /\($/ ? "" : " ") $0
            if (!sub(/\);$/, "", text)) next
            is_inside = 0
            n_all++
            for (k = 1; k <= n && index(text, named[k]) != 1;) k++
            n_named += k <= n
            if (k > n) missing = missing "\n#   " text
        }
        END { printf "# %s: %d of %d%s\n", room, n_named, n_all, missing }' "$folder/named" -
done
[ "$failed" -eq 0 ]
