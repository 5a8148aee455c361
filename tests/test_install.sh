#!/bin/sh
# Installs the build into a scratch prefix and builds against it as users do: with pkg-config, from
# C++, and with find_package.
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

echo "C++"
cat >"$scratch/plus.cpp" <<EOF
#include <thinwire.h>
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
add_executable(consumer $source/examples/select_step.c)
target_link_libraries(consumer thinwire::static)
EOF
cmake -S "$scratch/consumer" -B "$scratch/consumer/build" \
    -DCMAKE_PREFIX_PATH="$scratch/prefix" >/dev/null
cmake --build "$scratch/consumer/build" >/dev/null
"$scratch/consumer/build/consumer" | grep 'given .* = sent .* + kept'

"$scratch/prefix/bin/thinwire" --version
