#!/bin/sh
# portability.sh - runs tests on other machines and with another C library than the developer's; exit status 1 if one fails.
#
#   sh scripts/portability.sh [PART...]      make -f .ci/checks.mk portability
#
#   aarch64   cross-compiled, under qemu: memory, threads, row kernels and files
#   s390x     the same for a big-endian machine: files, row kernels and what is exchanged between ranks
#   musl      static programs with musl
#   m32       clang refuses each header for a 32-bit machine, in one sentence
#
# A part whose tools are not installed is skipped, and says which packages have them.  All parts take ten minutes on two
# processors.  The last line is `N passed, N failed`, with `, N skipped` for the parts that were.  Programs and logs are in
# build/portability.  MEMO_TEST_ARGS is given to each test program: [NAME] [--seed N].
set -u
cd "$(dirname "$0")/.." || exit 1
passed=0 failed=0 skipped=0
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

has() { command -v "$1" >/dev/null 2>&1; }

skip() { # PART REASON
    skipped=$((skipped + 1))
    echo "$1: skipped: $2"
}

# Adds the counts of the last line of a log.
count() { # LOG
    # shellcheck disable=SC2046
    set -- $(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$1" | tail -n 1)
    passed=$((passed + ${1:-0})) failed=$((failed + ${2:-1}))
}

# Builds static test programs with a compiler, and runs them under a command that may be empty.
run_tests() { # PART COMPILER COMMAND TEST...
    part=$1 compiler=$2 command=$3
    shift 3
    folder=build/portability/$part
    rm -rf "$folder"
    mkdir -p "$folder/lib" || exit 1
    echo "$part: building $*"
    flags="-std=c99 -g1 -O1 -pthread -static -I. -Iexamples -Itests/support -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE"

    # The asserts of the headers count, and what a test does not define comes from the archive, as in the Makefile.
    {
        for source in tests/lib/*.c; do
            echo "$compiler $flags '-DMEMO_ASSERT(condition)=assert(condition)' -c $source -o $folder/lib/$(basename "$source" .c).o"
        done
    } | tr '\n' '\0' | xargs -0 -n 1 -P "$jobs" sh -c
    ar rcs "$folder/lib.a" "$folder"/lib/*.o
    for name; do
        echo "$compiler $flags '-DMEMO_ASSERT(condition)=assert(condition)' tests/*/$name.c $folder/lib.a -lm -o $folder/$name"
    done | tr '\n' '\0' | xargs -0 -n 1 -P "$jobs" sh -c

    # A program that is missing counts as a failure.
    for name; do
        shift
        set -- "$@" "$folder/$name"
    done
    MEMO_TEST_WRAPPER=$command sh tests/run.sh "$folder/logs" "$@" >"$folder/log" 2>&1
    grep -E '^( *FAIL|test_|[0-9]+ s,| {8})' "$folder/log"
    count "$folder/log"
}

# The first compiler of a target that is installed, and the emulator; else empty.
first_of() {
    for tool; do
        has "$tool" && echo "$tool" && return
    done
}

part_aarch64() {
    emulator=$(first_of qemu-aarch64 qemu-aarch64-static)
    if [ -z "$emulator" ] || ! has aarch64-linux-gnu-gcc; then
        skip aarch64 "needs qemu-aarch64 and aarch64-linux-gnu-gcc (apt-get install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross)"
        return
    fi
    run_tests aarch64 aarch64-linux-gnu-gcc "$emulator" \
        test_arena test_swap test_comm test_host_device test_row_kernels test_spill
}

part_s390x() {
    emulator=$(first_of qemu-s390x qemu-s390x-static)
    if [ -z "$emulator" ] || ! has s390x-linux-gnu-gcc; then
        skip s390x "needs qemu-s390x and s390x-linux-gnu-gcc (apt-get install qemu-user gcc-s390x-linux-gnu libc6-dev-s390x-cross)"
        return
    fi
    run_tests s390x s390x-linux-gnu-gcc "$emulator" \
        test_text test_trace test_plan_file test_row_kernels test_comm
}

part_musl() {
    if ! has musl-gcc; then
        skip musl "needs musl-gcc (apt-get install musl-tools)"
        return
    fi
    run_tests musl musl-gcc "" test_arena test_swap test_comm test_host_device test_row_kernels test_spill
}

part_m32() {
    if ! echo | clang -x c -m32 -ffreestanding -fsyntax-only - 2>/dev/null; then
        skip m32 "needs clang with a 32-bit target (apt-get install clang)"
        return
    fi
    for header in memo.h memo_plan.h memo_sp.h; do
        mkdir -p build/portability
        if clang -std=c99 -m32 -ffreestanding -I. -fsyntax-only -include $header -x c /dev/null \
            >build/portability/m32 2>&1; then
            echo "m32: FAIL: $header compiles for a 32-bit machine"
            failed=$((failed + 1))
        elif sed -n '/error:/{p;q;}' build/portability/m32 | grep '"memo.h: a 64-bit target is required'; then
            passed=$((passed + 1)) # the first error; what follows depends on the system's headers
        else
            head -n 5 build/portability/m32
            echo "m32: FAIL: the first error does not say why $header is refused"
            failed=$((failed + 1))
        fi
    done
}

[ $# -gt 0 ] || set -- aarch64 s390x musl m32
for part; do
    case $part in
    aarch64 | s390x | musl | m32) ;;
    *)
        echo "portability.sh: $part: unknown part; aarch64, s390x, musl and m32 would work" >&2
        exit 2
        ;;
    esac
done
for part; do "part_$part"; done
if [ $skipped -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ $failed -eq 0 ]
