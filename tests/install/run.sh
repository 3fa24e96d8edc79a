#!/bin/sh
# Installs a build to a temporary prefix and uses it as a stranger would: pkg-config, CMake package, the examples, the
# command, its manual and completion; each header by itself, in C and C++; nothing is exported that they do not declare.
# usage: run.sh BUILD_DIR
set -eu
build=$1 here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >/dev/null
library=$(find "$work/prefix" -name 'libdraintile.so.0')
directory=$(dirname "$library")

# Exactly what the installed headers declare.
nm -D --defined-only "$library" | awk '$2 ~ /[A-Z]/ {sub(/@.*/, "", $3); print $3}' |
  grep -v '^DRAINTILE_' >"$work/exported"
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
# Those for GPUs need CUDA's headers and runtime, and exit with 77 where there is no GPU.
cuda=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
for example in "$work"/prefix/share/doc/draintile/examples/*.c; do
  runtime=
  case $example in *_cuda.c)
    [ -e "$cuda/include/cuda_runtime_api.h" ] || continue
    runtime="-I$cuda/include -L$cuda/lib64 -lcudart"
    ;;
  esac
  # shellcheck disable=SC2046,SC2086  # flags are words
  cc -std=c11 -Wall -Wextra -Werror -pthread "$example" -o "$work/example" \
    $(pkg-config --cflags --libs draintile) $runtime -lm
  code=0
  LD_LIBRARY_PATH="$directory:$cuda/lib64" "$work/example" || code=$?
  [ "$code" -eq 0 ] || { [ "$code" -eq 77 ] && [ -n "$runtime" ]; } || exit 1
done

# A header needs no other before it, and says nothing that C++ takes amiss.
for language in 'c -std=c11' 'c++ -std=c++11'; do
  [ "$language" = 'c -std=c11' ] || command -v c++ >/dev/null || continue
  for header in "$work"/prefix/include/draintile/*.h; do
    # shellcheck disable=SC2086  # two words
    echo "#include <draintile/${header##*/}>" |
      gcc -x $language -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$work/prefix/include" - ||
      { echo "${header##*/} alone does not compile as $language"; exit 1; }
  done
done

cmake -S "$here" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/cmake" >/dev/null
"$work/cmake/consumer"

"$work/prefix/bin/draintile" info >/dev/null

if command -v man >/dev/null; then
  LC_ALL=C MANWIDTH=100 man --warnings -l "$work/prefix/share/man/man1/draintile.1" >"$work/manual" 2>"$work/warnings"
  grep -q 'link-capacity' "$work/manual" && [ ! -s "$work/warnings" ] || { cat "$work/warnings"; exit 1; }
fi
bash -c '. "$1" && complete -p draintile' - "$work/prefix/share/bash-completion/completions/draintile" >/dev/null
# Staged, as a package is made.
DESTDIR="$work/staged" cmake --install "$build" --prefix /usr >/dev/null
[ -x "$work/staged/usr/bin/draintile" ] && [ "$(ls -A "$work/staged")" = usr ]
