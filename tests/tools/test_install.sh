#!/bin/sh
# test_install.sh - make run runs; make install puts headers and memo.pc where they belong, and a program builds with them.
#
# Output: TAP.
set -u

. tests/support/tap.sh

tap_folder "$(pwd)/build/tests/install here" # as a checkout may be called
cc=${CC:-cc}
make=${MAKE:-make}
mkdir "$folder/empty" || exit 1

installs() {
    $make install PREFIX="$folder/prefix" DESTDIR= || return 1
    for file in include/memo.h include/memo_plan.h include/memo_cuda.cuh include/memo_sp.h \
        include/memo/extras/memo_check.h include/memo/extras/memo_hooks.h include/memo/extras/memo_layout.h include/memo/extras/memo_look.h \
        include/memo/extras/memo_pack.h share/pkgconfig/memo.pc; do
        [ -f "$folder/prefix/$file" ] || { echo "missing: $file"; return 1; }
    done
    ! grep -n '@' "$folder/prefix/share/pkgconfig/memo.pc"
}

# From an empty folder, so that only the installed headers are found.  Their implementation is that of the other tests, and compiles.
builds() { # FLAGS...
    $make --no-print-directory -s build/tests/lib.a >&2 && cp tests/compile/implementation.c tests/compile/user.c "$folder/empty/" || return 1
    library=$PWD/build/tests/lib.a lp_libs=$(sed -n 's/^LP_SOLVE_LIBS := //p' build/config.mk)
    (cd "$folder/empty" && $cc -std=c99 -fsyntax-only implementation.c "$@" && $cc -std=c99 user.c "$library" -o user "$@" $lp_libs && ./user)
}

with_include_path() { builds "-I$folder/prefix/include" "-I$folder/prefix/include/memo" -lpthread -lm; }

with_pkg_config() {
    PKG_CONFIG_PATH=$folder/prefix/share/pkgconfig
    export PKG_CONFIG_PATH
    version=$(sed -n 's/^#define MEMO_VERSION_[MP][A-Z]* *\([0-9]*\).*/\1/p' memo.h | tr '\n' '.')
    [ "$(pkg-config --modversion memo)." = "$version" ] || { echo "version is $(pkg-config --modversion memo)"; return 1; }
    eval "builds $(pkg-config --cflags --libs memo)" || return 1 # blanks in it are escaped
    echo '#include "extras/memo_look.h"' >"$folder/empty/extra.c" # as in a copy of the headers
    (cd "$folder/empty" && eval "$cc -std=c99 -fsyntax-only extra.c $(pkg-config --cflags memo)")
}

stages_and_uninstalls() {
    $make install PREFIX=/usr DESTDIR="$folder/stage" || return 1
    grep -qx 'prefix=/usr' "$folder/stage/usr/share/pkgconfig/memo.pc" || { echo "DESTDIR is in memo.pc"; return 1; }
    $make uninstall PREFIX=/usr DESTDIR="$folder/stage" || return 1
    left=$(find "$folder/stage" -type f)
    [ -z "$left" ] || { echo "left behind: $left"; return 1; }
}

# Without a compiler make prints the set-up's message once, and again the next time; with a compiler it continues.
failed_set_up() {
    mkdir -p "$folder/alone" && cp -r Makefile scripts memo.h "$folder/alone/" || return 1
    for try in 1 2; do
        (cd "$folder/alone" && MAKEFLAGS= $make --no-print-directory CC=no-such-compiler all >out 2>err) && return 1
        cat "$folder/alone/err"
        [ "$(wc -l <"$folder/alone/err")" -eq 1 ] && [ ! -s "$folder/alone/out" ] &&
            grep -q "no C compiler 'no-such-compiler'; install one" "$folder/alone/err" || return 1
    done
    (cd "$folder/alone" && MEMO_NO_INSTALL=1 MAKEFLAGS= $make CC="$cc" build/config.mk) &&
        grep -q '^NATIVE := ' "$folder/alone/build/config.mk"
}

