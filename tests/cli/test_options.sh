#!/bin/sh
# test_options.sh - every option of the build in every order: sh test_options.sh SOURCES
#
# - ON, OFF and AUTO after each other in one build directory: each is obeyed; other values are refused
# - BUILD_SHARED_LIBS and BUILD_TESTING; what contradicts itself is refused
# - add_subdirectory gives thinwire::thinwire and nothing else
# - recipes of packages name options that exist
# - gcc -O0, clang and build type None compile everything without a warning
# JOBS: compilers at a time. Takes minutes: `make test-options` runs it, `make test` does not.
set -eu
sources=$(cd "$1" && pwd)
jobs=${JOBS:-2}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
build=$dir/build
fail() { echo "FAIL: $*" && exit 1; }
configure() { cmake -S "$sources" -B "$build" "$@" >"$dir/log" 2>&1; } # OPTIONS...
expect_configure() { configure "$@" || { cat "$dir/log" && fail "cmake $*"; }; }
expect_refused() { # TEXT OPTIONS...
    text=$1 && shift
    ! configure "$@" || fail "accepted: $*"
    tr -s '\n ' ' ' <"$dir/log" | grep -qF -- "$text" || { cat "$dir/log" && fail "$* is not refused with: $text"; }
    echo "refused: $*"
}
has_target() { cmake --build "$build" --target help | grep "^\.\.\. $1\$" >/dev/null; }
compiles() { grep -q -- "$1" "$build/compile_commands.json"; }

# Whether the build has what an option stands for. Looks at targets and commands, not at the summary.
has() { # NAME
    case $1 in
    SHARED) has_target thinwire_shared ;;
    STATIC) grep -q 'libthinwire\.a"' "$build/cmake_install.cmake" "$build"/*/cmake_install.cmake ;;
    CUDA) compiles '/fold\.cu"' ;;
    NCCL) has_target thinwire_nccl ;;
    MPI) has_target thinwire_mpi ;;
    COMMAND) has_target thinwire_cli ;;
    JANSSON) compiles '-DTW_HAVE_JANSSON' ;;
    ZLIB) has_target thinwire_data ;;
    BLAS) has_target thinwire_train ;;
    TRAINER) compiles '-DTW_HAVE_TRAINER' ;;
    TESTS) has_target test_info ;;
    INSTALL) grep -q 'thinwire\.h' "$build/cmake_install.cmake" ;;
    *) fail "no option $1" ;;
    esac
}
expect() { # ON|OFF NAME
    state=OFF
    ! has "$2" || state=ON
    [ $state = "$1" ] || { cat "$dir/log" && fail "$2 is $state, expected $1"; }
    grep -q "^--   $2  *$1\b" "$dir/log" || fail "the summary does not say that $2 is $1"
}

# ---- each option after each other: the sequence has every ordered pair of values

names=$(sed -n 's/^thinwire_option(\([A-Z]*\) .*/\1/p' "$sources/cmake/options.cmake")
[ "$(echo "$names" | wc -w)" -ge 12 ] || fail "options.cmake has other rows than this test knows"
for name in $names; do
    possible=ON
    for value in ON OFF AUTO ON AUTO OFF ON; do
        if configure -DTHINWIRE_"$name"=$value; then
            wanted=$value
            [ $value != AUTO ] || wanted=$possible
            expect $wanted "$name"
        else # what is missing on this machine
            [ $value = ON ] && tr -s '\n ' ' ' <"$dir/log" | grep -q "THINWIRE_$name is ON, but .* missing" ||
                { cat "$dir/log" && fail "$name=$value"; }
            possible=OFF
        fi
    done
    for value in TRUE 1 on auto bogus ""; do
        ! configure -DTHINWIRE_"$name"=$value || fail "THINWIRE_$name=$value is accepted"
        grep -q "Accepted: ON, OFF, AUTO" "$dir/log" || fail "THINWIRE_$name=$value: $(cat "$dir/log")"
    done
    expect_configure -DTHINWIRE_"$name"=AUTO
    echo "$name: ON, OFF and AUTO obeyed in every order, AUTO is $possible here; other values refused"
done
for name in WERROR FUZZ DEMO; do
    expect_refused "Accepted: ON, OFF." -DTHINWIRE_$name=bogus
    expect_configure -DTHINWIRE_$name=OFF
done

for name in $(grep -rhoE 'THINWIRE_[A-Z]+\b' "$sources"/packaging/spack "$sources"/packaging/conda "$sources"/packaging/debian/rules |
    sed 's/THINWIRE_//' | sort -u); do
    echo "$names" | grep -qx "$name" || fail "a recipe in packaging/ sets THINWIRE_$name, which is no option"
done

# ---- options together

