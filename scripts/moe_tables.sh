#!/bin/sh
# docs/results/moe.md: the MoE layer's tables, from bench/results/h200x2/moe.json. Nothing in them is typed.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
input=$root/bench/results/h200x2/moe.json
out=$root/docs/results/moe.md
[ -f "$input" ] || exit 0
work=$(mktemp)
trap 'rm -f "$work"' EXIT
{
  echo "# The MoE layer on two H200"
  echo
  echo "Made by \`scripts/moe_tables.sh\` from \`bench/results/h200x2/moe.json\`, which holds all samples; nothing here is typed."
  jq -r '
    "\(.device) x \(.ranks), driver \(.driver), commit \(.commit), seed \(.seed); medians of \(.repeat), every method in turns, the cache cold, us of the slowest rank:\n\n    \(.command)\n",
    (.notes[] | "- \(.)"), ""' "$input"
  jq -r '
    def us: if . == null then "-" else . * 1e7 | round / 10 end;
    def three: if . == null then "-" else . * 1000 | round / 1000 end;
    def of($name): ([.methods[] | select(.name == $name)][0] // {}).median_s | us;
    def priced($name): ([.methods[] | select(.name == $name)][0] // {}).predicted_s | us;
    "compute: both GEMMs alone in one launch; limit: the largest of compute, link and weights, and constants. auto: the schedule of the least price.",
    "torch: rows marked with a star are of another job; DeepEP as printed by others, times the ratio of torch'"'"'s compute in these rows and then.",
    "",
    "| model | router | tokens | compute | limit | serial | direct | wave | interleave | alternate | best | best / limit | torch | torch / best | DeepEP scaled | DeepEP / best | auto |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    (.rows[] | "| \(.model) | \(.router) | \(.tokens) | \(.limit.compute_s | us) | \(.limit.limit_s | us) | \(of("serial")) | \(of("direct")) | \(of("wave")) | \(of("interleave")) | \(of("alternate")) | \(.best) | \(.over_limit | three) | \(.torch_layer_s | us)\(if .torch_layer_s and (.torch_same_job | not) then "*" else "" end) | \(.torch_speedup | three) | \(.deepep_scaled_s | us) | \(.deepep_speedup | three) | \(.auto // "-") |"),
    "",
    "## Parts alone, prices, and gains over wave",
    "",
    "| model | router | tokens | dispatch alone | combine alone | reduce alone | link | weights | priced: serial | direct | wave | interleave | alternate | wave / interleave | priced | wave / alternate | priced |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    (.rows[] | "| \(.model) | \(.router) | \(.tokens) | \(of("dispatch alone")) | \(of("combine alone")) | \(of("reduce alone")) | \(.limit.link_s | us) | \(.limit.memory_s | us) | \(priced("serial")) | \(priced("direct")) | \(priced("wave")) | \(priced("interleave")) | \(priced("alternate")) | \(.interleave_over_wave | three) | \(.interleave_over_wave_predicted | three) | \(.alternate_over_wave | three) | \(.alternate_over_wave_predicted | three) |"),
    "",
    "## Summary",
    "",
    "| figure | value |", "|---|---|",
    (.summary | to_entries[] | "| `\(.key)` | \(.value | if . == null then "not measured" elif type == "number" and . >= 1 then . * 1000 | round / 1000 else . end) |")
  ' "$input"
} >"$work"
mkdir -p "$(dirname "$out")"
cp "$work" "$out"
chmod 644 "$out"
