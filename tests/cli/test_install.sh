#!/bin/sh
# Installs the build into a scratch prefix, moves that, and builds against it as users do: with
# pkg-config, from C++, and with find_package; over MPI too where the build has it. Then uninstalls.
#
#   test_install.sh BUILD_DIR SOURCE_DIR
set -eu
build=$1 source=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

prefix="$scratch/a prefix" # with a blank
fail() { echo "FAIL: $*" >&2 && exit 1; }
DESTDIR="$scratch/root" cmake --install "$build" --prefix /first >/dev/null
mv "$scratch/root/first" "$prefix"
pc=$(find "$prefix" -name thinwire.pc)
lib=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH="${pc%/*}"

echo "files"
for file in bin/thinwire include/thinwire.h share/doc/thinwire/LICENSE share/doc/thinwire/docs/python.md \
    share/doc/thinwire/examples/select_step.c share/man/man3/libthinwire.3 share/bash-completion/completions/thinwire; do
    [ -s "$prefix/$file" ] || fail "$file is not installed"
done
for command in "" $("$prefix/bin/thinwire" --help=words | sed 's/^/-/'); do
    [ "$command" = -train ] || [ "$command" = -demo ] || [ -s "$prefix/share/man/man1/thinwire$command.1" ] ||
        fail "no man page of thinwire$command"
done
grep -q tw_group_add "$prefix/share/man/man3/libthinwire.3" || fail "libthinwire(3) lacks functions"
grep -q '^\.SH 4\. TRANSPORTS' "$prefix/share/man/man3/libthinwire.3" || fail "libthinwire(3) speaks of sections without naming them"
if command -v man >/dev/null; then
    for page in "$prefix"/share/man/man[13]/*; do
        warnings=$(man --warnings -l "$page" 2>&1 >/dev/null)
        [ -z "$warnings" ] || fail "$page: $warnings"
    done
fi
readelf -d "$lib/libthinwire.so" | grep 'SONAME.*\[libthinwire.so.0.1\]' || fail "soname"
others=$(nm -D --defined-only "$lib/libthinwire.so" | awk '$2 != "A" && $3 !~ /^tw_[a-z].*@@THINWIRE_0\.1$/')
[ -z "$others" ] || fail "symbols without version: $others"
nm -D --defined-only "$lib/libthinwire.so" | awk '{ print $3 }' | sed 's/@@*THINWIRE.*//' | sort >"$scratch/symbols"
sed -n 's/^ \([^@]*\)@.*/\1/p' "$source/packaging/debian/libthinwire0.1.symbols" | sort | diff "$scratch/symbols" - ||
    fail "packaging/debian/libthinwire0.1.symbols lists other symbols than the library has"
! grep -r --include='*.pc' --include='*.cmake' -l "$build\|/first\|/cuda" "$lib" || fail "paths of this machine"
if readelf -d "$prefix/bin/thinwire" | grep -i 'NEEDED.*mpi'; then fail "the command needs MPI, which it must not"; fi

echo "pkg-config"
flags=$(pkg-config --cflags --libs thinwire) # quoted for a shell: eval
eval "cc '$source/examples/select_step.c' $flags -o '$scratch/shared'"
LD_LIBRARY_PATH="$lib" "$scratch/shared" | grep 'given .* = sent .* + kept'

eval "cc '$source/examples/custom_transport.c' $flags -o '$scratch/custom'"
LD_LIBRARY_PATH="$lib" "$scratch/custom" | grep 'rank 0: .* means exact'

echo "C++"
cat >"$scratch/plus.cpp" <<EOF
#include <thinwire_sim.h>
int main() {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    tw_selector *selector;
    return tw_selector_create(&selector, 10, &params) == TW_ERR_K ? 0 : 1;
}
EOF
eval "c++ -Wall -Wextra -Wpedantic -Werror '$scratch/plus.cpp' $flags -o '$scratch/plus'"
LD_LIBRARY_PATH="$lib" "$scratch/plus"

echo "Python finds the installed library"
if command -v python3 >/dev/null; then
    env -u THINWIRE_LIBRARY PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$source/python" LD_LIBRARY_PATH="$lib" python3 -c '
import thinwire
assert thinwire.schemes()["oktopk"] and open("/proc/self/maps").read().count("a prefix/lib")'
fi

