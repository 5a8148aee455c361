#!/bin/sh
# test_build.sh - options of CMake and make do what they say: sh test_build.sh SOURCES
#
# - asserts are in debug and sanitized builds, and in no other
# - THINWIRE_CUDA=OFF holds, even if an earlier configure has found nvcc
# - a 32-bit machine is refused
# - `make` and `make install` install no packages: they name the command that does
set -eu
sources=$(cd "$1" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
fail() { echo "FAIL: $*" && exit 1; }
configure() { # OPTIONS...
    cmake -S "$sources" -B "$dir/build" -DTHINWIRE_TESTS=OFF -DTHINWIRE_MPI=OFF "$@" >"$dir/log" 2>&1 ||
        { cat "$dir/log" && fail "cmake $*"; }
}

# ---- 32 bits: CMake is told the size of a pointer instead of looking itself

! cmake -S "$sources" -B "$dir/narrow" -DCMAKE_C_ABI_COMPILED=TRUE -DCMAKE_SIZEOF_VOID_P=4 \
    >"$dir/log" 2>&1 || fail "a 32-bit machine was accepted"
grep -q 'needs a 64-bit machine' "$dir/log" || { cat "$dir/log" && fail "wrong reason"; }

# ---- asserts: compile one file that holds one, with the command that CMake wrote for it, and look for
# the call that a failed assert makes

file=$(grep -rl --include='*.c' '^ *assert(' "$sources/src" | sort | head -n 1)
[ -n "$file" ] || fail "no file of src has an assert"
asserts() { # yes|no OPTIONS...
    expected=$1 found=no
    shift
    configure -DTHINWIRE_CUDA=OFF "$@"
    # The lines before "file" are "directory" and "command".
    command=$(grep -B 1 "\"file\": \"$file\"" "$dir/build/compile_commands.json" |
        sed -n 's/^ *"command": "\(.*\)",$/\1/p' | head -n 1 | sed 's/\\"/"/g; s/ -o [^ ]*/ -o object.o/')
    (cd "$dir" && sh -c "$command")
    ! nm "$dir/object.o" | grep -q '__assert_fail' || found=yes
    echo "asserts with $*: $found"
    [ $found = "$expected" ] || fail "expected $expected"
}
asserts yes -DCMAKE_BUILD_TYPE=Debug
for type in None Release RelWithDebInfo MinSizeRel ""; do
    asserts no -DCMAKE_BUILD_TYPE=$type
done
for type in None RelWithDebInfo; do
    asserts yes -DCMAKE_BUILD_TYPE=$type -DTHINWIRE_SANITIZE=undefined
done

# ---- CUDA: false is a compiler that cannot compile, so CMake would stop if it tried

for option in -DTHINWIRE_CUDA=OFF -DTHINWIRE_DEMO=ON; do
    rm -rf "$dir/build"
    configure -DCMAKE_CUDA_COMPILER="$(command -v false)" $option
    echo "without CUDA: $option"
done

# ---- packages: apt-get and sudo only note that they were called; pkg-config finds nothing

mkdir "$dir/bin"
for tool in apt-get sudo; do
    printf '#!/bin/sh\necho %s "$@" >>"%s/calls"\n' $tool "$dir" >"$dir/bin/$tool"
done
printf '#!/bin/sh\nexit 1\n' >"$dir/bin/pkg-config"
chmod +x "$dir/bin"/*
: >"$dir/calls"
PATH=$dir/bin:$PATH "$sources/scripts/install-deps" --check build check >"$dir/out" 2>&1 &&
    fail "install-deps --check: status 0 without cmocka"
[ ! -s "$dir/calls" ] || fail "install-deps --check calls $(cat "$dir/calls")"
grep -q "^Missing.*libcmocka-dev.*'make deps'" "$dir/out" || fail "install-deps --check does not name cmocka and 'make deps'"
grep -q "^Building without.*libjansson-dev.*'make deps'" "$dir/out" || fail "install-deps --check does not name jansson"
PATH=$dir/bin:$PATH "$sources/scripts/install-deps" build >"$dir/out" 2>&1
grep -q 'apt-get\|sudo' "$dir/calls" || fail "install-deps does not call apt-get"
for target in all install check; do
    make -n -C "$sources" $target >"$dir/out"
    grep -q 'install-deps --check' "$dir/out" || fail "make $target does not look for packages"
    ! grep -v -- --check "$dir/out" | grep -q install-deps || fail "make $target installs packages"
done
echo "make installs no packages"
