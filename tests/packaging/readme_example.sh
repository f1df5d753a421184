#!/bin/bash
# usage: readme_example.sh COMPILER SOURCE    README's first C++ example compiles as it stands against include/.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sed -n '/^```cpp$/,/^```$/p;' "$2/README.md" | sed '1d; /^```$/,$d' >"$folder/example.txt"
[[ -s $folder/example.txt ]] || { echo "README.md has no C++ example"; exit 1; }
# What a reader has around it: its own buffers and a function.
{
  echo '#include <cstdio>'
  grep -E '^(#include|namespace|using) ' "$folder/example.txt"
  echo 'void example(void* q_data, void* k_data, void* v_data, void* out_data) {'
  grep -vE '^(#include|namespace|using) ' "$folder/example.txt"
  echo '}'
} >"$folder/example.cpp"
"$1" -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I "$2/include" "$folder/example.cpp"
