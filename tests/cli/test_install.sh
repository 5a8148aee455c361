#!/bin/sh
# Installs the build into a scratch prefix and builds against it as users do: with pkg-config, from
# C++, and with find_package; over MPI too where the build has it.
#
#   test_install.sh BUILD_DIR SOURCE_DIR
set -eu
build=$1 source=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build" --prefix "$scratch/prefix" >/dev/null
pc=$(find "$scratch/prefix" -name thinwire.pc)
lib=$(dirname "$(dirname "$pc")")

echo "pkg-config"
flags=$(PKG_CONFIG_PATH="$(dirname "$pc")" pkg-config --define-variable=prefix="$scratch/prefix" \
    --cflags --libs thinwire)
# shellcheck disable=SC2086
cc "$source/examples/select_step.c" $flags -o "$scratch/shared"
LD_LIBRARY_PATH="$lib" "$scratch/shared" | grep 'given .* = sent .* + kept'

# shellcheck disable=SC2086
cc "$source/examples/custom_transport.c" $flags -o "$scratch/custom"
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
# shellcheck disable=SC2086
c++ -Wall -Wextra -Wpedantic -Werror "$scratch/plus.cpp" $flags -o "$scratch/plus"
LD_LIBRARY_PATH="$lib" "$scratch/plus"

echo "find_package"
mkdir "$scratch/consumer"
cat >"$scratch/consumer/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.22)
project(consumer C)
find_package(thinwire 0.1 REQUIRED)
foreach(kind static thinwire)
  add_executable(\${kind} $source/examples/select_step.c)
  target_link_libraries(\${kind} thinwire::\${kind})
endforeach()
EOF
cmake -S "$scratch/consumer" -B "$scratch/consumer/build" \
    -DCMAKE_PREFIX_PATH="$scratch/prefix" >/dev/null
cmake --build "$scratch/consumer/build" >/dev/null
for kind in static thinwire; do
    "$scratch/consumer/build/$kind" | grep 'given .* = sent .* + kept'
done

"$scratch/prefix/bin/thinwire" --version

if readelf -d "$lib/libthinwire.so" | grep -i 'NEEDED.*mpi'; then
    echo "libthinwire needs MPI, which it must not" >&2
    exit 1
fi
if [ ! -f "$lib/pkgconfig/thinwire_mpi.pc" ]; then
    echo "SKIP the MPI library: this build has none"
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
flags=$(PKG_CONFIG_PATH="$(dirname "$pc")" pkg-config --define-variable=prefix="$scratch/prefix" \
    --cflags --libs thinwire_mpi)
# shellcheck disable=SC2086
"$mpicc" "$scratch/over_mpi.c" $flags -o "$scratch/over_mpi"
LD_LIBRARY_PATH="$lib" "$scratch/over_mpi" | grep 'transport mpi of 1'

mkdir "$scratch/mpi_consumer"
cat >"$scratch/mpi_consumer/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.22)
project(mpi_consumer C)
find_package(thinwire 0.1 REQUIRED COMPONENTS mpi)
add_executable(mpi_consumer $scratch/over_mpi.c)
target_link_libraries(mpi_consumer thinwire::mpi)
EOF
cmake -S "$scratch/mpi_consumer" -B "$scratch/mpi_consumer/build" -DMPI_C_COMPILER="$mpicc" \
    -DCMAKE_PREFIX_PATH="$scratch/prefix" >/dev/null
cmake --build "$scratch/mpi_consumer/build" >/dev/null
"$scratch/mpi_consumer/build/mpi_consumer" | grep 'transport mpi of 1'
