#!/bin/sh
# planted_order.sh - does the strict stand-in of CUDA (tests/cuda/queues.h) find what is wrong in an order?  Each change of
# tests/planted_order.txt, made alone, must make its test fail on it with one of three seeds: by a race, wrong bits, an error or a hang
# (20 s without an operation, or a minute and five times the test's own time).  Most are found within a second.  Assertions are
# off: most of these changes trip one before.  Without a change the same tests pass.  Output: TAP.
#
#   sh tests/planted_order.sh [--seed N] [PART ...]   the first seed (1); only changes whose line contains a PART, such as sp/
set -u

. tests/support/plant.sh

first=1
[ "${1:-}" != --seed ] || { first=$2 && shift 2; }
folder=$PWD/build/planted_order
plant_changes tests/planted_order.txt "$folder" || exit 1
tab=$(printf '\t')
chosen_changes "$folder" "$@" >"$folder/chosen"
[ -s "$folder/chosen" ] || { echo "planted_order.sh: $*: no such change" >&2; exit 1; }

flags="-O1 -w -include $folder/planted.h -I$folder -I$folder/tests/support -I. -Iexamples -pthread -DMEMO_TEST_STRICT"
lp=$(sed -n 's/^LP_SOLVE_CFLAGS *:= *//p' build/config.mk) libraries=$(sed -n 's/^LP_SOLVE_LIBS *:= *//p' build/config.mk)
compile() { # ARGUMENTS of the compiler
    # shellcheck disable=SC2086
    ${CC:-cc} -std=c99 $flags -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE $lp '-DMEMO_ASSERT(condition)=((void)0)' "$@"
}
for source in memo scarce; do compile -c "$folder/tests/lib/$source.c" -o "$folder/$source.o" || exit 1; done
compile -c "$folder/planted.c" -o "$folder/planted.o" && ar rcs "$folder/lib.a" "$folder/memo.o" "$folder/scarce.o" || exit 1
compile_cuda() { # SOURCE OBJECT FLAGS...
    source=$1 object=$2
    shift 2
    # shellcheck disable=SC2086
    ${CXX:-c++} -std=c++17 $flags -isystem "${CUDA_HOME:-/usr/local/cuda}/include" '-DMEMO_ASSERT(condition)=((void)0)' "$@" \
        -c -x c++ "$folder/tests/cuda/$source" -o "$folder/$object.o"
}
for source in instead fake_cuda; do compile_cuda $source.cpp $source || exit 1; done
wraps=
for function in create destroy launch sleep get_stats; do wraps="$wraps -Wl,--wrap=memo_host_device_$function"; done
for test in $(cut -f 3 "$folder/chosen" | sort -u); do
    case $test in
    *.cu) # kernels are not run, or thread by thread
        compile_cuda "$test" test -DFAKE_CUDA -DLINKED -include "$folder/tests/cuda/emulated_grid.h" &&
            ${CXX:-c++} "$folder/test.o" "$folder/fake_cuda.o" "$folder/planted.o" "$folder/lib.a" -Wl,--wrap=madvise \
                -o "$folder/bin/$test" $libraries -lpthread -lm || exit 1
        continue
        ;;
    esac
    # shellcheck disable=SC2086
    compile "$folder"/tests/*/"$test.c" $wraps "$folder/instead.o" "$folder/fake_cuda.o" "$folder/planted.o" "$folder/lib.a" \
        -o "$folder/bin/$test" $libraries -lstdc++ -lm || exit 1
done

# One run of a test with a change; how it failed, in $how.
fails() { # CHANGE TEST NAME SEED SECONDS
    MEMO_PLANTED=$1 FAKE_CUDA_MODE=strict STRICT_SEED=$4 STRICT_ABORT=1 STRICT_HANG_S=20 timeout -k 5 "$5" "$folder/bin/$2" ${3:+"$3"} \
        <&- >"$folder/out" 2>"$folder/err"
    status=$?
    how=$(grep -h -m 1 -e RACE -e HANG "$folder/err" || grep -h -m 1 -e CHECK -e '^not ok' "$folder/out")
    [ $status -ne 124 ] || how="hangs: no end in $5 s"
    how="$(($(date +%s) - begun)) s, seed $4, status $status${how:+, }$how"
    [ $status -ne 0 ]
}

failed=0 n=0
report() { # IS_WRONG NAME
    n=$((n + 1))
    [ "$1" -eq 0 ] || failed=$((failed + 1))
    echo "$([ "$1" -eq 0 ] || echo 'not ')ok $n - $2"
}
for each in $(cut -f 3,4 --output-delimiter=: "$folder/chosen" | sed 's/:-$/:/' | sort -u); do
    begun=$(date +%s) wrong=0
    ! fails 0 "${each%%:*}" "${each#*:}" "$first" 600 || wrong=1
    echo "$each $((60 + 5 * ($(date +%s) - begun)))" >>"$folder/limits"
    report $wrong "without a change, $each"
    echo "#   $how"
done
# The same seed may find a change or not, so there are three.
while IFS=$tab read -r number file test names reason; do
    [ "$names" != - ] || names=
    begun=$(date +%s) wrong=1 limit=$(sed -n "s/^$test:$names //p" "$folder/limits")
    for seed in $first $((first + 1)) $((first + 2)); do
        ! fails "$number" "$test" "$names" "$seed" "$limit" || { wrong=0 && break; }
    done
    report $wrong "$file, $test:$names, change $number: $reason"
    echo "#   $how"
done <"$folder/chosen"
echo "1..$n"
[ "$failed" -eq 0 ]
