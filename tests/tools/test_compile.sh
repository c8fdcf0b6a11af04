#!/bin/sh
# test_compile.sh - the headers under every installed compiler: alone, in every standard, in one program, with warnings as
# errors.  `make test` takes the first C and C++ compiler, the oldest standards, no optimizer, implementations of all headers
# together, and no nvcc; `make test-all` takes all.  With MEMO_TEST_ALL=rest the newest standard of the first compilers follows, and the oldest of others.
#
# Sources in tests/compile.  Output: TAP.
set -u

. tests/support/tap.sh

tap_folder build/tests/compile
sources=tests/compile
warnings="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
extras=$(cd extras && ls *.h)
implementations="-DMEMO_IMPLEMENTATION -DMEMO_PLAN_IMPLEMENTATION -DMEMO_SP_IMPLEMENTATION"
for header in $extras; do # memo_x.h: MEMO_X_IMPLEMENTATION
    implementations="$implementations -D$(echo "${header%.h}" | tr a-z A-Z)_IMPLEMENTATION"
done
lp_cflags=$(sed -n 's/^LP_SOLVE_CFLAGS := //p' build/config.mk 2>/dev/null)
lp_libs=$(sed -n 's/^LP_SOLVE_LIBS := //p' build/config.mk 2>/dev/null)
LC_ALL=C
export LC_ALL

# ---- tools ----

has() { command -v "$1" >/dev/null 2>&1; }

# Each command in turn until one fails, which is named.
run() { "$@" || { echo "failed: $*"; return 1; }; }

c_compilers= cxx_compilers=
for c in gcc clang; do has $c && c_compilers="$c_compilers $c"; done
for c in g++ clang++; do has $c && cxx_compilers="$cxx_compilers $c"; done
: "${c_compilers:=${CC:-cc}}"
[ -n "$cxx_compilers" ] || { has c++ && cxx_compilers=c++; }
set -- $c_compilers
first_c=$1
set -- $cxx_compilers
first_cxx=${1:-}
c_standards="c99 c11 c17" cxx_standards="c++11 c++17 c++20"
if ! tests_all; then
    c_compilers=$first_c cxx_compilers=$first_cxx
    c_standards=c99 cxx_standards=c++11
elif [ "$MEMO_TEST_ALL" = rest ]; then # of the first compilers the last one too; all each night
    c_standards="c99 c17" cxx_standards="c++11 c++20"
fi

is_first() { [ "$1" = "$first_c" ] || [ "$1" = "$first_cxx" ]; }
# The standards of a compiler.  rest: of a first compiler the last one, as `make test` has seen the oldest; of others the oldest.
further() { # COMPILER STANDARD...
    if [ "${MEMO_TEST_ALL:-}" != rest ]; then
        shift
        echo "$@"
    elif is_first "$1"; then
        echo "$3"
    else
        echo "$2"
    fi
}
# A test of the first compilers runs under `make test`, a test of others under test-all.
test_of() { # COMPILER NAME COMMAND...
    tested=$1
    shift
    if is_first "$tested"; then test_is "$@"; else more_test_is "$@"; fi
}

# Prints the given standards that the compiler supports.
standards() { # COMPILER LANGUAGE STANDARD...
    compiler=$1 language=$2 known=
    shift 2
    for standard; do
        : | $compiler -x "$language" -std="$standard" -fsyntax-only - 2>/dev/null && known="$known $standard"
    done
    echo $known
}

# ---- tests ----

# The example in the head of a header compiles unchanged.
head_example() { # COMPILER HEADER
    {
        case $2 in
        memo.h | memo_cuda.cuh) ;;
        memo_plan.h) echo "#define MEMO_IMPLEMENTATION
#define MEMO_PLAN_IMPLEMENTATION" ;;
        memo_sp.h) echo "#define MEMO_IMPLEMENTATION
#define MEMO_SP_IMPLEMENTATION" ;;
        *) for macro in $implementations; do echo "#define ${macro#-D}"; done ;;
        esac
        case $2 in memo.h | *.cuh) ;; *) echo "#include \"${2#extras/}\"" ;; esac
        awk '/^ \* EXAMPLE/ { inside = 1 } /^ \* (RULES|CHAPTERS)/ { exit } inside && sub(/^ \*     /, "")' "$2"
    } >"$folder/head.c"
    grep -q memo_status "$folder/head.c" || { echo "there is no example"; return 1; }
    case $1 in
    nvcc) run nvcc -x cu -Werror all-warnings -I. -c "$folder/head.c" -o "$folder/head.o" ;;
    *) run $1 -std=c99 -Wall -Wextra -Werror -I. -Iextras -fsyntax-only "$folder/head.c" ;;
    esac
}