echo "find_package"
mkdir "$scratch/consumer"
cat >"$scratch/consumer/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.22)
project(consumer C)
find_package(thinwire 0.2 REQUIRED)
foreach(kind static thinwire)
  add_executable(\${kind} $source/examples/select_step.c)
  target_link_libraries(\${kind} thinwire::\${kind})
endforeach()
EOF
cmake -S "$scratch/consumer" -B "$scratch/consumer/build" \
    -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$scratch/consumer/build" >/dev/null
for kind in static thinwire; do
    "$scratch/consumer/build/$kind" | grep 'given .* = sent .* + kept'
done

cat >"$scratch/consumer/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.22)
project(consumer C)
foreach(version 0.1 0.3 1)
  find_package(thinwire \${version} QUIET)
  if(thinwire_FOUND)
    message(FATAL_ERROR "this version counts as \${version}")
  endif()
endforeach()
EOF
cmake -S "$scratch/consumer" -B "$scratch/consumer/other" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null

"$prefix/bin/thinwire" --version

if readelf -d "$lib/libthinwire.so" | grep -i 'NEEDED.*mpi'; then
    echo "libthinwire needs MPI, which it must not" >&2
    exit 1
fi
uninstall() {
    mv "$prefix" "$scratch/root/first"
    "$source/scripts/uninstall" "$build/install_manifest.txt" "$scratch/root"
    [ -z "$(find "$scratch/root" -type f -o -type l -o -name thinwire)" ] || fail "left: $(find "$scratch/root")"
}
if [ ! -f "$lib/pkgconfig/thinwire_mpi.pc" ]; then
    echo "SKIP the MPI library: this build has none"
    uninstall
    exit 0
fi

echo "MPI"
# A job of one rank needs no mpiexec.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cat >"$scratch/over_mpi.c" <<EOF
#include <stdio.h>
#include <thinwire_mpi.h>
int main(int argc, char **argv) {
    tw_transport *transport;
    const char *name = "";
    int nranks = 0;
    if (tw_transport_mpi(&transport, MPI_COMM_WORLD) != TW_ERR_STATE)
        return 1;
    MPI_Init(&argc, &argv);
    if (tw_transport_mpi(&transport, MPI_COMM_WORLD) != TW_OK)
        return 1;
    tw_transport_info(transport, &name, NULL, &nranks, NULL);
    printf("transport %s of %d", name, nranks);
    tw_transport_free(transport);
    return MPI_Finalize();
}
EOF
mpicc=$(sed -n 's/^MPI_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
flags=$(pkg-config --cflags --libs thinwire_mpi)
eval "'$mpicc' '$scratch/over_mpi.c' $flags -o '$scratch/over_mpi'"
LD_LIBRARY_PATH="$lib" "$scratch/over_mpi" | grep 'transport mpi of 1'

mkdir "$scratch/mpi_consumer"
cat >"$scratch/mpi_consumer/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.22)
project(mpi_consumer C)
find_package(thinwire 0.2 REQUIRED COMPONENTS mpi)
add_executable(mpi_consumer $scratch/over_mpi.c)
target_link_libraries(mpi_consumer thinwire::mpi)
add_executable(m $scratch/over_mpi.c) # has the name of the C library's libm
target_link_libraries(m thinwire::mpi_static)
EOF
cmake -S "$scratch/mpi_consumer" -B "$scratch/mpi_consumer/build" -DMPI_C_COMPILER="$mpicc" \
    -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$scratch/mpi_consumer/build" >/dev/null
for program in mpi_consumer m; do
    "$scratch/mpi_consumer/build/$program" | grep 'transport mpi of 1'
done
readelf -d "$scratch/mpi_consumer/build/mpi_consumer" | grep -q 'NEEDED.*libthinwire_mpi.so.0.1' ||
    fail "thinwire::mpi is not the shared library"

echo "the command under MPI, and without it"
PMIX_RANK=0 "$prefix/bin/thinwire" info | grep '^ *mpi *ranks of an MPI'
mv "$lib/thinwire/thinwire-mpi.so" "$scratch/"
"$prefix/bin/thinwire" info | grep '^ *mpi *not usable: thinwire-mpi.so is not installed'
! PMIX_RANK=0 "$prefix/bin/thinwire" bench allreduce --n 1000 2>"$scratch/err" || fail "runs without thinwire-mpi.so"
grep 'thinwire-mpi.so is not installed' "$scratch/err"
uninstall
