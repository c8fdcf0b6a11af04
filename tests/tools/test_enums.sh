#!/bin/sh
# test_enums.sh - a value that is added to a public enum does not compile until every table beside the enum has it.
#
# In copies of the headers each public enum gets a value more, before its count (MEMO_N_...).  Then each MEMOB_TABLE_OF that names
# a count must be an error, in the headers and in the trainer.  No other code may depend on the numbers of values: see the last
# tests.  Output: TAP.
set -u

. tests/support/tap.sh

tap_folder build/tests/enums
LC_ALL=C
export LC_ALL
extras=$(cd extras && echo *.h)
cc=${CC:-cc} cxx=${CXX:-c++}
cuda=${CUDA_HOME:-/usr/local/cuda}/include

# Counts without a table, and enums without a count, by their first values.
without_table="
MEMO_N_CUDA_HOST_LIMITS a range of a desc
MEMO_N_LAUNCH_KINDS     a range of a desc
MEMO_N_MASK_KINDS       a range of a desc
MEMO_N_PLAN_ENGINES     a range of a desc
MEMO_N_REDUCTIONS       a range of a desc
MEMO_N_SEGMENT_TYPES    a range of a list
MEMO_N_UPDATES          a range of a desc"
without_count="
MEMO_BLOCKS_FORWARD  bits
MEMO_CUDA_HOST_NONE  a result that memo returns and does not read
MEMO_LATE_ROWS       bits
MEMO_MAY_DEFER       bits
MEMO_STATE_FORWARD   bits"

# ---- the copies ----

# Copies a header with a value more in each public enum.  Lists counts, first values of enums without a count, and all values.
add_values() { # HEADER
    awk -v counts="$folder/counts" -v lacking="$folder/lacking" -v values="$folder/values" '
        /^\/\* ==== implementation/ { is_over = 1 }
        !is_over && /^(typedef )?enum/ { is_inside = 1; first = count = "" }
        is_inside {
            rest = $0
            sub(/\/\*.*/, "", rest)
            while (match(rest, /MEMO_[A-Z0-9_]+/)) { # numbers of bits are no names
                name = substr(rest, RSTART, RLENGTH)
                rest = substr(rest, RSTART + RLENGTH)
                if (name ~ /^MEMO_([A-Z]+_)?N_/) { count = name; print "    " name "_MORE," }
                else { print name >>values; if (first == "") first = name }
            }
        }
        { print }
        is_inside && /}/ { is_inside = 0; if (count != "") print count >>counts; else if (first != "") print first >>lacking }
    ' "$1" >"$folder/$1"
}
mkdir "$folder/extras"
for header in memo.h memo_plan.h memo_sp.h memo_cuda.cuh $(echo "$extras" | sed 's|[^ ]*|extras/&|g'); do add_values "$header"; done

# ---- the errors ----

# The place of an error in a macro is where the macro is used.
no_limit=
for flag in -ftrack-macro-expansion=0 -ferror-limit=0; do
    : | $cc $flag -x c -fsyntax-only - >"$folder/log" 2>&1 && [ ! -s "$folder/log" ] && no_limit="$no_limit $flag"
done
nccl=
for path in "$cuda" /usr/include; do [ ! -f "$path/nccl.h" ] || nccl=-DMEMO_CUDA_NCCL; done

# Kernels are errors, too, where the compiler is no nvcc.
compile_all() {
    $cc -std=c99 $no_limit -I"$folder" -I"$folder/extras" -fsyntax-only tests/compile/implementation.c
    printf '#include "memo_sp.h"\n#define MEMO_CUDA_IMPLEMENTATION\n#include "memo_cuda.cuh"\n' >"$folder/cuda.cpp"
    [ ! -f "$cuda/cuda_runtime.h" ] || $cxx -std=c++17 $no_limit $nccl -isystem "$cuda" -fsyntax-only "$folder/cuda.cpp"
    for source in $(grep -lE "$table" examples/gpt/*/*.c); do
        $cc -std=c99 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE $no_limit -I"$folder" -Iexamples -fsyntax-only "$source"
    done
}

# FILE:LINE TABLE COUNT of each table whose length is checked by a count.
table='MEMOB_TABLE_OF\(MEMO_([A-Z]+_)?N_'
list_tables() {
    grep -nE "$table" "$folder"/*.h "$folder"/extras/*.h examples/gpt/*/*.c
    [ ! -f "$cuda/cuda_runtime.h" ] || awk -v nccl="$nccl" '
        /^\/\* ---- >>nccl/ && !nccl { exit }
        /MEMOB_TABLE_OF\(MEMO_/ { print FILENAME ":" FNR ":" $0 }' "$folder/memo_cuda.cuh"
}
tables() { list_tables | sed -E 's|^(.*/)?([^/:]+:[0-9]+):.*MEMOB_TABLE_OF\(([A-Z_]+)[^,]*, ([a-z_]+)\).*|\2 \4 \3|'; }

# ---- the tests ----

enums_have_counts() { # test
    [ "$(wc -l <"$folder/counts")" -gt 20 ] || { echo "no counts found"; return 1; }
    echo "$without_count" | awk 'NF { print $1 }' | sort >"$folder/listed"
    sort "$folder/lacking" | diff "$folder/listed" - ||
        { echo "> is a public enum that does not end with MEMO_N_..., and is not in the list at the top of this file"; return 1; }
}

a_value_more_is_an_error_in_every_table() { # test
    tables | sort >"$folder/tables"
    [ "$(wc -l <"$folder/tables")" -gt 40 ] || { echo "no tables found"; return 1; }
    compile_all >"$folder/errors" 2>&1
    sed -nE 's|^(.*/)?([^/:]+:[0-9]+):[0-9]+: error: .*memob_table_of_([a-z_]+).*|\2 \3|p' "$folder/errors" | sort -u >"$folder/found"
    cut -d' ' -f1,2 "$folder/tables" | sort -u | comm -23 - "$folder/found" >"$folder/missed"
    [ ! -s "$folder/missed" ] || { cat "$folder/missed"; echo "compiles with a value more"; return 1; }
}

counts_have_tables() { # test
    tables | cut -d' ' -f3 | sort -u >"$folder/used"
    echo "$without_table" | awk 'NF { print $1 }' | sort >"$folder/listed"
    sort -u "$folder/counts" | comm -23 - "$folder/used" | diff "$folder/listed" - ||
        { echo "> has no table with MEMOB_TABLE_OF, and is not in the list at the top of this file"; return 1; }
}

# With a length of its own, a table hides the entries that it lacks.
tables_have_no_length_of_their_own() { # test
    ! grep -nE '[a-z_]\[[A-Z_]*N_[A-Z_]+\](\[[^]]*\])* = \{' $sources | grep -vE '= \{(0|NULL)\}' | grep .
}

private_enums_begin_at_0() { # test
    ! grep -nE "(^#define |[ ,{])(MEMO[BI]|GPT|TRAIN|OPTION)_[A-Z0-9_]+ *=? +($values)\b" $sources | grep .
}

nothing_is_indexed_by_a_difference() { # test
    ! grep -nE "\[[^]]*- (\([a-z0-9_]+\))?($values)\b[^]]*\]" $sources | grep .
}

sources=$(find src extras examples/gpt -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')
values=$(paste -s -d '|' "$folder/values")
tests_of tests/tools/test_enums.sh
tap_end
