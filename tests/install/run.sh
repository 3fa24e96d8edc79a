#!/bin/sh
# Installs a build to a temporary prefix and uses it as a stranger would: pkg-config, CMake package, the command, and
# only dt_* exported. usage: run.sh BUILD_DIR
set -eu
build=$1 here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >/dev/null
library=$(find "$work/prefix" -name 'libdraintile.so.0')
directory=$(dirname "$library")

others=$(nm -D --defined-only "$library" | awk '$2 ~ /[A-Z]/ && $3 !~ /^dt_/ && $3 !~ /^DRAINTILE_/ {print $3}')
[ -z "$others" ] || { echo "exported beside dt_*: $others"; exit 1; }
readelf -d "$library" | grep -q 'SONAME.*libdraintile.so.0' || { echo "no SONAME"; exit 1; }

export PKG_CONFIG_PATH="$directory/pkgconfig"
# shellcheck disable=SC2046  # flags are words
cc -std=c11 "$here/consumer.c" -o "$work/consumer" $(pkg-config --cflags --libs draintile)
LD_LIBRARY_PATH="$directory" "$work/consumer"

cmake -S "$here" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/cmake" >/dev/null
"$work/cmake/consumer"

"$work/prefix/bin/draintile" info >/dev/null
