#!/bin/sh
# Builds the tests and runs them, but those labelled long (tests/labels.cmake), of which .ci/run takes shares. Arguments go
# to ctest and choose among all: ./test.sh -R cli
set -eu
cd "$(dirname "$0")"

scripts/require_packages.sh cmake ninja-build g++ pkg-config libhwy-dev libtbb-dev libcli11-dev libfmt-dev \
  nlohmann-json3-dev libzip-dev libgtest-dev python3

echo "== Building build/try with its tests (a few minutes)" >&2
cmake -S . -B build/try -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSELLA_BUILD_TESTS=ON \
  -DTESSELLA_EMBED_KERNELS=AUTO
cmake --build build/try
[ $# -gt 0 ] || set -- --label-exclude long
ctest --test-dir build/try --output-on-failure --parallel "$(nproc)" --no-tests=error "$@"
