#!/bin/bash
# The structures that bench/peers/*.py and the example for torch hand to the library have the fields of the public
# headers, in their order: these scripts need GPUs to run, so that nobody else would notice.
#
#   scripts/check_peers.sh [FOLDER]     (default: the repository)
set -u
cd "${1:-$(dirname "$0")/..}" || exit 2
failed=0

header_fields() { # header, structure
  sed -n "/^typedef struct $2 {/,/^} $2;/p" "include/draintile/$1" | sed '1d; $d' | tr '\n' ' ' |
    sed -E 's%/\*([^*]|\*+[^*/])*\*+/%%g' | tr ';' '\n' |
    sed 's/\[[^]]*\]//g; s/^ *\(const \|struct \)*[A-Za-z0-9_]* *//; s/[* ]//g' | tr ',' '\n' | sed '/^$/d'
}

python_fields() { # script, class
  sed -n "/^class $2(/,/^\(class\|def\) [^$2]/p" "$1" | awk '/_fields_/ {on = 1} on; /\]$/ {on = 0}' |
    grep -o '("[a-z0-9_]*"' | tr -d '("'
}

compare() { # script, class, header, structure
  local difference
  if [ -z "$(header_fields "$3" "$4")" ]; then
    difference="$3 has no structure $4"
  elif difference=$(diff <(header_fields "$3" "$4") <(python_fields "$1" "$2")); then
    return
  fi
  echo "$1: $2 and $4 of $3 have other fields (<: header, >: script)"
  echo "$difference"
  failed=1
}

compare bench/peers/torch_gemm.py Gemm gemm.h dt_cuda_gemm
compare bench/peers/torch_attention.py Owner cuda_attention.h dt_cuda_attention_owner
compare bench/peers/torch_attention.py Attention cuda_attention.h dt_cuda_attention
compare bench/peers/torch_moe.py Shape moe_bench.h dt_moe_shape
for structure in Config Weights Input; do
  compare examples/moe_layer_torch.py "$structure" cuda_moe.h "dt_cuda_moe_${structure,,}"
done
exit $failed
