#!/bin/sh
# setup.sh - looks for lp_solve 5.5, OpenBLAS, cJSON and -march=native, and writes the result for the Makefile.
#
#   sh scripts/setup.sh build/config.mk
#
# The libraries are optional.  lp_solve or OpenBLAS, if it is missing, is installed with the system's package manager if that needs no
# password (root, sudo -n, or Homebrew): a line says so before, 5 s before on a terminal.  Otherwise one line names
# the package, and the build goes on without it.  MEMO_NO_INSTALL=1 installs nothing.  CC is the compiler to test with.
set -u

config=$1
cc=${CC:-cc}
folder=$(dirname "$config")/setup
network_s=180 # longest wait for the network in all

fail() {
    echo "set-up: $*" >&2
    rm -rf "$folder"
    exit 1
}

rm -rf "$folder"
mkdir -p "$folder" || fail "cannot write to $(dirname "$config")"
trap 'rm -rf "$folder"; exit 130' INT TERM

has() { command -v "$1" >/dev/null 2>&1; }

# Runs a command with a time limit, because it would hang without network.
begin_s=$(date +%s)
limited() {
    left_s=$((begin_s + network_s - $(date +%s)))
    [ $left_s -gt 0 ] || { echo "no time left for the network"; return 1; }
    if has timeout; then timeout -k 5 $left_s "$@"; else "$@"; fi
}

# Compiles and links with these flags and those of the environment, and runs $folder/probe.
works() {
    $cc ${CPPFLAGS:-} ${CFLAGS:-} "$@" >"$folder/log" 2>&1 && "$folder/probe" >>"$folder/log" 2>&1
}

cat >"$folder/probe.c" <<'END'
#include <math.h>
#include <stdio.h>
int main(int argc, char** argv) { return printf("%s %g\n", argv[0], sqrt(argc)) > 0 ? 0 : 1; }
END
has "${cc%% *}" || fail "no C compiler '$cc'; install one (apt-get install gcc libc6-dev), or name yours: make CC=..."
works "$folder/probe.c" -o "$folder/probe" -lm ||
    fail "the C compiler '$cc' cannot build a program; install the C library's headers (apt-get install libc6-dev):" \
        "$(head -n 1 "$folder/log")"

native=
for flag in -march=native -mcpu=native; do
    if works $flag "$folder/probe.c" -o "$folder/probe" -lm; then
        native=$flag
        break
    fi
done

# Homebrew's libraries are outside the compiler's folders.
brew=
has brew && brew=$(brew --prefix 2>/dev/null)

find_lp_solve() {
    lp_cflags= lp_libs=
    cat >"$folder/lp.c" <<'END'
#ifdef IN_FOLDER
#include <lpsolve/lp_lib.h>
#else
#include <lp_lib.h>
#endif
int main(void) {
    lprec* lp = make_lp(0, 1);
    int bad = !lp || !set_int(lp, 1, 1) || solve(lp) != OPTIMAL;
    delete_lp(lp);
    return bad;
}
END
    for header in -DIN_FOLDER -UIN_FOLDER; do
        for include in "" ${brew:+-I$brew/include}; do
            for libs in "-llpsolve55" "-llpsolve55 -ldl" "-llpsolve55 -lcolamd -ldl"; do
                libs="${include:+-L$brew/lib }$libs"
                if works $header $include "$folder/lp.c" -o "$folder/probe" $libs -lm; then
                    lp_cflags="-DMEMO_LP_SOLVE${include:+ $include}" lp_libs=$libs
                    return 0
                fi
            done
        done
    done
    return 1
}