expect_refused "Neither the shared nor the static library" -DTHINWIRE_SHARED=OFF -DTHINWIRE_STATIC=OFF
expect_configure -DTHINWIRE_SHARED=AUTO -DTHINWIRE_STATIC=AUTO
expect_refused "THINWIRE_NCCL is ON, but CUDA" -DTHINWIRE_NCCL=ON -DTHINWIRE_CUDA=OFF
expect_configure -DTHINWIRE_NCCL=AUTO
expect_refused "THINWIRE_TRAINER is ON, but it needs COMMAND, ZLIB and BLAS" -DTHINWIRE_TRAINER=ON -DTHINWIRE_BLAS=OFF
expect_configure -DTHINWIRE_TRAINER=AUTO -DTHINWIRE_BLAS=AUTO -DBUILD_SHARED_LIBS=ON
expect ON SHARED && expect OFF STATIC
expect_configure -DBUILD_SHARED_LIBS=OFF
expect OFF SHARED && expect ON STATIC
expect_configure -DTHINWIRE_SHARED=ON
expect ON SHARED && expect ON STATIC
expect_configure -UBUILD_SHARED_LIBS -DTHINWIRE_SHARED=AUTO -DBUILD_TESTING=OFF
expect ON SHARED && expect ON STATIC && expect OFF TESTS
expect_configure -DBUILD_TESTING=ON
expect ON TESTS
echo "BUILD_SHARED_LIBS and BUILD_TESTING are followed"

# ---- add_subdirectory: a parent with tests and an installation of its own

mkdir "$dir/parent"
cat >"$dir/parent/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.22)
project(parent C)
enable_testing()
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
add_subdirectory($sources thinwire)
add_executable(parent $sources/examples/select_step.c)
target_link_libraries(parent PRIVATE thinwire::thinwire)
install(TARGETS parent)
get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
message(STATUS "type '\${CMAKE_BUILD_TYPE}', languages '\${languages}'")
END
parent() { # NAME OPTIONS...
    name=$1 && shift
    cmake -S "$dir/parent" -B "$dir/$name" "$@" >"$dir/log" 2>&1 && cmake --build "$dir/$name" -j"$jobs" >"$dir/log.build" 2>&1 ||
        { cat "$dir/log" "$dir/log.build" && fail "add_subdirectory $*"; }
    "$dir/$name/parent" | grep -q 'given .* = sent .* + kept' || fail "the parent's program does not run"
    cmake --install "$dir/$name" --prefix "$dir/$name-prefix" >/dev/null
    [ "$(cd "$dir/$name-prefix" && find . -type f)" = ./bin/parent ] || fail "the parent installs: $(find "$dir/$name-prefix")"
    (cd "$dir/$name" && ctest -N) | grep -q 'Total Tests: 0' || fail "the parent has tests"
    grep -q "type '', languages 'C'" "$dir/log" || fail "the parent sees: $(grep languages "$dir/log")"
    made=$(cd "$dir/$name" && find . \( -name '*.a' -o -name '*.so*' -o -type f -perm -u+x ! -path '*CMakeFiles*' \) | sort | tr '\n' ' ')
    echo "add_subdirectory $*: $made"
}
parent static
[ "$made" = "./parent ./thinwire/libthinwire.a " ] || fail "more than the static library and the program"
parent shared -DBUILD_SHARED_LIBS=ON
case $made in *.a\ *) fail "a static library too" ;; *libthinwire.so*) ;; *) fail "no shared library" ;; esac
cmake -S "$dir/parent" -B "$dir/static" -DTHINWIRE_COMMAND=ON >/dev/null
cmake --build "$dir/static" --target help | grep thinwire_cli >/dev/null || fail "the parent asked for the command"

# ---- compilers and build types, everything that is compiled on this machine without CUDA

for options in "-DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O0" \
    "-DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O3" \
    "-DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O0" \
    "-DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Release"; do
    if ! command -v "$(expr "$options" : '-DCMAKE_C_COMPILER=\([a-z]*\)')" >/dev/null; then
        echo "SKIP: $options: no such compiler"
        continue
    fi
    rm -rf "$build"
    # shellcheck disable=SC2086 # words
    expect_configure $options -DTHINWIRE_WERROR=ON -DTHINWIRE_CUDA=OFF
    cmake --build "$build" -j"$jobs" >"$dir/log" 2>&1 || { cat "$dir/log" && fail "$options"; }
    "$build/thinwire" bench allreduce --ranks 2 --n 10000 --verify >"$dir/log" 2>&1 || { cat "$dir/log" && fail "$options: does not run"; }
    ! nm "$build/libthinwire.a" 2>/dev/null | grep -q __assert_fail || fail "$options: has asserts"
    echo "compiles and runs: $options"
done
echo "test-options: every option is obeyed"
