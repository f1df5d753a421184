#!/bin/bash
# usage: compare_outputs.sh COMMIT    Shows that the working tree computes the bits that COMMIT computes: hashes of the
# fixed cases of tests/hashes on every CPU kernel of this machine, and of the GPU's kernels in the emulator. Builds both
# (build/hashes and build/hashes-before), prints the lines that differ, ends with `N passed, N failed`.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=$(git rev-parse --verify "${1:?usage: compare_outputs.sh COMMIT}^{commit}")
jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
before=$(mktemp -d)
trap 'git worktree remove --force "$before"' EXIT
git worktree add --quiet --detach "$before" "$commit"

# hashes SOURCE BUILD FILE
hashes() {
  cmake -S "$1" -B "$2" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSELLA_BUILD_TESTS=ON -DTESSELLA_EMBED_KERNELS=OFF >/dev/null
  cmake --build "$2" --parallel "$jobs" --target cpu_hashes emulated_hashes >&2
  find "$2" -type f -name cpu_hashes -exec {} \; >"$3"
  find "$2" -type f -name emulated_hashes -exec {} \; >>"$3"
}
rm -rf build/hashes-before
mkdir -p build
hashes "$before" build/hashes-before build/hashes-before.txt
hashes . build/hashes build/hashes.txt
diff build/hashes-before.txt build/hashes.txt || true
failed=$(diff build/hashes-before.txt build/hashes.txt | grep -c '^[<>]' || true)
echo "$(comm -12 <(sort build/hashes-before.txt) <(sort build/hashes.txt) | wc -l) passed, $failed failed"
[[ $failed -eq 0 ]]