find_blas() {
    blas_cflags= blas_libs=
    cat >"$folder/blas.c" <<'END'
#include <cblas.h>
#include <dlfcn.h>
int main(void) {
    const float a[1] = {3}, b[1] = {5};
    float c[1] = {0};
    const double x[1] = {3}, y[1] = {5};
    double z[1] = {0};
    openblas_set_num_threads(1);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, 1, 1, 1, 1, a, 1, b, 1, 0, c, 1);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, 1, 1, 1, 1, x, 1, y, 1, 0, z, 1);
    return c[0] == 15 && z[0] == 15 && dlopen(GPT_BLAS, RTLD_NOW) ? 0 : 1;
}
END
    # Tests link the library, the trainer loads it by this name.
    name=libopenblas.so.0
    [ "$(uname)" != Darwin ] || name=@rpath/libopenblas.dylib
    defined=-DGPT_BLAS="\"$name\"" quoted="-DGPT_BLAS='\"$name\"'"
    if works "$defined" "$folder/blas.c" -o "$folder/probe" -lopenblas -ldl; then
        blas_cflags=$quoted blas_libs=-lopenblas
        return 0
    fi
    if has pkg-config && pkg-config --exists openblas 2>/dev/null; then
        include=$(pkg-config --cflags openblas) libs=$(pkg-config --libs openblas)
        if works "$defined" $include "$folder/blas.c" -o "$folder/probe" $libs -ldl; then
            blas_cflags="$quoted $include" blas_libs=$libs
            return 0
        fi
    fi
    # Debian has a folder for each variant (pthread, openmp, serial), other systems one with the library's name.
    for include in /usr/include/*/openblas-* /usr/include/openblas-* /usr/include/openblas \
        /usr/local/include/openblas ${brew:+$brew/opt/openblas/include}; do
        [ -f "$include/cblas.h" ] || continue
        variant=${include##*/}
        for library in "" /usr/lib/*/"$variant" "${include%/include}/lib"; do
            libs="${library:+-L$library -Wl,-rpath,$library }-lopenblas"
            if works "$defined" "-I$include" "$folder/blas.c" -o "$folder/probe" $libs -ldl; then
                blas_cflags="$quoted -I$include" blas_libs=$libs
                return 0
            fi
        done
    done
    return 1
}

# Of the trainer's --model alone: not installed from here.
find_json() {
    json_cflags= json_libs=
    cat >"$folder/json.c" <<'END'
#include <cJSON.h>
int main(void) {
    const char* end;
    cJSON* json = cJSON_ParseWithLengthOpts("{} ", 3, &end, 0);
    const int bad = !json;
    cJSON_Delete(json);
    return bad;
}
END
    has pkg-config && pkg-config --exists libcjson 2>/dev/null || return 1
    include=$(pkg-config --cflags libcjson) libs=$(pkg-config --libs libcjson)
    works $include "$folder/json.c" -o "$folder/probe" $libs || return 1
    json_cflags="-DGPT_JSON $include" json_libs=$libs
}

# The package manager, its command, and its names of lp_solve and OpenBLAS.
manager= install=install and=" and " lp_package="lp_solve 5.5" blas_package=OpenBLAS
if has apt-get; then
    manager=apt-get install="apt-get install" lp_package=liblpsolve55-dev blas_package=libopenblas-dev
elif has dnf; then
    manager=dnf install="dnf install" lp_package=lpsolve-devel blas_package=openblas-devel
elif has pacman; then
    manager=pacman install="pacman -S" lp_package=lpsolve blas_package=openblas
elif has apk; then
    manager=apk install="apk add" lp_package=lp_solve-dev blas_package=openblas-dev
elif has brew; then
    manager=brew install="brew install" lp_package=lp_solve blas_package=openblas
fi
if [ -n "$manager" ]; then
    and=" "
    [ "$(id -u)" = 0 ] || [ $manager = brew ] || install="sudo $install"
fi

# Sets `root` to the prefix that runs a command as root; fails if that needs a password.
can_install() {
    [ -n "$manager" ] && [ -z "${MEMO_NO_INSTALL:-}" ] || return 1
    root=
    [ "$manager" = brew ] && return 0
    [ "$(id -u)" = 0 ] && return 0
    has sudo && sudo -n true >/dev/null 2>&1 || return 1
    root="sudo -n"
}

# Each package is installed separately, so that a missing package does not prevent the other.
install_packages() {
    apt="$root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -qq -y
        -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10 -o Acquire::Retries=1
        -o DPkg::Lock::Timeout=60 --no-install-recommends"
    updated=
    for package in "$@"; do
        case $manager in
        apt-get)
            # The time limit may end the download, never the unpacking.
            download="limited $apt install --download-only $package"
            $download || { [ -z "$updated" ] && updated=1 && limited $apt update && $download; } &&
                $apt install --no-download "$package"
            ;;
        dnf) limited $root dnf -q -y install "$package" ;;
        pacman) limited $root pacman -S --noconfirm --needed "$package" ;;
        apk) limited $root apk add -q "$package" ;;
        brew) HOMEBREW_NO_AUTO_UPDATE=1 limited brew install -q "$package" ;;
        esac </dev/null >"$folder/install.log" 2>&1 ||
            echo "set-up: $manager could not: $(grep -v '^ *$' "$folder/install.log" | tail -n 1)"
    done
}

lp_found=yes blas_found=yes
find_lp_solve || lp_found=no
find_blas || blas_found=no
find_json || :
if [ $lp_found = no ] || [ $blas_found = no ]; then
    if can_install; then
        wanted=
        [ $lp_found = no ] && wanted=$lp_package
        [ $blas_found = no ] && wanted="${wanted:+$wanted }$blas_package"
        echo "set-up: installs $wanted ($install); MEMO_NO_INSTALL=1 would go on without"
        [ ! -t 1 ] || { echo "set-up: begins in 5 s; Ctrl-C installs nothing" && sleep 5; }
        install_packages $wanted
        [ $lp_found = no ] && find_lp_solve && lp_found=yes
        [ $blas_found = no ] && find_blas && blas_found=yes
    fi
fi
missing= without=
if [ $lp_found = no ]; then
    missing=$lp_package without="the built-in search instead of lp_solve"
fi
if [ $blas_found = no ]; then
    missing="${missing:+$missing$and}$blas_package"
    without="${without:+$without, }a plain blocked GEMM instead of OpenBLAS"
fi
if [ -n "$missing" ]; then
    echo "set-up: going on with $without; to change that: $install $missing, then make setup"
else
    echo "set-up: lp_solve and OpenBLAS found"
fi

cat >"$folder/config.mk" <<END
# Written by scripts/setup.sh; make setup writes it again.
LP_SOLVE_CFLAGS := $lp_cflags
LP_SOLVE_LIBS := $lp_libs
BLAS_CFLAGS := $blas_cflags
BLAS_LIBS := $blas_libs
JSON_CFLAGS := $json_cflags
JSON_LIBS := $json_libs
NATIVE := $native
END
mv "$folder/config.mk" "$config" && rm -rf "$folder"
