#!/bin/sh
# docs/results/moe_prices.md: what the price of a layer on GPUs is off by, from the layers that were measured on two
# H200: every row's ratio of priced to measured for L1 and L2 alone and the five schedules, the gains over wave, and
# what auto's choice costs. Nothing in it is typed.
#   moe_prices.sh [BUILD [--set NAME VALUE]...]   with BUILD, which holds bench/bench_layer_prices, prices are made anew
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
measured=$root/tests/data/h200x2-layers.json
prices=$root/bench/results/h200x2/moe-prices.txt
work=$(mktemp)
trap 'rm -f "$work"' EXIT
if [ $# -gt 0 ]; then
  build=$1
  shift
  jq -r '.rows[] | "\(.model) \(.router) \(.tokens)"' "$measured" |
    "$build"/bench/bench_layer_prices "$root"/bench/results/h200x2/platform.json --short-bands-alone \
      --set sim_layer_activation_s 3.2e-6 --set sim_layer_warp_bytes_per_s 2.3e9 --set sim_layer_crowd_ratio 0.45 \
      --set sim_layer_quiet_warp_bytes_per_s 2.4e9 --set sim_layer_plan_s 20e-6 --set sim_layer_plan_expert_s 30e-9 \
      --set sim_layer_beside_ratio 0.065 --set sim_layer_beside_full_ratio 0.05 "$@" >"$work"
  cp "$work" "$prices"
  chmod 644 "$prices"
fi
[ -f "$prices" ] || exit 0
jq -nr --slurpfile measured "$measured" --rawfile prices "$prices" '
  def three: . * 1000 | round / 1000;
  def percent: . * 1000 | round / 10;
  def at($share): sort | .[([(length * $share | ceil), 1] | max) - 1];
  def figures: map(if . < 0 then -. else . end) | "\(at(0.5) | percent) | \(at(0.95) | percent) | \(at(1) | percent)";
  $measured[0] as $m |
  ([$prices | split("\n")[] | select(. != "") | split(" ") | {key: (.[0:3] | join(" ")), value: (.[3:9] |
    map(tonumber))}] | from_entries) as $p |
  [$m.rows[] | . as $r | $p["\(.model) \(.router) \(.tokens)"] as $q | {
    name: "\(.model) | \(.router) | \(.tokens)", fitted: (.model | IN($m.fitted[])), us: .us,
    ratios: [range(6) as $i | $q[$i] / $r.us[$i]],
    gains: [(4, 5) as $i | ($q[3] / $q[$i]) / ($r.us[3] / $r.us[$i]) - 1],
    auto: ([range(1; 6) as $i | [$q[$i] * (if $i == 2 then 1 else 1.005 end), $i]] | min[1]),
    best: ($r.us[1:] | min)}] | map(. + {regret: (.us[.auto] / .best - 1)}) |
  "# Prices of the MoE layer against measurements",
  "",
  "Made by `scripts/moe_prices.sh` from `tests/data/h200x2-layers.json` (\($m.source)) and " +
    "`bench/results/h200x2/moe-prices.txt`;",
  "nothing here is typed. Priced over measured; gains: priced over measured, less one; auto: what the prices " +
    "choose. The engine was then",
  "another: \($m.engine).",
  "[model.md](../model.md) says what is priced. Constants were fitted on \($m.fitted | join(", ")).",
  "",
  "| model | router | tokens | compute | serial | direct | wave | interleave | alternate | wave / interleave " +
    "| wave / alternate | auto | over the best |",
  "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
  (.[] | "| \(.name) | \(.ratios | map(three | tostring) | join(" | ")) | " +
    "\(.gains | map("\(percent) %") | join(" | ")) | \($m.columns[.auto]) | \(.regret | percent) % |"),
  "",
  "| rows | of | median % | 95 % | most |",
  "|---|---|---|---|---|",
  (["all", "fitted", "held out"][] as $which | [.[] | select($which == "all" or .fitted == ($which == "fitted"))] |
    "| \($which), \(length) | gains over wave | \([.[].gains[]] | figures) |",
    "| | times of layers | \([.[].ratios[1:][] - 1] | figures) |",
    "| | L1 and L2 alone | \([.[].ratios[0] - 1] | figures) |",
    "| | auto over the best | \([.[].regret] | figures) |")' >"$work"
mkdir -p "$root"/docs/results
cp "$work" "$root"/docs/results/moe_prices.md
chmod 644 "$root"/docs/results/moe_prices.md
