#!/bin/sh
# test_cmake.sh - a program of another project builds with CMakeLists.txt in each of the three ways, and runs.
#
# Output: TAP.
set -u

. tests/support/tap.sh

root=$(pwd)
tap_folder "$root/build/tests/cmake here"
version=$(sed -n 's/^#define MEMO_VERSION_[MP][A-Z]* *\([0-9]*\).*/\1/p' memo.h | paste -sd. -)

# A program of the runtime, and a file that needs all headers for C; LINES find memo.
project() { # NAME LINES
    mkdir -p "$folder/$1" && cd "$folder/$1" || return 1
    cat >main.c <<'END'
#define MEMO_IMPLEMENTATION
#include "memo.h"
int main(void) { return memo_status_name(MEMO_STATUS_OK) == NULL; }
END
    cp "$root/tests/compile/user.c" . || return 1
    cat >CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.15)
project(user LANGUAGES C)
$2
add_executable(main main.c)
target_link_libraries(main PRIVATE memo::memo)
add_library(headers OBJECT user.c)
target_link_libraries(headers PRIVATE memo::extras)
if(NOT TARGET memo::sp OR NOT TARGET memo::cuda)
    message(FATAL_ERROR "a target is missing")
endif()
END
    cmake -DCMAKE_C_STANDARD=99 -S . -B build && cmake --build build && ./build/main
}

added() { project added "add_subdirectory(\"$root\" memo)"; }

fetched() {
    project fetched "include(FetchContent)
FetchContent_Declare(memo SOURCE_DIR \"$root\")
FetchContent_MakeAvailable(memo)"
}

installed() {
    cmake -S "$root" -B "$folder/memo" -DCMAKE_INSTALL_PREFIX="$folder/prefix" &&
        cmake --install "$folder/memo" || return 1
    found installed "$folder/prefix" || return 1
    # make install and cmake --install give the same files.
    ${MAKE:-make} -C "$root" install PREFIX="$folder/made" DESTDIR= || return 1
    sed -i.bak "s|^prefix=.*|prefix=$folder/prefix|" "$folder/made/share/pkgconfig/memo.pc" &&
        rm "$folder/made/share/pkgconfig/memo.pc.bak" && diff -r "$folder/prefix" "$folder/made" || return 1
    found made "$folder/made"
}

found() { # NAME PREFIX
    project "$1" "list(APPEND CMAKE_PREFIX_PATH \"$2\")
find_package(memo ${version%.*}.0 REQUIRED)
find_package(memo 99.0 QUIET)
if(memo_FOUND)
    message(FATAL_ERROR \"another version is accepted\")
endif()
find_package(memo $version EXACT REQUIRED)"
}

tap_jobs=$tap_processors
test_with cmake "add_subdirectory" added
if tests_all; then # test_packaging.sh fetches a tag
    test_with cmake "FetchContent" fetched
fi
test_with cmake "find_package after cmake --install and make install" installed
tap_end