# Packages are announced before any is installed, and MEMO_NO_INSTALL=1 installs none.  apt-get is a stand-in, which looks whether
# the line was there, and the compiler finds no library.
announces_packages() {
    stand_in=$folder/stand_in
    mkdir -p "$stand_in" || return 1
    printf '#!/bin/sh\ngrep -q "set-up: installs .*; MEMO_NO_INSTALL=1 would" "%s/said" && echo "$*" >>"%s/called"\nexit 1\n' "$stand_in" "$stand_in" >"$stand_in/apt-get"
    printf '#!/bin/sh\nshift\nexec "$@"\n' >"$stand_in/sudo"
    printf '#!/bin/sh\ncase $* in *-llpsolve*|*-lopenblas*) exit 1 ;; esac\nexec %s "$@"\n' "$cc" >"$stand_in/poor_cc"
    chmod +x "$stand_in"/*
    for refuses in 1 ""; do
        rm -f "$stand_in/called"
        (PATH=$stand_in:$PATH CC=poor_cc MEMO_NO_INSTALL=$refuses && export PATH CC MEMO_NO_INSTALL &&
            sh scripts/setup.sh "$stand_in/config.mk" >"$stand_in/said") || return 1
        cat "$stand_in/said"
        [ -n "$refuses" ] || { grep -q liblpsolve "$stand_in/called" && grep -q libopenblas "$stand_in/called"; } || return 1
        [ -z "$refuses" ] || [ ! -e "$stand_in/called" ] || return 1
    done
}

# In a tree that cannot be written make ends with one sentence.  A file in place of the folder stops root, too.
fixed_tree() {
    mkdir -p "$folder/fixed" && cp -r Makefile scripts memo.h "$folder/fixed/" && : >"$folder/fixed/build" || return 1
    (cd "$folder/fixed" && MAKEFLAGS= $make --no-print-directory all >out 2>err) && return 1
    cat "$folder/fixed/err"
    [ "$(wc -l <"$folder/fixed/err")" -eq 1 ] && grep -q 'build cannot be written; copy the project' "$folder/fixed/err"
}

# A release in a clone: the headers match and refuse memo.h of another, the tag has them, and the archive is the tag's.
releases() {
    mkdir -p "$folder/next" && cp -r Makefile memo*.h memo*.cuh src extras scripts packaging "$folder/next/" || return 1
    mkdir "$folder/next/docs" && cp docs/changelog.md "$folder/next/docs/" && echo build/ >"$folder/next/.gitignore" &&
        (cd "$folder/next" && git init -q . && git config user.name user && git config user.email user@localhost &&
            git add . && git commit -qm begin &&
            MAKEFLAGS= $make release VERSION=3.14.15 && [ -z "$(git status --porcelain)" ] &&
            [ "$(git describe)" = v3.14.15 ] && grep -q '^## 3\.14\.15 - 20' docs/changelog.md &&
            [ "$(grep -c '^## Unreleased$' docs/changelog.md)" -eq 1 ] &&
            [ "$(grep -l '[v"]3\.14\.15["`)]' packaging/README.md packaging/*/* | wc -l)" -eq 3 ] &&
            [ "$(grep -c 'v3\.14\.15"' packaging/spack/package.py)" -eq 1 ] && grep -q 'version("0' packaging/spack/package.py &&
            cd build && sha256sum -c memo-3.14.15.tar.gz.sha256 && tar -xzf memo-3.14.15.tar.gz &&
            cmp memo-3.14.15/memo.h ../memo.h) || return 1
    grep -qx '#define MEMO_VERSION_PATCH 15' "$folder/next/memo.h" || return 1
    for header in memo_plan.h memo_sp.h extras/*.h; do
        echo "#include \"${header#extras/}\"" >"$folder/next/user.c"
        $cc -fsyntax-only -I"$folder/next" -I"$folder/next/extras" "$folder/next/user.c" || return 1
        mv "$folder/next/$header" "$folder/next/kept" && cp "$header" "$folder/next/$header" || return 1
        $cc -fsyntax-only -I"$folder/next" -I"$folder/next/extras" "$folder/next/user.c" && return 1
        mv "$folder/next/kept" "$folder/next/$header"
    done
    for version in 3.1 3.14.15 3.14.16; do # not three numbers; exists; user.c is not committed
        (cd "$folder/next" && MAKEFLAGS= $make release VERSION=$version) && return 1
    done
    (cd "$folder/next" && [ "$(git tag)" = v3.14.15 ])
}

# The command of the README, in a copy with the objects of the tests' trainer, and each push their memo.  On a GPU only as far as the
# shell can read it.
runs() {
    mkdir -p "$folder/run/build/examples" && cp -Rp Makefile memo*.h memo*.cuh src extras scripts examples docs README.md "$folder/run/" &&
        cp -Rp build/config.mk build/joined "$folder/run/build/" || return 1
    [ ! -d build/examples/gpt ] || cp -Rp build/examples/gpt "$folder/run/build/examples/" || return 1
    tests_all || { $make --no-print-directory -s build/tests/lib.a >&2 && ld -r build/tests/lib/*.o -o "$folder/run/build/examples/memo.o"; } || return 1
    (cd "$folder/run" && MAKEFLAGS= $make --no-print-directory run RUN_FLAGS="--dry-run" CFLAGS=-O0 RUN_CUDA=) || return 1
    for cudnn in "" "a folder"; do
        line=$(MAKEFLAGS= $make --no-print-directory -n run RUN_CUDA=_cuda CUDNN="$cudnn" | tail -n 1)
        echo "$line" | grep 'GPU.*attention"; ' && echo "$line" | sh -n || return 1
    done
}

test_is install installs
test_is "make run" runs
test_with git "make release: headers, changelog, tag, archive and checksum" releases
test_is "a failed set-up is one error" failed_set_up
test_is "packages are announced before they are installed" announces_packages
test_is "a tree that cannot be written is one error" fixed_tree
test_is "a program builds with the installed headers" with_include_path
test_with pkg-config "a program builds with pkg-config" with_pkg_config
test_is "DESTDIR and uninstall" stages_and_uninstalls
tap_end
