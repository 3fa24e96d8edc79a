#!/bin/sh
# Checks the CUDA parts without a GPU: every kernel compiles for sm_90a; those of the engine and of attention use no
# local memory and issue their matrix multiplications asynchronously; attention's loops move nothing to uniform
# registers (R2UR). The engine's instances with stamps (spans_*.cu) only have to compile: they spill a few words
# (docs/spans.md). Reads what ptxas reports and the disassembly.
#
#   scripts/check_sass.sh [SOURCE.cu ...]     default: src/cuda/tile_*.cu src/cuda/attention_*.cu
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

# R2UR in the innermost loop with matrix multiplications of each kernel: the shortest stretch from a branch's target to
# the branch that holds some. Prints "loops R2URs".
loop_moves() { # sass
  awk '
    function finish(  i, j, best, length_, moves, multiplications) {
      best = 0
      for (i = 1; i <= count; i++) {
        if (!(i in target) || !(target[i] in line) || line[target[i]] >= i) continue
        length_ = i - line[target[i]]
        if (best && length_ >= best) continue
        moves = multiplications = 0
        for (j = line[target[i]]; j <= i; j++) {
          if (text[j] ~ /HGMMA/) multiplications++
          if (text[j] ~ /R2UR/) moves++
        }
        if (multiplications) { best = length_; best_moves = moves }
      }
      if (best) { loops++; total += best_moves }
      count = 0
      delete line; delete target; delete text
    }
    /Function :/ { finish() }
    /^[ \t]+\/\*[0-9a-f]+\*\// {
      count++
      address = $1; gsub(/[\/*]/, "", address); sub(/^0+/, "", address)
      line[address] = count
      text[count] = $0
      if (match($0, /BRA[^;]* 0x[0-9a-f]+/)) {
        address = substr($0, RSTART, RLENGTH); sub(/.*0x0*/, "", address)
        target[count] = address
      }
    }
    END { finish(); print loops + 0, total + 0 }
  ' "$1"
}

[ $# -gt 0 ] || set -- src/cuda/tile_*.cu src/cuda/attention_*.cu
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
  *gemm* | attention_*)
    [ "$multiplications" -gt 0 ] || fail "$source: no wgmma"
    # Only the last of a stage's four (attention: of a step) closes a group; one in each instruction means that they
    # wait for each other.
    [ $((4 * waits)) -le "$multiplications" ] || fail "$source: wgmma serialized ($waits groups of $multiplications)"
    ;;
  esac
  case $name in
  attention_d64 | attention_d128 | attention_d256)
    moves=$(loop_moves "$out/$name.sass")
    case $moves in
    "$(grep -c 'Compiling entry' "$log") 0") ;;
    *) fail "$source: kernels with a matrix loop, and R2UR in them: $moves" ;;
    esac
    ;;
  esac
  echo "$source: $multiplications wgmma in $waits groups, $local_accesses local-memory accesses," \
    "$(grep -c 'Compiling entry' "$log") kernels"
done

find src/cuda -name '*.cu' >"$out/sources"
while read -r source; do
  [ -e "$out/$(basename "$source" .cu).o" ] && continue
  compile "$source" "$out/other.o" "$out/other.log" ||
    { cat "$out/other.log" >&2; fail "$source: does not compile for sm_90a"; }
done <"$out/sources"
exit $failed
