#!/bin/sh
# Checks without a GPU that timestamps cost the plain kernels nothing: the engine's sources with and without the calls
# of dt_stamp_* give the same machine code, to the byte. nvcc is taken from PATH or from NVCC. Exit code 77 without it.
set -eu
cd "$(dirname "$0")/.."
NVCC=${NVCC:-nvcc}
command -v "$NVCC" >/dev/null || { echo "check_stamps: no nvcc"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/with" "$work/without"
cp -r src include "$work/with"
cp -r src include "$work/without"
for header in tile_consume tile_store tile_warps layer_roles layer_carry pipeline; do
  sed -i '/^ *dt_stamp_[a-z]*(.*);$/d; s/return dt_stamp_stored([^;]*;/return;/' "$work/without/src/cuda/$header.cuh"
done
count() { # folder: calls in the engine and the layer's roles
  (cd "$work/$1/src/cuda" && cat tile_*.cuh layer_roles.cuh | grep -c 'dt_stamp_' || true)
}
calls=$(count with)
left=$(count without)
if [ "$calls" -le 15 ] || [ "$left" -ne 0 ]; then
  echo "FAIL check_stamps: $calls calls, $left of them stayed" >&2
  exit 1
fi
compile() { # folder kernel
  (cd "$work/$1" && "$NVCC" -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -I include -I src -cubin \
    "src/cuda/$2.cu" -o "../$1-$2.cubin")
}
for kernel in tile_layer tile_gemm tile_gemm_combine; do
  compile with "$kernel"
  compile without "$kernel"
  cmp "$work/with-$kernel.cubin" "$work/without-$kernel.cubin" ||
    { echo "FAIL check_stamps: $kernel differs" >&2; exit 1; }
done
compile with spans_layer
! cmp -s "$work/with-spans_layer.cubin" "$work/with-tile_layer.cubin" ||
  { echo "FAIL check_stamps: no stamps at all" >&2; exit 1; }
echo "$calls calls: tile_layer, tile_gemm and tile_gemm_combine are the same to the byte without them"
