#!/bin/sh
# Installs a build to a temporary prefix and uses it as a stranger would: pkg-config, CMake package, the command, and nothing exported
# that the headers do not declare. usage: run.sh BUILD_DIR
set -eu
build=$1 here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >/dev/null
library=$(find "$work/prefix" -name 'libdraintile.so.0')
directory=$(dirname "$library")

# Exactly what the installed headers declare.
nm -D --defined-only "$library" | awk '$2 ~ /[A-Z]/ {sub(/@.*/, "", $3); print $3}' | grep -v '^DRAINTILE_' >"$work/exported"
others=
while read -r symbol; do
  grep -qrw -- "$symbol" "$work/prefix/include/draintile" || others="$others $symbol"
done <"$work/exported"
[ -z "$others" ] || { echo "exported but not declared:$others"; exit 1; }
readelf -d "$library" | grep -q 'SONAME.*libdraintile.so.0' || { echo "no SONAME"; exit 1; }

export PKG_CONFIG_PATH="$directory/pkgconfig"
# shellcheck disable=SC2046  # flags are words
cc -std=c11 "$here/consumer.c" -o "$work/consumer" $(pkg-config --cflags --libs draintile)
LD_LIBRARY_PATH="$directory" "$work/consumer"

cmake -S "$here" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/cmake" >/dev/null
"$work/cmake/consumer"

"$work/prefix/bin/draintile" info >/dev/null
