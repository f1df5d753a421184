#!/bin/bash
# usage: test.sh PREFIX [PYTHON]    Builds and runs the tests here and examples/libtorch against Tessella in PREFIX and
# Debian's libtorch by CMake; with PYTHON, against the libtorch of that Python's torch, by its compiler options: its CMake
# package asks for a CUDA toolkit.
set -euo pipefail
prefix=$(realpath "$1")
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [[ -z ${2:-} ]]; then
  for program in examples/libtorch bindings/torch; do
    cmake -S $program -B "$work/$program" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release >"$work/log" ||
      { cat "$work/log"; exit 1; }
    cmake --build "$work/$program"
  done
  "$work/bindings/torch/torch_test"
  "$work/bindings/torch/caches_test"
  "$work/bindings/torch/linear_test"
  "$work/bindings/torch/multi_head_attention_test"
  "$work/examples/libtorch/attention"
  exit
fi

torch=$("$2" -c 'import torch; print(torch.__path__[0])')
string_abi=$("$2" -c 'import torch; print(int(torch._C._GLIBCXX_USE_CXX11_ABI))')
libdir=$(dirname "$(find "$prefix" -name libtessella.so)")
libraries=(-ltorch -ltorch_cpu -lc10)
for name in torch_cuda c10_cuda; do # needed by nothing that the linker sees
  [[ -e $torch/lib/lib$name.so ]] && libraries+=(-Wl,--no-as-needed "-l$name")
done
for source in bindings/torch/{torch_test,caches_test,linear_test,multi_head_attention_test}.cpp examples/libtorch/main.cpp; do
  c++ -std=c++20 -O2 -Wall -Wextra -D_GLIBCXX_USE_CXX11_ABI="$string_abi" -isystem "$torch/include" \
    -isystem "$torch/include/torch/csrc/api/include" -I "$prefix/include" \
    $source -o "$work/program" -L "$libdir" -ltessella -L "$torch/lib" "${libraries[@]}" \
    -Wl,-rpath,"$libdir:$torch/lib" -Wl,--allow-shlib-undefined
  "$work/program"
done
