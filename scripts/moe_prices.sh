#!/bin/sh
# docs/results/moe_prices.md: what the price of a layer on GPUs is off by, from the layers that were measured on two
# H200: every row's ratio of priced to measured, the gains over wave, and what auto's choice costs; first the last grid
# by the prices made before it and, where there are, after it, then an older grid of an older engine. Nothing is typed.
#   moe_prices.sh [BUILD [--set NAME VALUE]...]   with BUILD, which holds bench/bench_layer_prices, prices are made anew
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
measured=$root/tests/data/h200x2-layers.json
results=$root/bench/results/h200x2
prices=$results/moe-prices.txt
work=$(mktemp)
page=$(mktemp)
trap 'rm -f "$work" "$page"' EXIT
if [ $# -gt 0 ]; then
  build=$1
  shift
  jq -r '.rows[] | "\(.model) \(.router) \(.tokens)"' "$measured" |
    "$build"/bench/bench_layer_prices "$root"/bench/results/h200x2/platform.json --short-bands-alone \
      --set sim_layer_activation_s 3.2e-6 --set sim_layer_warp_bytes_per_s 2.3e9 --set sim_layer_crowd_ratio 0.45 \
      --set sim_layer_quiet_warp_bytes_per_s 2.4e9 --set sim_layer_plan_s 20e-6 --set sim_layer_plan_expert_s 30e-9 \
      --set sim_layer_table_s 8e-6 --set sim_layer_piece_s 3.4e-6 --set sim_layer_copy_warps_count 1.5 \
      --set sim_layer_tile_link_ratio 1.85 \
      --set sim_layer_beside_ratio 0.065 --set sim_layer_beside_full_ratio 0.05 "$@" >"$work"
  cp "$work" "$prices"
  chmod 644 "$prices"
fi
[ -f "$prices" ] || exit 0

# The last grid: moe.json holds the prices made before it, moe-retrospective.json those made afterwards, if any.
later=$results/moe-retrospective.json
[ -f "$later" ] || later=/dev/null
jq -L "$root/scripts" -nr --slurpfile measured "$results"/moe.json --slurpfile after "$later" \
  --slurpfile older "$measured" 'include "tables";
  ["serial", "direct", "wave", "interleave", "alternate"] as $columns |
  ([$after[].rows[] | {key: key, value: .predicted_s}] | from_entries) as $later |
  def judged($prices): . as $r |
    ([.methods[] | select(.graph and .median_s != null) | {key: .name, value: .median_s}] | from_entries) as $s |
    ($prices | with_entries(select($s[.key] != null and .value != null))) as $p |
    ($p | to_entries | min_by(weighed(.value; .key)) | .key) as $auto |
    {name: "\(.model) | \(.router) | \(.tokens)", fitted: (.model | IN($older[0].fitted[])), tokens,
     ratios: [$columns[] as $c | $p[$c] / $s[$c]], times: [$p | to_entries[] | .value / $s[.key] - 1],
     gains: [("interleave", "alternate") as $c | ($s.wave / $s[$c]) / ($p.wave / $p[$c]) - 1],
     auto: $auto, regret: ($s[$auto] / ([$s[]] | min) - 1)};
  [$measured[0].rows[] |
    judged([.methods[] | select(.graph and .predicted_s != null) | {key: .name, value: .predicted_s}] | from_entries)
  ] as $before |
  [$measured[0].rows[] | select($after != []) | judged($later[key])] as $now |
  [["before the run", $before], ["afterwards", $now] | select(.[1] != [])] as $prices_of |
  "# Prices of the MoE layer against measurements",
  "",
  "Made by `scripts/moe_prices.sh`; nothing here is typed. [model.md](../model.md) says what is priced. First the last",
  "grid, then an older one of an older engine.",
  "",
  "## The last grid",
  "",
  "Measured: `bench/results/h200x2/moe.json`, which holds the prices made before the run." +
    (if $after == [] then "" else " Afterwards: prices of commit \($after[0].commit), `moe-retrospective.json`: " +
      "**not a prediction**." end) +
    " Gains: measured over priced, less one; auto: the form of all measured that is priced least, direct unless " +
    "another promises \(same_price * 100) % more, with dedup \(same_price_dedup * 100) %. No row of a schedule was " +
    "fitted.",
  "",
  "| prices | rows | of | median % | 95 % | most | how many |",
  "|---|---|---|---|---|---|---|",
  ($prices_of[] as [$when, $all] |
    (["all", null], ["\($older[0].fitted | join(", "))", true], ["the other models", false]) as [$who, $fitted] |
    [$all[] | select($fitted == null or .fitted == $fitted)] |
    "| \($when) | \($who), \(length) | gains over wave | \([.[].gains[]] | figures) | " +
      "\([.[].gains[] | select((if . < 0 then -. else . end) > 0.05)] | length) of \(2 * length) beyond 5 % |",
    "| | | times of layers | \([.[].times[]] | figures) | |",
    "| | | auto over the best | \([.[].regret] | figures) | " +
      "\([.[] | select(.regret <= 0.03)] | length) of \(length) within 3 % |"),
  ($prices_of[] as [$when, $all] |
    [$all[] | select(.tokens == 128)] |
    "| \($when) | 128 tokens, \(length) | auto over the best | \([.[].regret] | figures) | " +
      "\([.[] | select(.regret <= 0.03)] | length) of \(length) within 3 % |"),
  "",
  "Every row, \($prices_of[-1][0]): priced over measured.",
  "",
  "| model | router | tokens | \($columns | join(" | ")) | gain of interleave | of alternate | auto | over the best |",
  "|---|---|---|---|---|---|---|---|---|---|---|---|",
  ($prices_of[-1][1][] |
    "| \(.name) | \(.ratios | map(three | tostring) | join(" | ")) | " +
      "\(.gains | map("\(percent) %") | join(" | ")) | \(.auto) | \(.regret | percent) % |"),
  ""' >"$page"

jq -L "$root/scripts" -nr --slurpfile measured "$measured" --rawfile prices "$prices" 'include "tables";
  $measured[0] as $m |
  ([$prices | split("\n")[] | select(. != "") | split(" ") | {key: (.[0:3] | join(" ")), value: (.[3:9] |
    map(tonumber))}] | from_entries) as $p |
  [$m.rows[] | . as $r | $p["\(.model) \(.router) \(.tokens)"] as $q | {
    name: "\(.model) | \(.router) | \(.tokens)", fitted: (.model | IN($m.fitted[])), us: .us,
    ratios: [range(6) as $i | $q[$i] / $r.us[$i]],
    gains: [(4, 5) as $i | ($q[3] / $q[$i]) / ($r.us[3] / $r.us[$i]) - 1],
    auto: ([range(1; 6) as $i | [weighed($q[$i]; $m.columns[$i]), $i]] | min[1]),
    best: ($r.us[1:] | min)}] | map(. + {regret: (.us[.auto] / .best - 1)}) |
  "## An older grid, of an older engine",
  "",
  "From `tests/data/h200x2-layers.json` (\($m.source)) and " +
    "`bench/results/h200x2/moe-prices.txt`;",
  "Priced over measured; gains: priced over measured, less one; auto: what the prices choose. The engine was then",
  "another: \($m.engine).",
  "Constants were fitted on \($m.fitted | join(", ")).",
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
awk -f "$root/scripts/wrap.awk" "$page" "$work" >"$root"/docs/results/moe_prices.md
