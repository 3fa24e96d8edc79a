#!/bin/bash
# The overlap figures: 2 ranks of one worker on a paced link, communication alone at 0.5 and at 0.8 of the computation
# alone. Writes bench/results/cpu/overlap-*.json and prints, for every bar, the figure and whether it holds; exit 1 if
# one does not. Wants an otherwise idle machine.
set -euo pipefail
cd "$(dirname "$0")/.."
results=bench/results/cpu
mkdir -p "$results"
failed=0
commit=$(git describe --always --dirty) # before results are written

bar() { # name, jq condition, file
  local verdict=holds
  jq -e "$2" "$3" >/dev/null || { verdict=MISSED; failed=1; }
  printf '  %-58s %s\n' "$1" "$verdict"
}

for ratio in 0.5 0.8; do
  OUT_DIR=build/bench RANKS=2 RATIO=$ratio REPEAT=${REPEAT:-21} scripts/demo.sh
  file=$results/overlap-$ratio.json
  build/draintile info --json - | jq --arg ratio "$ratio" --arg commit "$commit" \
    --slurpfile results build/bench/results.json '{
      command: "make bench", communication_over_computation: ($ratio | tonumber), commit: $commit, date: (now | todate),
      machine: {cpu, processors, memory_bytes, compiler, blas}
    } as $measured | $results[0] + {measured: $measured}' >"$file.tmp"
  mv "$file.tmp" "$file"
  cp build/bench/timeline.png "$results/overlap-$ratio.png"
  echo "bars at communication = $ratio of computation:"
  if [ "$ratio" = 0.5 ]; then
    for schedule in signal direct; do
      bar "$schedule: hidden ratio >= 0.9" "any(.runs[]; .schedule == \"$schedule\" and .hidden_ratio >= 0.9)" "$file"
      bar "$schedule: speedup over serial >= 1.35" \
        "any(.runs[]; .schedule == \"$schedule\" and .speedup_over_serial >= 1.35)" "$file"
    done
  else
    bar "interleave: total <= 1.1 max(compute, communication)" \
      'any(.runs[]; .schedule == "interleave" and .total_s <= 1.1 * ([.compute_alone_s, .comm_alone_s] | max))' "$file"
  fi
  bar "every schedule: |predicted - total| <= 10 % of total" \
    'all(.runs[]; (.predicted_s - .total_s | fabs) <= 0.1 * .total_s)' "$file"
  bar "every schedule: bit-equal to serial" 'all(.runs[]; .bit_equal == true)' "$file"
done
exit $failed
