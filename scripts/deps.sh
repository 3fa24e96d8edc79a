#!/bin/sh
# Installs the Debian packages the build and its tests need. Says what it runs; runs nothing when nothing is missing.
set -eu
list=$(dirname "$0")/debian-packages.txt
missing=
if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "deps: not a Debian system; needed are the equivalents of: $(tr '\n' ' ' <"$list")" >&2
  exit 0
fi
while read -r package; do
  case $package in '' | '#'*) continue ;; esac
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing="$missing $package"
done <"$list"
[ -n "$missing" ] || exit 0
run=
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null 2>&1 || { echo "deps: as root, run: apt-get install$missing" >&2; exit 3; }
  run=sudo
fi
echo "deps: $run apt-get update" >&2
$run apt-get update -qq
echo "deps: $run apt-get install -y --no-install-recommends$missing" >&2
# shellcheck disable=SC2086  # one word a package
DEBIAN_FRONTEND=noninteractive $run apt-get install -y -qq --no-install-recommends $missing >/dev/null
