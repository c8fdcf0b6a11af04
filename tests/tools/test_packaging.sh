#!/bin/sh
# test_packaging.sh - the recipes of packaging/ install memo, and a program builds with what they install.
#
# FetchContent takes a tag of a git repository.  conan runs if it is installed (CONAN=... names it).  vcpkg and Spack are
# stand-ins here: functions with the names that the recipes call.  Output: TAP.
set -u

. tests/support/tap.sh

root=$(pwd)
tap_folder "$root/build/tests/packaging"
version=$(sed -n 's/^#define MEMO_VERSION_[MP][A-Z]* *\([0-9]*\).*/\1/p' memo.h | paste -sd. -)
conan=${CONAN:-conan}

# A program, found with LINES in CMakeLists.txt, builds and runs.  test_cmake.sh builds and links memo's implementation.
builds() ( # NAME LINES CMAKE_OPTIONS...
    mkdir -p "$folder/$1" && cd "$folder/$1" || return 1
    printf '#include "memo.h"\nint main(void) { return MEMO_STATUS_OK; }\n' >main.c
    printf 'cmake_minimum_required(VERSION 3.15)\nproject(user LANGUAGES C)\n%s\nadd_executable(main main.c)\n' "$2" >CMakeLists.txt
    echo 'target_link_libraries(main PRIVATE memo::memo)' >>CMakeLists.txt
    shift 2
    cmake "$@" -DCMAKE_C_STANDARD=99 -S . -B build && cmake --build build && ./build/main
)

# Versions in recipes are that of memo.h.
versions() {
    grep -q "\"version\": \"$version\"" packaging/vcpkg/vcpkg.json && grep -q "version(\"$version\", tag=\"v$version\")" packaging/spack/package.py &&
        [ "$(grep -c "GIT_TAG v$version)" packaging/README.md)" -eq 2 ]
}

# The lines of packaging/README.md, from a repository with the tag.
fetches_a_tag() {
    mkdir -p "$folder/repository" && cp -r memo*.h memo_cuda.cuh extras cmake CMakeLists.txt memo.pc.in "$folder/repository" &&
        (cd "$folder/repository" && git init -q . && git add . &&
            git -c user.name=user -c user.email=user@localhost commit -qm begin && git tag "v$version") || return 1
    lines=$(sed -n 's/.*FetchContent | `\(.*\)` `\(.*\)` |$/\1\n\2/p' packaging/README.md)
    [ -n "$lines" ] && builds fetched "include(FetchContent)
$lines" -DMEMO_URL="$folder/repository"
}

creates_with_conan() {
    CONAN_HOME=$folder/conan
    export CONAN_HOME
    $conan profile detect && $conan create packaging/conan --no-remote 2>"$folder/created" || { tail "$folder/created"; return 1; }
    prefix=$(sed -n 's/^Package folder //p' "$folder/created")
    [ -f "$prefix/licenses/LICENSE" ] && found conan_user "$prefix"
}

found() { builds "$1" "find_package(memo $version CONFIG REQUIRED)" -DCMAKE_PREFIX_PATH="$2"; }

installs_with_vcpkg() {
    mkdir -p "$folder/vcpkg" && cat >"$folder/vcpkg/run.cmake" <<END || return 1
cmake_minimum_required(VERSION 3.15)
set(build "$folder/vcpkg/build")
set(prefix "$folder/vcpkg/prefix")
function(run)
    execute_process(COMMAND \${ARGN} RESULT_VARIABLE code)
    if(code)
        message(FATAL_ERROR "\${ARGN}: \${code}")
    endif()
endfunction()
function(vcpkg_cmake_configure word source)
    run("\${CMAKE_COMMAND}" -S "\${source}" -B "\${build}" -DCMAKE_INSTALL_PREFIX=\${prefix})
endfunction()
function(vcpkg_cmake_install)
    run("\${CMAKE_COMMAND}" --install "\${build}")
endfunction()
function(vcpkg_fixup_pkgconfig)
endfunction()
function(vcpkg_install_copyright word file)
    file(COPY "\${file}" DESTINATION "\${prefix}/share/memo")
endfunction()
include("$root/packaging/vcpkg/portfile.cmake")
END
    cmake -P "$folder/vcpkg/run.cmake" && [ -f "$folder/vcpkg/prefix/share/memo/LICENSE" ] &&
        python3 -m json.tool packaging/vcpkg/vcpkg.json >"$folder/vcpkg/json" && found vcpkg_user "$folder/vcpkg/prefix"
}

installs_with_spack() {
    mkdir -p "$folder/spack/spack" && cat >"$folder/spack/spack/package.py" <<END || return 1
import subprocess
class MakefilePackage: pass
def make(*arguments): subprocess.run(["make"] + list(arguments) + ["DESTDIR="], check=True)
seen = []
def license(name): seen.append(name)
def version(name, **where): seen.append(name)
def variant(name, default, description): seen.append(name)
def depends_on(name, **when): seen.append(name)
END
    : >"$folder/spack/spack/__init__.py"
    PYTHONPATH=$folder/spack:packaging/spack MAKEFLAGS= python3 -B -c "
import package, spack.package
assert '$version' in spack.package.seen and 'lpsolve' in spack.package.seen, spack.package.seen
recipe = package.Memo()
recipe.build(None, None)
recipe.install(None, '$folder/spack/prefix')" && found spack_user "$folder/spack/prefix"
}

test_is "versions of the recipes" versions
if ! command -v cmake >/dev/null 2>&1 || ! command -v git >/dev/null 2>&1; then
    skip "the recipes" "cmake or git is not installed"
    tap_end
    exit
fi
test_is "FetchContent from a tag" fetches_a_tag
test_with "$conan" "conan create" creates_with_conan
test_with python3 "the port of vcpkg, on a stand-in" installs_with_vcpkg
test_with python3 "the package of Spack, on a stand-in" installs_with_spack
tap_end