# With the implementation and without, in each standard; memo_plan.h also with lp_solve if it is installed.  `make test` compiles
# implementations of all headers together, below: one alone may lack an include.
alone() { # HEADER COMPILER LANGUAGE STANDARDS
    for standard in $4; do
        check_alone "$1" "$2" "$3" $standard || return 1
        tests_all || continue
        check_alone "$1" "$2" "$3" $standard $implementations || return 1
        if [ "$1" = memo_plan.h ] && [ -n "$lp_cflags" ]; then
            check_alone "$1" "$2" "$3" $standard $implementations $lp_cflags || return 1
        fi
    done
}
check_alone() { # HEADER COMPILER LANGUAGE STANDARD MACROS...
    header=$1 compiler=$2 language=$3 standard=$4
    shift 4
    run $compiler -x $language -std=$standard $warnings -I. -Iextras "$@" "-DHEADER=\"$header\"" -fsyntax-only \
        $sources/alone.c
}

# What a C++ project sees: no casts of C, and memo.hpp.
declarations() { # COMPILER
    for header in memo.h memo_plan.h memo_sp.h $extras memo.hpp; do
        run $1 -x c++ -std=c++11 $warnings -Wold-style-cast -I. -Iextras "-DHEADER=\"$header\"" -fsyntax-only \
            $sources/alone.c || return 1
    done
}

# A class as a trainer, by memo.hpp, with the implementation in C.
classes() { # COMPILER STANDARD
    implementation $first_c c c99 && object "$1" c++ "$2" classes.cpp classes.o -Wold-style-cast &&
        run $1 "$folder/classes.o" "$built" -o "$folder/classes" $lp_libs -lpthread -lm && run "$folder/classes"
}

optimized() { # COMPILER LANGUAGE STANDARD
    object "$1" "$2" "$3" implementation.c optimized.o -O2 $lp_cflags
}

object() { # COMPILER LANGUAGE STANDARD SOURCE OBJECT FLAGS...
    compiler=$1 language=$2 standard=$3 source=$4 object=$5
    shift 5
    run $compiler -x "$language" -std="$standard" $warnings -I. -Iextras "$@" -c "$sources/$source" -o "$folder/$object"
}

# The implementation without the optimizer, in $built; compiled once.
shared=$folder
implementation() { # COMPILER LANGUAGE STANDARD
    built=$shared/implementation-$1.o
    [ -f "$built" ] || { object "$1" "$2" "$3" implementation.c new.o $lp_cflags && mv "$folder/new.o" "$built"; }
}

# Two translation units, each in its own language, one program; it runs.
two_units() { # COMPILER LANGUAGE STANDARD (of the implementation) COMPILER LANGUAGE STANDARD (of the user)
    implementation "$1" "$2" "$3" && object "$4" "$5" "$6" user.c user.o || return 1
    linker=$1
    [ "$5" = c++ ] && linker=$4
    run $linker "$folder/user.o" "$built" -o "$folder/two" $lp_libs -lpthread -lm &&
        run "$folder/two"
}

# A program for Windows links without more libraries; with the host device it is refused in a sentence.
windows() { # COMPILER
    object "$1" c c99 implementation.c windows.o -O0 -DMEMO_NO_HOST_DEVICE || return 1
    printf '#include "memo.h"\nint main(void) { memo_trace* trace; return memo_trace_create(&trace, NULL) != 0; }\n' >"$folder/main.c"
    run $1 -std=c99 -I. "$folder/main.c" "$folder/windows.o" -o "$folder/windows.exe" || return 1
    $1 -std=c99 -I. -Iextras -fsyntax-only $sources/implementation.c >"$folder/log" 2>&1 && return 1
    grep -q 'error.*memo\.h: the host device needs POSIX threads; define MEMO_NO_HOST_DEVICE' "$folder/log" || { cat "$folder/log"; return 1; }
}

