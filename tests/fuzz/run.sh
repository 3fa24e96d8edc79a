#!/bin/sh
# Builds and runs a fuzz target with clang's libFuzzer, then folds what it found into the committed corpus.
# usage: tests/fuzz/run.sh safetensors|model [seconds]
set -eu
target=${1:?safetensors or model}
seconds=${2:-60}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
extra=
[ "$target" = safetensors ] && extra=$here/mutate_safetensors.c
cd "$root"
${CLANG:-clang-14} -std=c11 -D_GNU_SOURCE -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
  -Iinclude -Isrc "$here/fuzz_$target.c" $extra \
  src/core/status.c src/io/safetensors.c src/io/dtype.c src/io/config.c src/io/shards.c \
  src/io/json_path.c -ljansson -lm -o "$work/fuzz"
mkdir -p "$work/found" "$work/merged"
"$work/fuzz" -max_total_time="$seconds" -max_len=4096 -timeout=10 -dict="$here/$target.dict" \
  -artifact_prefix="$here/crash-" "$work/found" "$here/corpus/$target"
"$work/fuzz" -merge=1 "$work/merged" "$work/found" "$here/corpus/$target"
rm -f "$here/corpus/$target"/*
cp "$work/merged"/* "$here/corpus/$target"/
