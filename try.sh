#!/bin/sh
# From a fresh clone to results: installs what the build needs, builds, runs a real sample checked against the double
# reference, and times this machine's kernel against standard attention.
set -eu
cd "$(dirname "$0")"
say() { printf '\n== %s\n' "$*" >&2; }

scripts/require_packages.sh cmake ninja-build g++ pkg-config libhwy-dev libtbb-dev libcli11-dev libfmt-dev \
  nlohmann-json3-dev libzip-dev

mkdir -p build
say "Building build/try (release, in a few minutes; the GPU's kernels are compiled when they are first used)"
cmake -S . -B build/try -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSELLA_BUILD_TESTS=OFF \
  -DTESSELLA_EMBED_KERNELS=OFF >build/try.log 2>&1 &&
  cmake --build build/try --target tessella_cli >>build/try.log 2>&1 || {
  cat build/try.log >&2
  exit 2
}

tessella=build/try/bin/tessella

say "tessella attend: q, k, v of a MiniLM layer over Pride and Prejudice, every row against the float64 reference"
"$tessella" attend examples/minilm_layer.safetensors --check=0

say "tessella bench: checked, then timed against standard attention (scores in memory) on this machine"
"$tessella" bench --preset gpt2 --seqlen 1024:4096 --dtype f32,bf16 --budget 0.5

say "Next: ./test.sh    $tessella ladder    $tessella --help"