# -ffast-math and its parts are refused by name, unless the user allows them.  clang has no macro for some parts: then the host
# device is refused.
fast_math() { # COMPILER
    refusal='memo\.h: the implementation is compiled with -ffast-math'
    for flags in -ffast-math -Ofast -ffinite-math-only -funsafe-math-optimizations \
        "-fassociative-math -fno-signed-zeros -fno-trapping-math" -fno-signed-zeros; do
        if $1 -std=c99 -I. -Iextras $flags -E $sources/implementation.c -o "$folder/fast.i" >"$folder/fast" 2>&1; then
            printf '#define MEMO_STATIC\n#define MEMO_IMPLEMENTATION\n#include "memo.h"\n%s\n%s\n' \
                'int main(void) { memo_host_device_desc desc = MEMO_ZERO(memo_host_device_desc); memo_device* device; memo_error error;' \
                'if (memo_host_device_create(&desc, &device, &error)) puts(error.message); return 0; }' >"$folder/fast.c"
            run $1 -std=c99 -I. -O1 $flags "$folder/fast.c" -o "$folder/fast_math" -lpthread -lm && "$folder/fast_math" >"$folder/fast" || return 1
            grep -q "^$refusal" "$folder/fast" || { echo "works with $flags"; return 1; }
        else
            grep -q "error.*$refusal" "$folder/fast" || { cat "$folder/fast"; return 1; }
        fi
    done
    echo '#include "memo_sp.h"' >"$folder/public.c"
    run $1 -std=c99 -I. -ffast-math -fsyntax-only "$folder/public.c" &&
        run $1 -std=c99 -I. -Iextras -ffast-math -DMEMO_ALLOW_FAST_MATH -fsyntax-only $sources/implementation.c
}

# -ffast-math lets a compiler assume that no value is NaN.  Bad descs are refused nevertheless.  -Ofast would take
# three times as long to compile.
refuses_with_fast_math() { # COMPILER TEST
    run $1 -std=c99 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -O1 -ffast-math -DMEMO_ALLOW_FAST_MATH -I. -Iextras -Itests/support $lp_cflags \
        tests/*/"$2.c" tests/lib/scarce.c -o "$folder/$2" $lp_libs -lpthread -lm &&
        run "$folder/$2" refuse
}

two_static_units() { # COMPILER LANGUAGE STANDARD
    object "$1" "$2" "$3" static.c first.o $lp_cflags &&
        object "$1" "$2" "$3" static.c second.o $lp_cflags -DSECOND &&
        run $1 "$folder/first.o" "$folder/second.o" -o "$folder/static" $lp_libs -lpthread -lm &&
        run "$folder/static" || return 1
    defined "$folder/first.o" | grep memo && { echo "MEMO_STATIC exports these"; return 1; }
    return 0
}

# Names an object defines for others, or takes from others; without the underscore that some systems put before.
# Templates of the C++ library (std::pow and the like) leave weak copies of themselves everywhere: not ours.
defined() { nm -g -P "$1" | awk '$2 != "U" && $2 != "w" && $2 != "v" && $1 !~ /^_?_ZSt/ { sub(/^_/, "", $1); print $1 }'; }
undefined() { nm -g -P "$1" | awk '$2 == "U" { sub(/^_/, "", $1); print $1 }'; }

exports() { # COMPILER LANGUAGE STANDARD
    implementation "$1" "$2" "$3" || return 1
    defined "$built" >"$folder/names"
    [ "$(grep -c '^memo_' "$folder/names")" -gt 50 ] || { echo "no names found"; return 1; }
    grep -v '^memo_' "$folder/names" && { echo "exported without the prefix memo_"; return 1; }
    return 0
}

# Every macro that a line of the headers themselves defines; _POSIX_C_SOURCE and _DEFAULT_SOURCE are asked for
# by the implementation, as memo.h says.
macros() { # COMPILER
    run $1 -std=c99 -I. -Iextras -dD -E $lp_cflags $sources/implementation.c >"$folder/macros" || return 1
    awk '
        /^# [0-9]+ "/ { file = $3; gsub(/"/, "", file); ours = file ~ /(^|\/)memo[a-z_]*\.h$/ }
        /^#define / && ours { n++; name = $2; sub(/\(.*/, "", name)
            if (name !~ /^MEMO/ && name != "_POSIX_C_SOURCE" && name != "_DEFAULT_SOURCE") { print file ": " name; bad = 1 } }
        END { if (n < 20) { print "no macros found"; bad = 1 } exit bad }' "$folder/macros"
}

# Tags and types in the public parts.
types() {
    awk '
        /^\/\* ==== implementation/ || /^#define MEMOB_ROW_BODIES_DONE/ { nextfile }
        /^(typedef )?(struct|enum|union) [A-Za-z_]+/ {
            name = $0; sub(/^(typedef )?(struct|enum|union) /, "", name); sub(/[^A-Za-z0-9_].*/, "", name); check(name) }
        /^} [A-Za-z_]+;/ { name = $2; sub(/;/, "", name); check(name) }
        /^typedef .*;/ { name = $0; if (name ~ /\(\*/) { sub(/.*\(\*/, "", name); sub(/\).*/, "", name) }
            else { sub(/;.*/, "", name); sub(/.*[ *]/, "", name) } check(name) }
        function check(name) { n++; if (name !~ /^memoi?_/) { print FILENAME ": " name; bad = 1 } }
        END { if (n < 20) { print "no types found"; bad = 1 } exit bad }' memo.h memo_plan.h memo_sp.h memo_cuda.cuh extras/*.h
}

