#!/bin/sh
# docs/results/attention.md: the attention kernel's table, from bench/results/h200/attention.json. Nothing in it is
# typed.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
input=$root/bench/results/h200/attention.json
out=$root/docs/results/attention.md
[ -f "$input" ] || exit 0
work=$(mktemp)
trap 'rm -f "$work"' EXIT
{
  echo "# Attention on an H200"
  echo
  echo "Made by \`scripts/attention_tables.sh\` from \`bench/results/h200/attention.json\`; nothing here is typed."
  jq -r '
    "\(.device), driver \(.driver), torch \(.torch), commit \(.commit); medians of \(.repeats) launches, all " +
      "candidates in turn in one job, the cache cold. us, and TFLOP/s in brackets (causal: of half of the scores). " +
      "Errors are relative to float64.\n\n    \(.command)\n"' "$input"
  jq -L "$root/scripts" -r 'include "tables";
    def both($name): candidate($name) | "\(.median_s | us) (\(.flop_per_s / 1e12 | round))";
    "| shape | heads | D | tokens | dtype | ours | cuDNN | over cuDNN | error over cuDNN'"'"'s |",
    "|---|---|---|---|---|---|---|---|---|",
    (.shapes[] | "| \(.name) | \(.heads) | \(.head_dim)\(if .causal == 1 then " causal" else "" end) | \(.tokens) | " +
      "\(.dtype) | \(both("draintile")) | \(both("cudnn")) | \(.over_cudnn | three) | \(.error_over_torch | three) |")
  ' "$input"
} >"$work"
awk -f "$root/scripts/wrap.awk" "$work" >"$out"
