#!/bin/bash
# usage: install.sh BUILD SOURCE    Installs into a fresh prefix, moves the prefix, and builds the two examples outside
# the tree against it: find_package and pkg-config. Both must run and agree.
set -euo pipefail
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Stripped as packages are: debug information names the sources' folder.
cmake --install "$build" --strip --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix" # a package may be unpacked anywhere
libdir=$(dirname "$(find "$work/prefix" -name libtessella.so)")
cp -r "$source/examples/find_package" "$source/examples/pkg_config" "$work"

cmake -S "$work/find_package" -B "$work/find_package/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$work/find_package/build" >/dev/null
"$work/find_package/build/attention" | tail -4 >"$work/from_cmake"

PKG_CONFIG_PATH=$libdir/pkgconfig make -s -C "$work/pkg_config"
LD_LIBRARY_PATH=$libdir "$work/pkg_config/attention" >"$work/from_pkg_config"
diff "$work/from_cmake" "$work/from_pkg_config"
grep -q '1.0000  10.0000' "$work/from_cmake" # the first row sees the first key alone

# This minor release may be asked for, a newer one may not.
wants() {
  cmake -S "$work/find_package" -B "$work/wants" -DCMAKE_PREFIX_PATH="$work/prefix" -DWANTED="$1" \
    -DCMAKE_PROJECT_INCLUDE="$source/tests/packaging/wants.cmake" >/dev/null 2>&1
}
version=$(sed -n 's/.*VERSION_M[A-Z]* \([0-9]*\)$/\1/p' "$source/include/tessella/tessella.h" | paste -sd.)
wants "$version" || { echo "find_package(tessella $version) was not satisfied"; exit 1; }
if wants 0.99; then echo "find_package(tessella 0.99) was satisfied"; exit 1; fi
runpath=$(readelf -d "$libdir/libtessella.so" | sed -n 's/.*RUNPATH.*\[\(.*\)\]/\1/p')
[[ $runpath == '$ORIGIN' ]] || { echo "installed run path is '$runpath', expected \$ORIGIN alone"; exit 1; }
# Build and source folders must not have found their way into what is installed.
if grep -rlF -e "$build" -e "$source" "$work/prefix"; then echo "^ name a folder of the build"; exit 1; fi
echo "find_package and pkg-config agree"