names_of() { grep -oE "\\b($1)[A-Za-z0-9_]+" "$2" | sort -u; }

# A name that begins with memoi_ belongs to one header.
# extras/memo_pack.h is a part of memo_plan.h's implementation.
borrowings() {
    for header in memo.h memo_plan.h memo_sp.h memo_cuda.cuh $(ls extras/*.h | grep -v memo_pack); do names_of 'memoi_|MEMOI_' $header; done | sort | uniq -d >"$folder/borrowed"
    [ "$(names_of 'memoi_|MEMOI_' memo.h | wc -l)" -gt 100 ] || { echo "no names found"; return 1; }
    [ ! -s "$folder/borrowed" ] || { cat "$folder/borrowed"; echo "in more than one header"; return 1; }
    names_of 'memoi_|MEMOI_' examples/tools/caching_model.h | grep . && { echo "of a header, in examples/tools/caching_model.h"; return 1; }
    return 0
}

# The changelog also has names that are gone.  memo_session* stands for names that begin so; tests and scripts have some, too.
names_in_documents() {
    cat memo.h memo_plan.h memo_sp.h memo_cuda.cuh extras/* tests/run.sh tests/support/*.h scripts/*.sh |
        grep -oE '\b(memo|MEMO)[a-zA-Z]?_[A-Za-z0-9_]+' | sort -u >"$folder/known"
    for document in README.md CONTRIBUTING.md docs/*.md; do
        [ $document = docs/changelog.md ] || grep -oE '\b(memo|MEMO)[a-zA-Z]?_[A-Za-z0-9_]*\*?' $document | sed "s|^|$document: |"
    done | sort -u >"$folder/named"
    [ "$(wc -l <"$folder/named")" -gt 100 ] || { echo "no names found"; return 1; }
    ! awk 'NR == FNR { known[$1] = 1; for (i = length($1); i > 4; i--) begun[substr($1, 1, i)] = 1; next }
        { is_begin = sub(/\*$/, "", $2) || $2 ~ /_$/ } !($2 in known) && !(is_begin && $2 in begun)' "$folder/known" "$folder/named" |
        grep . || { echo "not in a header"; return 1; }
}

# A fuzzer writes what it finds into the first folder that it is given: build/fuzz/corpus, or a folder given by hand.
stray_inputs() { ! find tests/corpus -mindepth 1 -maxdepth 1 ! -type d | grep . || { echo "belongs in a folder of tests/corpus"; return 1; }; }

# Comments too: the formatter leaves them as they are.
columns() {
    awk 'FNR == 1 { n++ } length > 100 { print FILENAME ":" FNR ": " length " columns"; bad = 1 }
        END { exit bad || n < 4 }' memo.h memo_plan.h memo_sp.h memo_cuda.cuh extras/*.h
}

# A room is read at one sitting.
room_lines() {
    find src -name '*.h' -path '*/*/*' | xargs awk '
        FNR == 1 { n++ } FNR == 951 { print FILENAME ": more than 950 lines; a room of its own would do for a part"; bad = 1 }
        END { exit bad || n < 100 }'
}

# Public comments show what C++11 compiles, too: no compound literals, no designated initializers.
examples_in_comments() {
    grep -nE "\(memo_[a-z_]+\)\{|\{ *\.[a-z]" memo.h memo_plan.h memo_sp.h memo_cuda.cuh extras/*.h |
        grep -E ":[0-9]+: \*" && return 1
    return 0
}

# A function of more than 25 lines has empty lines between its steps, and in a header a comment before or inside.
paragraphs() {
    awk '
        FNR == 1 { is_head = is_inside = is_commented = 0 }
        is_inside && /^}/ {
            n_long += FNR - first > 26
            if (FNR - first > 26 && !n_empty) { print FILENAME ":" first ": no empty line: " name; bad = 1 }
            if (FNR - first > 26 && !n_comments && FILENAME !~ /gpt/) { print FILENAME ":" first ": no comment: " name; bad = 1 }
            is_inside = is_commented = 0
            next
        }
        is_inside { n_empty += !NF; n_comments += /\/[*\/]/; next }
        /^[A-Za-z_].*\(/ { is_head = 1; name = $0 }
        /;$/ { is_head = 0 }
        is_head && /\{$/ { is_inside = 1; is_head = n_empty = 0; n_comments = is_commented; first = FNR }
        !is_inside && !is_head { is_commented = /^(\/\/|\/\*| \*)/ || (/^template/ && is_commented) }
        END { if (n_long < 200) { print "only " n_long + 0 " long functions found"; bad = 1 } exit bad }' \
        memo.h memo_plan.h memo_sp.h memo_cuda.cuh extras/*.h examples/gpt/*.c examples/gpt/*/*.[ch] examples/gpt/*/*.cu
}

# What begins with memob_ is defined in memo.h, or in memo_plan.h for the extras, and another file uses each such function.
# Bodies of row kernels are shared by memo_sp.h and memo_cuda.cuh.
shared() {
    extra=$(echo extras/*.h)
    awk '/^#define MEMOB_ROW_BODIES_DONE/ { in_bodies = 1 }
        !in_bodies && /^(MEMOI .*[ *]memob_[a-z0-9_]+\(|#define MEMOB_|} memob_)/ { print FILENAME ":" FNR ": " $0; bad = 1 }
        /^#endif .*MEMOB_ROW_BODIES_DONE/ { in_bodies = 0 }
        END { exit bad }' memo_sp.h memo_cuda.cuh $extra || { echo "defined outside memo.h and memo_plan.h"; return 1; }
    cat $extra >"$folder/extra"
    cat memo_plan.h memo_sp.h memo_cuda.cuh $extra tests/*/*.[ch] bench/*.[ch] examples/tools/*.[ch] >"$folder/others"
    are_used memo.h "$folder/others" 40 && are_used memo_plan.h "$folder/extra" 4
}
are_used() { # HEADER OTHERS LEAST
    sed -nE 's/^MEMOI .*[ *](memob_[a-z0-9_]+)\(.*/\1/p' "$1" | sort -u >"$folder/shared"
    names_of memob_ "$2" >"$folder/used"
    [ "$(wc -l <"$folder/shared")" -ge "$3" ] || { echo "no names found in $1"; return 1; }
    ! comm -23 "$folder/shared" "$folder/used" | grep . || { echo "begins with memob_, but only $1 uses it"; return 1; }
}

# What a trainer links does not need what people run beside it.
runtime_alone() {
    for header in $extras; do
        grep -n "# *include.*$header" memo.h memo_plan.h memo_sp.h memo_cuda.cuh && return 1
    done
    return 0
}

# The table of rooms names each room, in order, and none else.
rooms_and_parts() { # HEADER
    sed -n '/^\/\* ROOMS/,/\*\//s/^ \* *\(>>[a-z -]*[a-z]\)  .*/\1/p' "$1" >"$folder/table"
    [ "$(wc -l <"$folder/table")" -gt 5 ] || { echo "no table found"; return 1; }
    while read -r word; do
        [ "$(grep -cE "^/\\* ---+ $word( -| [*]|\$)" "$1")" -eq 1 ] || { echo "not one room: $word"; return 1; }
    done <"$folder/table"
}
rooms() { # HEADER
    sed -n '/^\/\* ROOMS/,/\*\//s/^ \* *\(>>[a-z -]*[a-z]\)  .*/\1/p' "$1" >"$folder/table"
    sed -n 's/^\/\* ---- \(>>[a-z -]*[a-z]\) -*$/\1/p' "$1" >"$folder/heads"
    [ "$(wc -l <"$folder/table")" -gt 5 ] || { echo "no table found"; return 1; }
    run diff "$folder/table" "$folder/heads"
}

# Every thread begins in the one function that blocks its signals.
threads_begin_in_one_place() {
    [ "$(cat memo.h memo_plan.h memo_sp.h memo_cuda.cuh extras/* | grep -cE 'pthread_create|std::thread|sigprocmask\(')" -eq 1 ] ||
        { grep -nE 'pthread_create|std::thread|sigprocmask\(' memo.h memo_plan.h memo_sp.h memo_cuda.cuh extras/*; return 1; }
}

# The user's allocator is the only one, and without the host device there are no threads.
options() { # COMPILER LANGUAGE STANDARD
    object "$1" "$2" "$3" options.c options.o || return 1
    undefined "$folder/options.o" >"$folder/names"
    grep -qx user_malloc "$folder/names" || { echo "user_malloc is not used"; return 1; }
    grep -Ex 'malloc|calloc|realloc|free|strdup|__assert_fail|pthread_.*|sem_.*' "$folder/names" &&
        { echo "used in spite of MEMO_MALLOC, MEMO_FREE, MEMO_ASSERT or MEMO_NO_HOST_DEVICE"; return 1; }
    return 0
}

late_header() { # COMPILER
    if $1 -std=c99 -I. -fsyntax-only $sources/late.c >"$folder/late" 2>&1; then
        echo "compiles although POSIX is not there"
        return 1
    fi
    grep -q 'error.*memo\.h: a system header came before' "$folder/late" || { cat "$folder/late"; return 1; }
    # What the message advises.
    run $1 -std=c99 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE $warnings -I. -Iextras -fsyntax-only $sources/late.c &&
        run $1 -std=gnu99 $warnings -I. -Iextras -fsyntax-only $sources/late.c
}

# Compilers warn of a call whose status is not used.  Calls that end something, or make an error, may stand alone.
unused_status() { # COMPILER LANGUAGE STANDARD
    alone="memo_error_set|memo_cuda_check_at"
    grep -nE "^MEMO_(API|FUNCTION) memo_status" memo.h memo_plan.h memo_sp.h memo_cuda.cuh extras/*.h | grep -vE "$alone" && return 1
    for call in memo_arena_end memo_session_end memo_barrier memo_event_record memo_stream_destroy; do
        case $call in
        memo_barrier) arguments="NULL, NULL, NULL" ;;
        memo_event_record) arguments="NULL, NULL, NULL, NULL" ;;
        memo_stream_destroy) arguments="device, NULL, NULL" ;;
        *) arguments="NULL, NULL" ;;
        esac
        printf '#include "memo_plan.h"\n#include "memo_sp.h"\nvoid f(memo_device* device);\nvoid f(memo_device* device) { (void)device; %s(%s); }\n' \
            $call "$arguments" >"$folder/unused.c"
        $1 -x $2 -std=$3 -I. -Wall -S "$folder/unused.c" -o "$folder/unused.s" >"$folder/unused" 2>&1
        case $call in
        memo_stream_destroy) run test ! -s "$folder/unused" || { cat "$folder/unused"; return 1; } ;;
        *) run grep -q 'warn_unused_result' "$folder/unused" || { echo "$call"; return 1; } ;;
        esac
    done
}

# A machine of another byte order computes the same rows, and the same bytes are NaN: it runs test programs.
big_endian() {
    for test in test_row_kernels test_arena; do
        run s390x-linux-gnu-gcc -static -std=c99 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -O1 -I. -Iextras -Itests/support \
            tests/*/$test.c tests/lib/scarce.c -o "$folder/$test" -lpthread -lm &&
            run qemu-s390x "$folder/$test" || return 1
    done
}

# The check comes before the first header that a system without 32-bit headers lacks.
narrow_target() { # COMPILER
    $1 -std=c99 -m32 -ffreestanding -I. -DHEADER='"memo.h"' -fsyntax-only $sources/alone.c >"$folder/narrow" 2>&1
    grep -q 'error.*memo\.h: a 64-bit target is required' "$folder/narrow" || { cat "$folder/narrow"; return 1; }
}

with_nvcc() { # HEADER ARCHITECTURES [OPTIONS]
    generate=
    for architecture in $2; do
        generate="$generate -gencode arch=compute_$architecture,code=sm_$architecture"
    done
    for macros in "" "$implementations -DMEMO_CUDA_IMPLEMENTATION"; do
        run nvcc -x cu $generate $3 -std=c++17 -I. -Iextras $macros "-DHEADER=\"$1\"" -Werror all-warnings \
            -Xcompiler -Wall,-Wextra,-Wshadow,-Werror -c $sources/alone.c -o "$folder/nvcc.o" || return 1
    done
}

# Shards of the nights have every test program once, but exceptions, which exist and have a reason.
nights() {
    workflow=.github/workflows/ci.yml
    ls tests/*/test_*.c | sed 's|.*/||; s|[.]c$||' | grep -v _mpi | sort >"$folder/programs"
    ! grep -v '^#' .ci/exceptions | awk 'NF < 4 { print $0 ": no reason" }' | grep . || return 1
    for part in asan-ubsan tsan strict; do
        awk -v part=$part '$1 == part { print $2 }' .ci/exceptions | sort >"$folder/excepted"
        for shard in $(sed -n 's/^ *shard: \[\(.*\)\]$/\1/p' $workflow | tr -d ,); do
            LIST=1 bash .ci/night $part $shard || return 1
        done | sort - "$folder/excepted" >"$folder/nightly"
        [ $part != strict ] || ls tests/session/test_*.c tests/sp/test_*.c tests/trainer/test_gpt.c tests/trainer/test_gpt_ranks.c |
            sed 's|.*/||; s|[.]c$||' | grep -v _mpi | sort >"$folder/programs"
        run diff "$folder/programs" "$folder/nightly" || return 1
    done
    grep -q "^ *part: \[asan-ubsan, tsan\]" $workflow && grep -q 'bash .ci/night ${{ matrix.part }} ${{ matrix.shard }}' $workflow
}

# Each job leaves its logs, and a part whose tests are counted is a job's artifact; one that ran fewer tests is named.
nights_are_counted() {
    awk '/^  [a-z-]+:$/ && is_job { if (job && !has) print job " leaves no artifact"; job = $1; has = 0 }
        /^jobs:/ { is_job = 1 }
        /upload-artifact/ { has = 1 }
        END { if (!has) print job " leaves no artifact" }' .github/workflows/ci.yml >"$folder/lacks"
    ! grep . "$folder/lacks" || return 1
    mkdir -p "$folder/few"
    while read -r part least; do
        case $part in '#'* | test) continue ;; esac
        grep -q "^ *\(name: \|part: .*\)${part%-[0-9]}" .github/workflows/ci.yml || { echo "$part: no artifact"; return 1; }
        rm -rf "$folder/few/$part" && mkdir "$folder/few/$part" && echo "$least passed, 0 failed" >"$folder/few/$part/log.log"
    done <.ci/least
    run bash .ci/counts "$folder/few" || return 1
    printf 'ok 1 - a\nok 2 - b # SKIP c\n' >"$folder/few/tsan/log.log"
    ! bash .ci/counts "$folder/few" >"$folder/counted" && grep -q '^tsan: 1 tests, not ' "$folder/counted"
}

# The programs of tests/faults.sh are built at night alone, and give names of the public parts that may change.
faults() { # COMPILER
    for test in session/test_states sp/test_sp_attention; do
        run $1 -std=c99 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE $warnings -DMEMO_TEST_FAULTS -include tests/support/scarce.h -I. -Iextras \
            -Iexamples -Itests/support -fsyntax-only tests/$test.c || return 1
    done
}

# ---- the tests ----

test_is "only memo_ is exported" exports $first_c c c99
tap_jobs=$tap_processors
for compiler in $c_compilers; do
    known=$(standards $compiler c $(further $compiler $c_standards))
    for header in memo.h memo_plan.h memo_sp.h $extras; do
        more_test_is "$header alone, $compiler: $known" alone $header $compiler c "$known"
    done
    # Compilers find uninitialized values and overruns only when they optimize, as they do for the library of the tests.
    tests_each_night && more_test_is "implementation optimized, $compiler" optimized $compiler c c99
done
if [ -z "$cxx_compilers" ]; then
    skip "headers alone, C++" "no C++ compiler here (g++ or clang++)"
    skip "C and C++ in one program" "no C++ compiler here (g++ or clang++)"
fi
for compiler in $cxx_compilers; do
    known=$(standards $compiler c++ $(further $compiler $cxx_standards))
    for header in memo.h memo_plan.h memo_sp.h $extras; do
        more_test_is "$header alone, $compiler: $known" alone $header $compiler c++ "$known"
    done
    test_of $compiler "declarations under a C++ project's warnings, $compiler" declarations $compiler
    test_of $compiler "a class is verified and trains, $compiler" classes $compiler c++11
    tests_each_night && more_test_is "implementation optimized, $compiler" optimized $compiler c++ c++11
done

for compiler in $c_compilers; do
    test_of $compiler "two translation units, $compiler" two_units $compiler c c99 $compiler c c11
done
if [ -n "$first_cxx" ]; then
    test_is "implementation in C, user in C++" two_units $first_c c c99 $first_cxx c++ c++11
    slow_test_is "implementation in C++, user in C" two_units $first_cxx c++ c++11 $first_c c c99
    # With each push its object is linked, too.
    tests_all || test_is "implementation in C++" run $first_cxx -x c++ -std=c++11 $warnings -I. -Iextras -fsyntax-only $sources/implementation.c
fi
if tests_each_night && [ -n "$first_cxx" ]; then
    more_test_is "two translation units with MEMO_STATIC, C++" two_static_units $first_cxx c++ c++11
    more_test_is "only memo_ is exported, C++" exports $first_cxx c++ c++11
    more_test_is "MEMO_MALLOC and MEMO_NO_HOST_DEVICE are obeyed, C++" options $first_cxx c++ c++11
fi
for test in $(tests_all && echo test_plan test_swap) $(tests_each_night && echo test_swap_plan); do
    more_test_is "$test refuses NaN with -ffast-math, $first_c" refuses_with_fast_math $first_c $test
done
nightly_test_is "two translation units with MEMO_STATIC" two_static_units $first_c c c99
test_is "only MEMO is defined by the preprocessor" macros $first_c
test_is "types before the implementation begin with memo_ or memoi_" types
test_is "no header uses another's memoi_" borrowings
test_is "documents name what is there" names_in_documents
test_with bash "a night runs every test program under each sanitizer" nights
test_with bash "a night leaves logs, whose tests are counted" nights_are_counted
test_is "programs in which a call fails compile" faults $first_c
test_is "inputs of fuzzers lie in a folder of their kind" stray_inputs
test_is "style: headers have at most 100 columns" columns
test_is "a room has at most 950 lines" room_lines
test_is "public comments show C++11" examples_in_comments
test_is "style: long functions have paragraphs and comments" paragraphs
test_is "what headers share is defined in memo.h or memo_plan.h" shared
for header in memo.h memo_sp.h memo_cuda.cuh; do
    test_is "the table of rooms of $header" rooms $header
done
for header in memo_plan.h $(grep -l "^/\* ROOMS" extras/*.h); do
    test_is "each word in the table of rooms of $header has its room" rooms_and_parts $header
done
test_is "no header of the runtime includes an extra" runtime_alone
test_is "threads begin in one place" threads_begin_in_one_place
slow_test_is "MEMO_MALLOC and MEMO_NO_HOST_DEVICE are obeyed" options $first_c c c99
if : | $first_c -x c -m32 -ffreestanding -fsyntax-only - 2>/dev/null; then
    test_is "a 32-bit target is refused" narrow_target $first_c
else
    skip "a 32-bit target is refused" "$first_c has no 32-bit target; a compiler with -m32 would"
fi
if has musl-gcc; then
    for header in memo.h memo_plan.h memo_sp.h $extras; do
        test_is "$header alone, musl-gcc: c99" check_alone $header musl-gcc c c99 $implementations
    done
    test_is "a system header too early is named, musl-gcc" late_header musl-gcc
else
    skip "headers with musl" "musl-gcc is not installed; musl-tools has it"
fi
if has s390x-linux-gnu-gcc && has qemu-s390x; then
    test_is "rows on a big-endian machine" big_endian
else
    skip "rows on a big-endian machine" "s390x-linux-gnu-gcc or qemu-s390x is not installed; gcc-s390x-linux-gnu and qemu-user have them"
fi
for compiler in $c_compilers; do
    test_of $compiler "an unused status is a warning, $compiler" unused_status $compiler c c99
done
[ -z "$first_cxx" ] || test_is "an unused status is a warning, $first_cxx" unused_status $first_cxx c++ c++11
for compiler in $c_compilers; do
    test_of $compiler "-ffast-math is refused, $compiler" fast_math $compiler
done
mingw=x86_64-w64-mingw32-gcc
if has $mingw; then
    test_is "Windows, all but chapter 6, MinGW" windows $mingw
else
    skip "Windows, all but chapter 6, MinGW" "$mingw is not installed; gcc-mingw-w64-x86-64 has it"
fi
for header in memo.h memo_plan.h memo_sp.h $(grep -l "^/\* ROOMS" extras/*.h); do
    test_is "the example in the head of $header" head_example $first_c $header
done
if [ "$(uname -s)" != Linux ]; then
    skip "a system header too early is named" "this C library always shows POSIX; those of Linux do not"
else
    for compiler in $c_compilers; do
        test_of $compiler "a system header too early is named, $compiler" late_header $compiler
    done
fi

if ! tests_all; then
    skip "headers alone, nvcc" "run make test-all"
elif has nvcc; then
    architectures= host_alone="-Xcompiler -fsyntax-only" # the compiler of the host warns of the same
    for architecture in 80 90 100; do
        nvcc --list-gpu-code 2>/dev/null | grep -qx "sm_$architecture" && architectures="$architectures $architecture"
    done
    more_test_is "memo_cuda.cuh alone, nvcc:$architectures" with_nvcc memo_cuda.cuh "$architectures" "$host_alone"
    for header in memo.h memo_plan.h memo_sp.h $extras; do
        # Host code: one architecture shows as much as three, and g++ has seen what its front end sees.
        nightly_test_is "$header alone, nvcc" with_nvcc $header "${architectures##* }" "$host_alone"
    done
    test_is "the example of memo_cuda.cuh, nvcc" head_example nvcc memo_cuda.cuh
    # nvcc's preprocessor leaves one file, in which clang warns of inline functions that nothing calls.
    ! has clang++ || more_test_is "memo_sp.h and memo_cuda.cuh, nvcc with clang++" with_nvcc memo_cuda.cuh \
        "${architectures##* }" "-ccbin clang++ -allow-unsupported-compiler -include memo_sp.h"
else
    skip "headers alone, nvcc" "nvcc is not installed; developer.nvidia.com/cuda-downloads"
fi

tap_end
