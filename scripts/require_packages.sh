#!/bin/sh
# usage: require_packages.sh PACKAGE...    Installs the Debian or Ubuntu packages that are missing, as root or through
# sudo; where it may not, names them and exits 2. Other systems get the list and go on: CMake says what it does not find.
set -eu

if ! command -v dpkg-query >/dev/null; then
  echo "This is no Debian or Ubuntu; the build needs what they call: $*" >&2
  exit 0
fi

missing=
for package in "$@"; do
  # One line for each architecture it is installed for.
  dpkg-query --show --showformat '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
    missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
  as_root=
elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
  as_root=sudo
else
  echo "The build needs these packages, and only root can install them:" >&2
  echo "  apt-get install$missing" >&2
  exit 2
fi
echo "== Installing$missing" >&2
$as_root apt-get update -qq >&2 || echo "apt-get update failed; trying with what is known" >&2
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2
