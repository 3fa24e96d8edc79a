#!/bin/sh
# Checks the CUDA parts without a GPU: every kernel compiles for sm_90a, and the engine's kernels use no local memory and
# issue their matrix multiplications asynchronously. Reads what ptxas reports and the disassembly.
#
#   scripts/check_sass.sh [ENGINE.cu ...]     default: src/cuda/tile_*.cu
#
# nvcc and cuobjdump are taken from PATH or from the variables NVCC and CUOBJDUMP. (cuobjdump also comes as the Python
# package nvidia-cuda-cuobjdump.)
set -eu
cd "$(dirname "$0")/.."
NVCC=${NVCC:-nvcc}
CUOBJDUMP=${CUOBJDUMP:-cuobjdump}
command -v "$NVCC" >/dev/null || { echo "check_sass: no nvcc"; exit 77; }
disassemble=1
command -v "$CUOBJDUMP" >/dev/null || { echo "check_sass: no cuobjdump: ptxas's report only"; disassemble=0; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
fail() {
  echo "FAIL $1" >&2
  failed=1
}

compile() { # source object log
  "$NVCC" -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Xptxas=-v -I include -I src -c "$1" -o "$2" >"$3" 2>&1
}

[ $# -gt 0 ] || set -- src/cuda/tile_*.cu
for source in "$@"; do
  name=$(basename "$source" .cu)
  log=$out/$name.log
  if ! compile "$source" "$out/$name.o" "$log"; then
    cat "$log" >&2
    fail "$source: does not compile for sm_90a"
    continue
  fi
  # C7508: setmaxnreg ignored; C7510 and the like: wgmma serialized.
  if grep -E 'C75[0-9][0-9]|warning' "$log" >&2; then fail "$source: the compiler warns"; fi
  if grep -E '[1-9][0-9]* bytes (stack frame|spill)' "$log" >&2; then fail "$source: registers spill"; fi
  [ $disassemble -eq 1 ] || continue
  "$CUOBJDUMP" --dump-sass "$out/$name.o" >"$out/$name.sass"
  local_accesses=$(grep -c -E '[[:space:]](LDL|STL)[. ]' "$out/$name.sass" || true)
  [ "$local_accesses" -eq 0 ] || fail "$source: $local_accesses local-memory accesses"
  multiplications=$(grep -c 'HGMMA' "$out/$name.sass" || true)
  waits=$(grep -c 'HGMMA.*gsb0' "$out/$name.sass" || true)
  case $name in
  *gemm*)
    [ "$multiplications" -gt 0 ] || fail "$source: no wgmma"
    # Only the last of a stage's four closes a group; one in each instruction means that they wait for each other.
    [ $((4 * waits)) -le "$multiplications" ] || fail "$source: wgmma serialized ($waits groups of $multiplications)"
    ;;
  esac
  echo "$source: $multiplications wgmma in $waits groups, $local_accesses local-memory accesses," \
    "$(grep -c 'Compiling entry' "$log") kernels"
done

find src/cuda -name '*.cu' >"$out/sources"
while read -r source; do
  [ -e "$out/$(basename "$source" .cu).o" ] && continue
  compile "$source" "$out/other.o" "$out/other.log" || { cat "$out/other.log" >&2; fail "$source: does not compile for sm_90a"; }
done <"$out/sources"
exit $failed
