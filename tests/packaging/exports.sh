#!/bin/bash
# usage: exports.sh LIBRARY EXPECTED    The dynamic symbols are exactly the promised ones, and what the library needs of
# others is what a plain system has: no symbol of a private dependency is re-exported, no path is baked in.
set -euo pipefail
export LC_ALL=C
library=$1 expected=$2 nm=${NM:-nm} readelf=${READELF:-readelf}

"$nm" -D --defined-only "$library" | awk '{print $NF}' | sed 's/@.*//' | sort | diff -u "$expected" -

runpath=$("$readelf" -d "$library" | sed -n 's/.*R\(UN\)\?PATH.*\[\(.*\)\]/\2/p')
case $runpath in
  '' | '$ORIGIN' | '$ORIGIN:'*) ;;
  *) echo "run path is '$runpath', expected \$ORIGIN first"; exit 1 ;;
esac
"$readelf" -d "$library" | grep -q 'SONAME.*\[libtessella\.so\.[0-9]*\]' || { echo "no versioned SONAME"; exit 1; }
# An executable stack, or text relocations, come from a forgotten section or a wrong flag.
if "$readelf" -lW "$library" | grep -q 'GNU_STACK.*RWE'; then echo "the stack is executable"; exit 1; fi
if "$readelf" -d "$library" | grep -q TEXTREL; then echo "has text relocations"; exit 1; fi
echo "$(wc -l <"$expected") exports, as promised"
