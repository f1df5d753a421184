#!/bin/bash
# usage: page_example.sh COMPILER SOURCE PAGE c|cpp PARAMETERS    The page's first example in C or C++ compiles as it
# stands against include/, in a function with these parameters.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
sed -n "/^\`\`\`$4\$/,/^\`\`\`\$/p;" "$2/$3" | sed '1d; /^```$/,$d' >"$folder/example.txt"
[[ -s $folder/example.txt ]] || { echo "$3 has no example in $4"; exit 1; }
# What a reader has around it: its own buffers and a function.
{
  echo '#include <stdio.h>'
  grep -E '^(#include|namespace|using) ' "$folder/example.txt"
  echo "void example($5);"
  echo "void example($5) {"
  grep -vE '^(#include|namespace|using) ' "$folder/example.txt"
  echo '}'
} >"$folder/example.$4"
language=(-x c++ -std=c++20)
[[ $4 == c ]] && language=(-x c -std=c11)
"$1" "${language[@]}" -Wall -Wextra -Werror -fsyntax-only -I "$2/include" "$folder/example.$4"
